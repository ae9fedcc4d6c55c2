"""Fields of config.json of tiny models of Hunyuan; checkpoints.py writes them."""

from __future__ import annotations

from typing import Any

HUNYUAN_ROPE: dict[str, Any] = {
    "rope_type": "dynamic",
    "rope_theta": 9000.0,
    "alpha": 50.0,
    "factor": 1.0,
}
NEWER_DENSE: dict[str, dict[str, Any]] = {
    "hunyuan": {
        "model_type": "hunyuan_v1_dense",
        "head_dim": 32,
        "attention_bias": True,
        "rope_parameters": HUNYUAN_ROPE,
    },
}
NEWER_EXPERTS: dict[str, dict[str, Any]] = {
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
}
