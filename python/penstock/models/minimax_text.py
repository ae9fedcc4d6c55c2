"""MiniMax-Text-01 and M1: lightning attention in most layers, Mixtral's experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    NormSpec,
    Placement,
    Slopes,
    Specification,
    alibi_slopes,
    falling_slopes,
    layered,
    read_decoder,
    read_residual,
)
from penstock.layers import Build
from penstock.models.decoder import Decoder
from penstock.models.minimax_text_block import NormedBlock
from penstock.models.minimax_text_config import read_layers, with_library_names
from penstock.models.mixtral import Mixtral

LAYER, PATH = "model.layers.{}.self_attn.", "blocks.{}.attention."
# What transformers stores of lightning attention beside its weights.
CONSTANTS = r"model\.layers\.\d+\.self_attn\.(slope_rate|(query|key|diagonal)_decay)"
DEFAULTS = {"num_key_value_heads": 8, "num_experts_per_tok": 2, "num_local_experts": 8}


class MiniMaxText(Decoder):
    """MiniMax-Text-01 in transformers' files."""

    names: ClassVar[Mapping[str, str]] = {
        **Mixtral.names,
        LAYER + "qkv_proj": PATH + "inputs.qkv",
        LAYER + "output_gate": PATH + "inputs.gate",
        LAYER + "norm": PATH + "norm",
        LAYER + "out_proj": PATH + "output",
    }
    ignored: tuple[str, ...] = (CONSTANTS,)
    slopes: ClassVar[Slopes] = staticmethod(falling_slopes)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        fields.require("postnorm", True)
        fields.require("shared_intermediate_size", 0)
        fields.ignore("shared_moe_mode", "block_size")  # tokens that transformers takes at once
        norm = NormSpec(fields.number("rms_norm_eps", 1e-5))
        residual = read_residual(fields, norm=norm, placement=Placement.NORMED)
        return read_decoder(fields, read_layers(fields, cls.slopes), residual)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> NormedBlock:
        """Builds layer `index`."""
        return NormedBlock(spec, build, index)


class MiniMaxText01(MiniMaxText):
    """MiniMax-Text-01 and M1 as published; tensors have the same names as in transformers."""

    slopes: ClassVar[Slopes] = staticmethod(alibi_slopes)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        return super().read_config(with_library_names(raw))
