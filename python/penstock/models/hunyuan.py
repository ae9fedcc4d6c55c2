"""Hunyuan, dense: Llama with norms of each head's queries and keys after RoPE, whose base grows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, QkNorm, Specification, layered
from penstock.models.decoder import LLAMA_NAMES, QK_NORM_NAMES, renamed
from penstock.models.llama import Llama

# Of images and classes, of what `use_*` turn off, of training, and of experts.
UNUSED = re.compile(
    r"(anyres|vit|im|text|video|mask)_.*|(kv|q)_lora_rank|(qk_nope|qk_rope|v)_head_dim|pad_id|"
    r"class_num|cla_share_factor|dense_list|num_media_embeds|org_vocab_size|pool_type|"
    r"skip_cls_token|xdrope_section|moe_.*|num_shared_expert|norm_topk_prob|use_mixed_mlp_moe"
)
ONLY: Mapping[str, Any] = {
    "add_classification_head": False,
    "mlp_bias": False,
    "norm_type": "rms",
    "position_embedding_xdrope": False,
    "use_cla": False,
    "use_mla": False,
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
}


class HunYuan(Llama):
    """Hunyuan 0.5B to 7B, Hunyuan-MT."""

    names: ClassVar[Mapping[str, str]] = LLAMA_NAMES | renamed(
        QK_NORM_NAMES, q_norm="query_layernorm", k_norm="key_layernorm"
    )

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the norms, and the base of RoPE."""
        fields = Fields(layered(raw, {"rms_norm_eps": 1e-5}))
        fields.ignore(*filter(UNUSED.fullmatch, raw))
        for name, only in ONLY.items():
            fields.require(name, only)
        cls.require_experts(fields)
        spec = super().read_config(layered(_stretched_rope(fields), fields.raw))
        fields.require("attention_head_dim", spec.head_dim)
        norm = QkNorm(spec.residual.norm, after_rope=True)
        return spec.with_attention(spec.windows, qk_norm=norm)

    @classmethod
    def require_experts(cls, fields: Fields) -> None:
        """Rejects experts, or those that are not supported."""
        fields.require("num_experts", 1)


def _stretched_rope(fields: Fields) -> Mapping[str, Any]:
    """Fields in place of a RoPE of type "dynamic" with `alpha`: a base, the same at all lengths."""
    found = fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling")
    if not isinstance(found, Mapping) or not found.get("alpha"):
        return {}
    rope = Fields(found)
    rope.require("rope_type", "dynamic")
    rope.require("type", "dynamic")
    dims = fields.count(
        "head_dim", fields.count("hidden_size") // fields.count("num_attention_heads")
    )
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    stretched = theta * rope.positive("alpha") ** (dims / (dims - 2))
    return {"rope_parameters": {"rope_theta": stretched}, "rope_scaling": None}
