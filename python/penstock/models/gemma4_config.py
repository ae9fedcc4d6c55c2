"""Reads the configuration of Gemma 4's text models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock_kernels.route_experts import Routing

from penstock import config
from penstock.config import FULL, SLIDING, Fields, LayerSpec, MlpSpec, MoeSpec, NormSpec
from penstock.faults import Unsupported

ACTIVATION, TOP_K = "gelu_pytorch_tanh", "top_k_experts"
# What transformers assumes where config.json lacks a field.
ROPE = {
    SLIDING: {"rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
DEFAULTS: dict[str, Any] = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30}
DEFAULTS |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
DEFAULTS |= {"vocab_size": 262_144, "max_position_embeddings": 131_072, "sliding_window": 512}
DEFAULTS |= {"vocab_size_per_layer_input": 262_144, "tie_word_embeddings": True}


def read_gemma4(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> config.Specification:
    """Reads the fields; `defaults` come before DEFAULTS. Raises BadModel."""
    fields = Fields(config.layered(config.with_rope(raw, ROPE), defaults, DEFAULTS))
    seen = fields.raw.get("use_bidirectional_attention")
    if seen not in (None, "vision"):  # images alone do not change text
        raise Unsupported(f"config.json: use_bidirectional_attention {seen!r} is not supported")
    default = config.periodic(fields.count("num_hidden_layers"), 6)
    kinds = [*config.read_layer_types(fields, default)[:-1], FULL]  # as transformers has it
    norm = NormSpec(fields.number("rms_norm_eps", 1e-6))
    residual = config.read_residual(fields, norm=norm, placement=config.Placement.SANDWICH)
    layers = []
    for index, source in enumerate(config.read_kv_layers(fields, kinds)):
        attention = _attention(fields, kinds[index], index, norm)
        wide = fields.flag("use_double_wide_mlp") and source is not None
        layers.append(LayerSpec(replace(attention, kv_layer=source), _mlp(fields, wide)))
    changes = {
        "embedding_scale": residual.hidden**0.5,
        "logits_softcap": fields.optional("final_logit_softcapping"),
        "per_layer": config.read_per_layer(fields, "hidden_activation", ACTIVATION),
    }
    return config.read_decoder(fields, layers, residual, **changes)


def _attention(fields: Fields, kind: str, index: int, norm: NormSpec) -> config.AttentionSpec:
    bias, same = fields.flag("attention_bias"), kind == FULL and fields.flag("attention_k_eq_v")
    return config.read_attention(
        Fields(config.layered(config.read_layer_sizes(fields, kind, index, same), fields.raw)),
        config.read_rope(fields, layer_type=kind),
        scale=1.0,
        window=fields.count("sliding_window") if kind == SLIDING else 0,
        qk_norm=config.QkNorm(norm),
        value_norm=True,
        keys_as_values=same,
        qkv_bias=bias,
        output_bias=bias,
    )


def _mlp(fields: Fields, wide: bool) -> MlpSpec | MoeSpec:
    activation = config.read_activation(fields, "hidden_activation", ACTIVATION)
    dense = MlpSpec(fields.count("intermediate_size") * (2 if wide else 1), activation)
    fields.ignore("num_experts", TOP_K, "moe_intermediate_size")
    if not fields.flag("enable_moe_block"):
        return dense
    routing = Routing(fields.count(TOP_K), renormalise=True)
    expert = MlpSpec(fields.count("moe_intermediate_size"), activation)
    stacked = config.ExpertStorage.STACKED
    experts = MoeSpec(fields.count("num_experts"), expert, routing, shared=dense, top_k_field=TOP_K)
    return replace(experts, storage=stacked, own_norms=True)
