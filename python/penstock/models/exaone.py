"""Exaone 3: Llama under other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Renamed, Specification, layered
from penstock.models.llama import Llama

LAYER = "transformer.h.{}."
DEFAULTS = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0}
NAMES = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}


class Exaone(Llama):
    """Exaone 3.0, 3.5 and Deep."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.wte": "embedding",
        LAYER + "ln_1": "blocks.{}.attention_norm",
        **{
            f"{LAYER}attn.attention.{part}_proj": f"blocks.{{}}.attention.qkv.{part}"
            for part in ("q", "k", "v")
        },
        LAYER + "attn.attention.out_proj": "blocks.{}.attention.out",
        LAYER + "ln_2": "blocks.{}.mlp_norm",
        LAYER + "mlp.c_fc_0": "blocks.{}.mlp.gate_up.gate",
        LAYER + "mlp.c_fc_1": "blocks.{}.mlp.gate_up.up",
        LAYER + "mlp.c_proj": "blocks.{}.mlp.down",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields under either names, with transformers' defaults. Raises BadModel."""
        return super().read_config(layered(Renamed(raw, NAMES), raw, DEFAULTS))
