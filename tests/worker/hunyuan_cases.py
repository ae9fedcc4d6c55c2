"""Fields of config.json of tiny models of Hunyuan and MiMo; checkpoints.py writes them."""

from __future__ import annotations

from typing import Any

HUNYUAN_ROPE: dict[str, Any] = {
    "rope_type": "dynamic",
    "rope_theta": 9000.0,
    "alpha": 50.0,
    "factor": 1.0,
}
HUNYUAN_DENSE: dict[str, dict[str, Any]] = {
    "hunyuan": {
        "model_type": "hunyuan_v1_dense",
        "head_dim": 32,
        "attention_bias": True,
        "rope_parameters": HUNYUAN_ROPE,
    },
}
HUNYUAN_EXPERTS: dict[str, dict[str, Any]] = {
    "hunyuan-moe": {
        "model_type": "hunyuan_v1_moe",
        "num_experts": 8,
        "moe_topk": [3, 2, 3],
        "head_dim": 32,
        "attention_bias": True,
        "pad_token_id": 0,
        "rope_parameters": HUNYUAN_ROPE,
    },
    "hy-v3": {
        "model_type": "hy_v3",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "num_shared_experts": 2,
        "head_dim": 32,
        "attention_bias": True,
        "mlp_bias": True,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
    "mimo": {
        "model_type": "mimo_v2_flash",
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "head_dim": 32,
        "v_head_dim": 24,
        "sliding_window": 24,
        "attention_value_scale": 0.6,
        "attention_bias": True,
        "rope_parameters": {
            "full_attention": {"rope_theta": 9000.0, "partial_rotary_factor": 0.334},
            "sliding_attention": {"rope_theta": 900.0, "partial_rotary_factor": 0.5},
        },
    },
}
