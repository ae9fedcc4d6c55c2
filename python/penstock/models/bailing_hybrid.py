"""Ling 3.0: Kimi Linear's layers, with bounded decays and gated heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import KimiDeltaSpec, Specification
from penstock.layers import Build
from penstock.models.bailing_hybrid_config import read_fields, read_layers
from penstock.models.decoder import (
    EXPERT_NAMES,
    LATENT_NAMES,
    LLAMA_NAMES,
    SHARED_EXPERT_NAMES,
    Decoder,
)
from penstock.models.kimi_linear import DELTA_NAMES, PATH, SELF
from penstock.weights import Names

OWN_NAMES = {
    SELF + ".f_proj": PATH + ".head_gates.decay",
    SELF + ".g_proj": PATH + ".head_gates.gate",
}


class BailingHybrid(Decoder):
    """Ling 3.0 Flash."""

    names: ClassVar[Mapping[str, str]] = {
        **(LLAMA_NAMES | LATENT_NAMES | EXPERT_NAMES | SHARED_EXPERT_NAMES),
        SELF + ".g_proj": PATH + ".qkv.gate",
    }
    # Of published checkpoints.
    older: ClassVar[Mapping[str, str]] = {
        ".attention.dense.": ".self_attn.o_proj.",
        ".attention.": ".self_attn.",
        "model.word_embeddings.": "model.embed_tokens.",
        ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
    }

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        self.ignored = (*self.ignored, rf"model\.layers\.{len(spec.layers)}\..*")

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Layers of both kinds have matrices of the same names, which go to different places."""
        own = {
            module.format(index): path.format(index)
            for index, layer in enumerate(spec.layers)
            for module, path in (DELTA_NAMES | OWN_NAMES).items()
            if isinstance(layer.attention, KimiDeltaSpec)
        }
        return Names({**cls.names, **own})

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return config.read_decoder(read_fields(raw), read_layers(raw))
