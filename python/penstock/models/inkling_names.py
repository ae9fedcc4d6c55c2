"""The names of Inkling's tensors: in checkpoints of the text model alone, and in published ones."""

from __future__ import annotations

BLOCK = "blocks.{}."
# By the path of a layer in its block: transformers' module or tensor, and the published one.
LAYER = {
    "attention_norm": ("input_layernorm", "attn_norm"),
    "attention.qkv.q": ("self_attn.q_proj", "attn.wq_du"),
    "attention.qkv.k": ("self_attn.k_proj", "attn.wk_dv"),
    "attention.qkv.v": ("self_attn.v_proj", "attn.wv_dv"),
    "attention.qkv.relative": ("self_attn.r_proj", "attn.wr_du"),
    "attention.q_norm": ("self_attn.q_norm", "attn.q_norm"),
    "attention.k_norm": ("self_attn.k_norm", "attn.k_norm"),
    "attention.convolution.k": ("self_attn.k_sconv.conv1d", "attn.k_sconv"),
    "attention.convolution.v": ("self_attn.v_sconv.conv1d", "attn.v_sconv"),
    "attention.profiles": ("self_attn.rel_logits_proj.proj", "attn.rel_logits_proj.proj"),
    "attention.out": ("self_attn.o_proj", "attn.wo_ud"),
    "attention_convolution": ("attn_sconv.conv1d", "attn_sconv"),
    "mlp_norm": ("post_attention_layernorm", "mlp_norm"),
    "mlp.down": ("mlp.down_proj", "mlp.w2_md"),
    "mlp.router": ("mlp.gate", "mlp.gate"),
    "mlp.router.e_score_correction_bias": ("mlp.gate.e_score_correction_bias", "mlp.gate.bias"),
    "mlp.experts.gate_up.weight": ("mlp.experts.gate_up_proj", "mlp.experts.w13_weight"),
    "mlp.experts.down.weight": ("mlp.experts.down_proj", "mlp.experts.w2_weight"),
    "mlp.shared.down.weight": (
        "mlp.shared_experts.down_proj",
        "mlp.shared_experts.shared_w2_weight",
    ),
    "mlp_convolution": ("mlp_sconv.conv1d", "mlp_sconv"),
    "mlp_convolution.scale": ("mlp.global_scale", "mlp.global_scale"),
}
# Gates and ups are matrices of their own, and alternate in published checkpoints.
ALTERNATING = "model.llm.layers.{}.mlp.w13_dn"

NAMES = {f"model.layers.{{}}.{theirs}": BLOCK + path for path, (theirs, _) in LAYER.items()}
NAMES |= {
    "model.layers.{}.mlp.gate_proj": BLOCK + "mlp.gate_up.gate",
    "model.layers.{}.mlp.up_proj": BLOCK + "mlp.gate_up.up",
    "model.layers.{}.mlp.shared_experts.gate_proj": BLOCK + "mlp.shared.gate_up.gate.weight",
    "model.layers.{}.mlp.shared_experts.up_proj": BLOCK + "mlp.shared.gate_up.up.weight",
    "model.embed_tokens": "embedding",
    "model.embed_tokens.embed_norm.weight": "embedding.norm_weight",
    "model.norm": "norm",
    "lm_head": "head",
}
PUBLISHED = {f"model.llm.layers.{{}}.{theirs}": BLOCK + path for path, (_, theirs) in LAYER.items()}
PUBLISHED |= {
    ALTERNATING: BLOCK + "mlp.gate_up",
    "model.llm.layers.{}.mlp.shared_experts.shared_w13_weight": (
        BLOCK + "mlp.shared.gate_up.weight"
    ),
    "model.llm.embed": "embedding",
    "model.llm.embed_norm.weight": "embedding.norm_weight",
    "model.llm.norm": "norm",
    "model.llm.unembed": "head",
}
WITH_SPARE_ROWS = ("model.embed_tokens", "lm_head", "model.llm.embed", "model.llm.unembed")
