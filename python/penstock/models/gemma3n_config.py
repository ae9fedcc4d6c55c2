"""Reads the configuration of Gemma 3n's text models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock import config
from penstock.config import SLIDING, Fields, LayerSpec, MlpSpec, NormSpec
from penstock.faults import BadModel, Unsupported
from penstock.models.gemma3 import Gemma3Text

ACTIVATION = "gelu_pytorch_tanh"
SHARES = "activation_sparsity_pattern"
SPARSE_LAYERS, SPARSITY = 10, 0.95  # where config.json does not say, of more layers than these
# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 16_384}
DEFAULTS |= {"num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2}
DEFAULTS |= {"head_dim": 256, "vocab_size": 262_400, "max_position_embeddings": 32_768}
DEFAULTS |= {"sliding_window": 512, "num_kv_shared_layers": 15, "tie_word_embeddings": True}
DEFAULTS |= {"vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256}
DEFAULTS |= {"altup_num_inputs": 4, "altup_active_idx": 0, "altup_correct_scale": True}
DEFAULTS |= {"laurel_rank": 64, "final_logit_softcapping": 30.0}


def read_gemma3n(raw: Mapping[str, Any]) -> config.Specification:
    """Reads the fields. Raises BadModel."""
    fields = Fields(config.layered(raw, DEFAULTS))
    if not fields.number("hidden_size_per_layer_input"):
        raise Unsupported("config.json: hidden_size_per_layer_input 0 is not supported")
    fields.ignore("altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar")
    count = fields.count("num_hidden_layers")
    kinds = config.read_layer_types(fields, config.periodic(count, 5))
    norm = NormSpec(fields.number("rms_norm_eps", 1e-6))
    residual = config.read_residual(fields, norm=norm, placement=config.Placement.SANDWICH)
    sources = config.read_kv_layers(fields, kinds)
    attention = [_attention(fields, kind, norm) for kind in kinds]
    layers = [
        LayerSpec(replace(own, kv_layer=source), mlp)
        for own, source, mlp in zip(attention, sources, _mlps(fields, count), strict=True)
    ]
    changes = {
        "embedding_scale": residual.hidden**0.5,
        "logits_softcap": fields.optional("final_logit_softcapping"),
        "per_layer": config.read_per_layer(fields, "hidden_activation", ACTIVATION, short=True),
    }
    residual = replace(residual, streams=config.read_altup(fields))
    return config.read_decoder(fields, layers, residual, **changes)


def _attention(fields: Fields, kind: str, norm: NormSpec) -> config.AttentionSpec:
    bias = fields.flag("attention_bias")
    return config.read_attention(
        fields,
        Gemma3Text.rope(fields, kind),
        scale=1.0,
        window=fields.count("sliding_window") if kind == SLIDING else 0,
        qk_norm=config.QkNorm(norm),
        value_norm=True,
        qkv_bias=bias,
        output_bias=bias,
    )


def _mlps(fields: Fields, count: int) -> list[MlpSpec]:
    activation = config.read_activation(fields, "hidden_activation", ACTIVATION)
    sizes = [one.count("intermediate_size") for one in fields.each("intermediate_size", count)]
    if fields.raw.get(SHARES) is None:
        sparse = SPARSE_LAYERS if count > SPARSE_LAYERS else 0
        fields = Fields({SHARES: [SPARSITY] * sparse + [0.0] * (count - sparse)})
    shares = [one.number(SHARES) for one in fields.each(SHARES, count)]
    if not all(0 <= share < 1 for share in shares):
        raise BadModel(f"config.json: {SHARES} must be shares from 0 to below 1, found {shares}")
    return [
        MlpSpec(size, activation, sparsity=share) for size, share in zip(sizes, shares, strict=True)
    ]
