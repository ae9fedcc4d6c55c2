"""Arcee (AFM): Llama whose feed-forward layers have no gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import Fields, MlpSpec, Specification, layered, read_activation
from penstock.models.decoder import LLAMA_NAMES, renamed
from penstock.models.llama import Llama


class Arcee(Llama):
    """AFM 4.5B: squared ReLU without a gate."""

    names: ClassVar[Mapping[str, str]] = renamed(LLAMA_NAMES, gate_proj=None, up_proj=None) | {
        "model.layers.{}.mlp.up_proj": "blocks.{}.mlp.inner.up"
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Replaces the feed-forward layers."""
        fields = Fields(raw)
        spec = super().read_config(layered({"hidden_act": "silu"}, raw, {"rms_norm_eps": 1e-5}))
        mlp = MlpSpec(
            fields.count("intermediate_size"),
            read_activation(fields, "hidden_act", "relu2"),
            bias=fields.flag("mlp_bias"),
            gated=False,
        )
        return replace(spec, layers=tuple(replace(layer, mlp=mlp) for layer in spec.layers))
