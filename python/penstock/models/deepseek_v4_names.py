"""Names of DeepSeek-V4's checkpoints: those of published files, whose layers have the prefix that
transformers writes."""

from __future__ import annotations

from collections.abc import Mapping

LAYER, PATH = "model.layers.{}.", "blocks.{}."
ATTENTION = {
    "wq_a": "qkv.q_a",
    "wkv": "qkv.kv",
    "q_norm": "query_norm",
    "kv_norm": "key_norm",
    "wq_b": "query_up",
    "wo_a": "groups",
    "wo_b": "out",
    "attn_sink": "sinks",
    "compressor.wkv": "entries.inputs.values",
    "compressor.wgate": "entries.inputs.gates",
    "compressor.ape": "entries.key.bias",
    "compressor.norm": "entries.key.norm",
    "indexer.compressor.wkv": "entries.inputs.index_values",
    "indexer.compressor.wgate": "entries.inputs.index_gates",
    "indexer.compressor.ape": "entries.index_key.bias",
    "indexer.compressor.norm": "entries.index_key.norm",
    "indexer.wq_b": "entries.queries",
    "indexer.weights_proj": "entries.head_weights",
}
MLP = {"w1": "gate_up.gate", "w3": "gate_up.up", "w2": "down"}
STREAMS = {"fn": "matrix", "base": "base", "scale": "scale"}
NAMES: Mapping[str, str] = {
    "model.embed_tokens": "embedding",
    LAYER + "attn_norm": PATH + "attention_norm",
    LAYER + "ffn_norm": PATH + "mlp_norm",
    LAYER + "ffn.gate": PATH + "mlp.router",
    LAYER + "ffn.gate.bias": PATH + "mlp.router.e_score_correction_bias",
    "model.norm": "norm",
    "lm_head": "head",
    **{f"{LAYER}attn.{name}": f"{PATH}attention.{path}" for name, path in ATTENTION.items()},
    **{f"{LAYER}ffn.shared_experts.{name}": f"{PATH}mlp.shared.{MLP[name]}" for name in MLP},
    **{f"{LAYER}ffn.experts.{{}}.{name}": f"{PATH}mlp.experts.{{}}.{MLP[name]}" for name in MLP},
    **{
        f"{LAYER}hc_attn_{name}": f"{PATH}attention_streams.logits.{STREAMS[name]}"
        for name in STREAMS
    },
    **{f"{LAYER}hc_ffn_{name}": f"{PATH}mlp_streams.logits.{STREAMS[name]}" for name in STREAMS},
    **{f"model.hc_head.hc_{name}": f"streams.logits.{STREAMS[name]}" for name in STREAMS},
}
# Without the prefix, as published, and as transformers writes a norm.
OLDER: Mapping[str, str] = {
    "layers.": "model.layers.",
    "embed.": "model.embed_tokens.",
    "norm.": "model.norm.",
    "head.": "lm_head.",
    "hc_head_": "model.hc_head.hc_",
    ".attn.norm.": ".attn.kv_norm.",
}
