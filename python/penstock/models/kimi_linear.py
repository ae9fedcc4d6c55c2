"""Kimi Linear: Kimi Delta Attention in most layers, latent attention without RoPE in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import KimiDeltaSpec, Specification
from penstock.models.decoder import LATENT_NAMES, LLAMA_NAMES, SHARED_EXPERT_NAMES, Decoder
from penstock.models.kimi_linear_config import read_kimi_linear
from penstock.models.mixtral import MOE_NAMES
from penstock.weights import Names

SELF, PATH = "model.layers.{}.self_attn", "blocks.{}.attention"
DELTA_NAMES = {
    SELF: PATH,
    **{f"{SELF}.{part}_proj": f"{PATH}.inputs.{part}" for part in "qkv"},
    **{f"{SELF}.{part}_conv1d": f"{PATH}.convolution.{part}" for part in "qkv"},
    SELF + ".b_proj": PATH + ".head_gates.strength",
    SELF + ".f_a_proj": PATH + ".head_gates.decay_narrow",
    SELF + ".f_b_proj": PATH + ".head_gates.decay_widen",
    SELF + ".g_a_proj": PATH + ".head_gates.gate_narrow",
    SELF + ".g_b_proj": PATH + ".head_gates.gate_widen",
    SELF + ".o_norm": PATH + ".norm",
    SELF + ".o_proj": PATH + ".output",
}
SHARED_NAMES = {
    module.replace(".mlp.", ".block_sparse_moe."): path
    for module, path in SHARED_EXPERT_NAMES.items()
}


class KimiLinear(Decoder):
    """Kimi Linear 48B-A3B."""

    names: ClassVar[Mapping[str, str]] = {
        **LLAMA_NAMES,
        **LATENT_NAMES,
        **MOE_NAMES,
        **SHARED_NAMES,
    }
    delta_names: ClassVar[Mapping[str, str]] = DELTA_NAMES
    # transformers writes dense layers under the name of those with experts.
    older: ClassVar[Mapping[str, str]] = {
        f".block_sparse_moe.{part}.": f".mlp.{part}."
        for part in ("gate_proj", "up_proj", "down_proj")
    }

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Layers of both kinds have matrices of the same names, which go to different places."""
        own = {
            module.format(index): path.format(index)
            for index, layer in enumerate(spec.layers)
            for module, path in cls.delta_names.items()
            if isinstance(layer.attention, KimiDeltaSpec)
        }
        return Names({**cls.names, **own})

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return read_kimi_linear(raw)
