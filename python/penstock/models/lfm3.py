"""LFM3: LFM2 with layers that slide, gates of heads and norms behind each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    CONV,
    FULL,
    SLIDING,
    Fields,
    Gate,
    LayerSpec,
    MlpSpec,
    NormSpec,
    Placement,
    QkNorm,
    ShortConvSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_residual,
    read_rope,
    read_three_types,
    with_rope,
)
from penstock.models.decoder import LLAMA_NAMES, QK_NORM_NAMES
from penstock.models.lfm2 import LAYER, PATH, Lfm2

ROPES = {
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_theta": 1e4},
}
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 4, "tie_word_embeddings": True}


class Lfm3(Lfm2):
    """LFM3 1.7B."""

    names: ClassVar[Mapping[str, str]] = {
        **{name: path for name, path in Lfm2.names.items() if "layernorm" not in name},
        **{name: path for name, path in LLAMA_NAMES.items() if ".self_attn." in name},
        **QK_NORM_NAMES,
        LAYER + "self_attn.gate_proj": PATH + ".qkv.gate",
        LAYER + "post_operator_norm": "blocks.{}.attention_output_norm",
        LAYER + "post_ffn_norm": "blocks.{}.mlp_output_norm",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(with_rope(raw, ROPES), DEFAULTS))
        layers, norm = fields.count("num_hidden_layers"), NormSpec(fields.number("norm_eps", 1e-5))
        placement = Placement.SANDWICH if fields.flag("use_sandwich_norm", True) else Placement.PRE
        sizes = fields.count("hidden_size"), fields.count("conv_L_cache", 7)
        conv = ShortConvSpec(*sizes, fields.flag("conv_bias"))
        kinds = read_three_types(fields, _default(layers), CONV)
        mixers: dict[str, Any] = {CONV: conv}
        for kind in {*kinds} - {CONV}:
            mixers[kind] = _attention(fields, kind, norm)
        mlp = MlpSpec(fields.count("intermediate_size"))
        specs = [LayerSpec(mixers[kind], mlp) for kind in kinds]
        return read_decoder(fields, specs, read_residual(fields, norm=norm, placement=placement))


def _default(layers: int) -> list[str]:
    kinds = [CONV, CONV, FULL, CONV] + [SLIDING, CONV, FULL, CONV] * (layers // 4)
    return kinds[:layers]


def _attention(fields: Fields, kind: str, norm: NormSpec) -> Any:
    gate = Gate.PER_HEAD if fields.flag("use_attention_gate", True) else None
    if gate is not None:
        fields.require("attention_bias", False)  # the gate has none, and is in the same matrix
    window = fields.count("sliding_window", 256) if kind == SLIDING else 0
    bias, rope = fields.flag("attention_bias"), read_rope(fields, layer_type=kind, theta=1e6)
    changes = {"qkv_bias": bias, "output_bias": bias, "window": window, "gate": gate}
    return read_attention(fields, rope, qk_norm=QkNorm(norm), **changes)
