"""Falcon: 7B (one key and value head), 40B and later (the "new decoder"), RW (ALiBi)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, Placement, Specification, layered
from penstock.faults import Unsupported
from penstock.models.decoder import Decoder
from penstock.weights import HeadGroups, Names

LAYER = "transformer.h.{}."
QKV = LAYER + "self_attention.query_key_value"
DEFAULTS = {"max_position_embeddings": 2048, "tie_word_embeddings": True}


class Falcon(Decoder):
    """Falcon 7B, 40B, 180B, RW 1B and 7B, and Falcon 2 11B. Falcon 3 is a Llama."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.word_embeddings": "embedding",
        QKV: "blocks.{}.attention.qkv",
        LAYER + "self_attention.dense": "blocks.{}.attention.out",
        LAYER + "mlp.dense_h_to_4h": "blocks.{}.mlp.inner.up",
        LAYER + "mlp.dense_4h_to_h": "blocks.{}.mlp.down",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    }

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """A key and value head is stored after the query heads that share it; norms have other
        names where there are two side by side."""
        two = spec.residual.placement is Placement.PARALLEL_NORMS
        norms = ("ln_attn", "ln_mlp") if two else ("input_layernorm", "post_attention_layernorm")
        paths = "blocks.{}.attention_norm", "blocks.{}.mlp_norm"
        names = {LAYER + norm: path for norm, path in zip(norms, paths, strict=True)}
        queries = spec.heads // spec.kv_heads
        return Names({**cls.names, **names}, {QKV: HeadGroups(queries, spec.head_dim)})

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        fields.require_unset("apply_residual_connection_post_layernorm")
        fields.require("ff_factor", 4)
        inner = fields.raw.get("ffn_hidden_size") or 4 * fields.count("hidden_size")
        sized = Fields(layered({"intermediate_size": inner}, fields.raw))
        bias, rope = fields.flag("bias"), config.read_rope(fields)
        heads = {"kv_heads": _kv_heads(fields)}
        attention = config.read_attention(fields, rope, qkv_bias=bias, output_bias=bias, **heads)
        mlp = config.read_mlp(sized, "activation", "gelu", bias=bias, gated=False)
        norm = config.read_layer_norm(fields, "layer_norm_epsilon")
        residual = config.read_residual(fields, norm=norm, placement=_placement(fields))
        layers = [config.LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        spec = config.read_decoder(fields, layers, residual)
        alibi = {"rope": None, "slopes": config.alibi_slopes(spec.heads, scale=attention.scale)}
        return spec.with_attention(spec.windows, **(alibi if fields.flag("alibi") else {}))


def _kv_heads(fields: Fields) -> int:
    heads = fields.count("num_kv_heads", fields.count("num_attention_heads"))
    single = fields.flag("multi_query", True) and not fields.flag("new_decoder_architecture")
    return 1 if single else heads


def _placement(fields: Fields) -> Placement:
    new, parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn", True)
    norms = fields.count("num_ln_in_parallel_attn", 2 if new else 1)
    if norms > 2 or (norms == 2 and not new) or (new and not parallel):
        raise Unsupported(
            f"config.json: num_ln_in_parallel_attn {norms} with new_decoder_architecture {new} and "
            f"parallel_attn {parallel} is not supported"
        )
    if not parallel:
        return Placement.PRE
    return Placement.PARALLEL_NORMS if norms == 2 else Placement.PARALLEL
