"""A.X K2 Light: DeepSeek-V3.2 with gates of norms and of the attention's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import Fields, Specification, layered
from penstock.layers import Build
from penstock.models.axk2_block import Axk2Block
from penstock.models.deepseek_v32 import DeepseekV32

LAYER, PATH = "model.layers.{}.", "blocks.{}."
NORMS = {"input_layernorm.": "attention_norm.", "post_attention_layernorm.": "mlp_norm."}
PARTS = {"norm": "norm", "W_down": "narrow", "W_up": "widen"}


class Axk2(DeepseekV32):
    """A.X K2 Light."""

    dense = 1
    defaults: ClassVar[Mapping[str, int | float]] = {
        "index_n_heads": 16,
        "kv_lora_rank": 128,
        "qk_rope_head_dim": 32,
    }
    names: ClassVar[Mapping[str, str]] = {
        **DeepseekV32.names,
        **{
            LAYER + norm + part: PATH + ours + path
            for norm, ours in NORMS.items()
            for part, path in PARTS.items()
        },
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"gated_norm_rank": 16}))
        # With groups, experts of groups that are lost have scores of 0 there, not of -infinity.
        fields.require("n_group", 1)
        spec = super().read_config(raw)
        residual = replace(spec.residual, gate_rank=fields.count("gated_norm_rank"))
        return replace(spec, residual=residual)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Axk2Block:
        """Builds layer `index`."""
        return Axk2Block(spec, build, index)
