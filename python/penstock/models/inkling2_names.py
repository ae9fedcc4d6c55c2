"""The names of Inkling 2's tensors; transformers writes the published ones."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config import AttentionSpec, Specification

LAYER, BLOCK = "model.llm.layers.{}.", "blocks.{}."
SCALES = "mlp.experts.w13_weight_scale"  # of experts in mxfp8
# By the path of a layer in its block.
PARTS = {
    "attention_norms.{}": "attn_norm",
    "attention.qkv.q": "attn.wq_du",
    "attention.qkv.k": "attn.wk_dv",
    "attention.qkv.v": "attn.wv_dv",
    "attention.qkv.relative": "attn.wr_du",
    "attention.qkv.gate": "attn.gate_attn",
    "attention.sink_weight": "attn.attn_sink_proj.weight",
    "attention.query_bound": "attn.q_l2_clip",
    "attention.factor_bound": "attn.rel_l2_clip",
    "attention.profiles": "attn.rel_logits_proj.proj",
    "attention.convolution.k": "attn.k_sconv",
    "attention.convolution.v": "attn.v_sconv",
    "attention.out": "attn.wo_ud",
    "attention_convolution": "attn_sconv",
    "mlp_norm": "mlp_norm",
    "mlp.router": "mlp.gate",
    "mlp.router.e_score_correction_bias": "mlp.gate.bias",
    "mlp.experts.gate_up.weight": "mlp.experts.w13_weight",
    "mlp.experts.gate_up.weight_scale": SCALES,
    "mlp.experts.down.weight": "mlp.experts.w2_weight",
    "mlp.experts.down.weight_scale": "mlp.experts.w2_weight_scale",
    "mlp_convolution": "mlp_sconv",
}
# Of a layer whose queries, keys and values each have an input of their own, as transformers
# numbers it.
OWN_INPUTS = {
    "attention_norms.0": "q_input_norm",
    "attention_norms.1": "k_input_norm",
    "attention_norms.2": "v_input_norm",
    "attention.keys.k": "attn.wk_dv",
    "attention.values.v": "attn.wv_dv",
    "attention.convolution.k.static": "attn.k_sconv.static_w",
    "attention.convolution.v.static": "attn.v_sconv.static_w",
    "attention.convolution.k.projection": "attn.k_sconv.weight_proj",
    "attention.convolution.v.projection": "attn.v_sconv.weight_proj",
}
DEPTH = "model.llm.attn_res."
NAMES: Mapping[str, str] = {
    **{LAYER + theirs: BLOCK + path for path, theirs in PARTS.items()},
    DEPTH + "mlp_queries.{}": "blocks.{}.mlp_depth.query",
    DEPTH + "output_query": "streams.query",
    "model.llm.embed": "embedding",
    "model.llm.embed_norm.weight": "embedding.norm_weight",
    "model.llm.norm": "norm",
    "model.llm.unembed": "head",
}
WITH_SPARE_ROWS = ("model.llm.embed", "model.llm.unembed")


def of_layers(spec: Specification) -> dict[str, str]:
    """The names that layers have by their number: the first one reads no streams, and those without
    a window have other parts."""
    found = {}
    for block, layer in enumerate(spec.block_layers):
        attention = spec.layers[layer].attention
        if block:
            found[f"{DEPTH}attn_queries.{block - 1}"] = f"blocks.{block}.attention_depth.query"
        if isinstance(attention, AttentionSpec) and attention.has_own_inputs:
            for path, theirs in OWN_INPUTS.items():
                found[LAYER.format(block) + theirs] = BLOCK.format(block) + path
    return found
