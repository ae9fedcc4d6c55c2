"""Fields of config.json of tiny models with experts; checkpoints.py writes them."""

from __future__ import annotations

from typing import Any

SIGMOID: dict[str, dict[str, Any]] = {
    "afmoe": {
        "model_type": "afmoe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "num_shared_experts": 2,
        "num_dense_layers": 1,
        "route_scale": 2.5,
        "mup_enabled": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 24,
        "head_dim": 32,
    },
    "exaone_moe": {
        "model_type": "exaone_moe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "num_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 24,
        "head_dim": 32,
    },
    "solar_open": {
        "model_type": "solar_open",
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "n_shared_experts": 2,
        "routed_scaling_factor": 2.5,
        "n_group": 4,
        "topk_group": 2,
        "attention_bias": True,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 9000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}

GROUPED: dict[str, dict[str, Any]] = {
    "mistral4": {
        "model_type": "mistral4",
        "num_key_value_heads": 4,
        "q_lora_rank": 40,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "rope_parameters": {
            "type": "yarn",
            "rope_theta": 9000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
            "llama_4_scaling_beta": 0.3,
        },
    },
}
