"""Fields of config.json of tiny models with latent attention; checkpoints.py writes them."""

from __future__ import annotations

from typing import Any

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
INDEXED: dict[str, Any] = {
    "q_lora_rank": 40,
    "index_n_heads": 16,
    "index_head_dim": 20,
    "index_topk": 8,
}
# Without experts.
YOUTU: dict[str, Any] = {
    "model_type": "youtu",
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
}
MINICPM3: dict[str, Any] = {
    "model_type": "minicpm3",
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "scale_emb": 3,
    "scale_depth": 0.7,
    "dim_model_base": 16,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 9000.0,
        "short_factor": [1.0, 1.1, 1.3, 1.6],
        "long_factor": [1.0, 1.5, 2.0, 4.0],
        "original_max_position_embeddings": 64,
    },
}
LATENT_CASES: dict[str, dict[str, Any]] = {
    "deepseek-v2": {
        **LATENT,
        "model_type": "deepseek_v2",
        "q_lora_rank": 40,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 4.0,
        "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek-v2-lite": {**LATENT, "model_type": "deepseek_v2", "q_lora_rank": None},
    "deepseek-v3": {
        **LATENT,
        "model_type": "deepseek_v3",
        "q_lora_rank": 40,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 1,
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "glm4-moe-lite": {
        **{name: value for name, value in LATENT.items() if name != "first_k_dense_replace"},
        "model_type": "glm4_moe_lite",
        "q_lora_rank": 40,
        "routed_scaling_factor": 1.8,
        "mlp_layer_types": ["dense", "dense", "sparse"],
    },
    "axk1": {
        **{name: value for name, value in LATENT.items() if name != "first_k_dense_replace"},
        "model_type": "axk1",
        "q_lora_rank": 40,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.8,
        "rope_interleave": False,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    # Many index heads: few scores are 0, and ties have no order in transformers.
    "deepseek-v32": {
        **LATENT,
        **INDEXED,
        "model_type": "deepseek_v32",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "axk2": {
        **{name: value for name, value in LATENT.items() if name != "first_k_dense_replace"},
        **INDEXED,
        "model_type": "axk2",
        "gated_norm_rank": 5,
        "routed_scaling_factor": 1.8,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    "glm-moe-dsa": {
        **LATENT,
        **INDEXED,
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": 4,
        "indexer_types": ["full", "shared", "full", "shared"],
        "routed_scaling_factor": 1.8,
        "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
    },
    # Weights are large, so that gates of experts reach their limit.
    "hy-v4": {
        **{name: value for name, value in LATENT.items() if name != "first_k_dense_replace"},
        **INDEXED,
        "model_type": "hy_v4",
        "num_hidden_layers": 4,
        "indexer_types": ["full", "shared", "full", "shared"],
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        "initializer_range": 0.4,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.8,
        "hc_mult": 3,
        "hc_magnitude": 1.4,
        "hc_eps": 0.03,
        "pad_token_id": None,  # its embedding would be 0, and so all scores of its query
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    "longcat-flash": {
        **{name: value for name, value in LATENT.items() if name.startswith(("k", "q", "v"))},
        "model_type": "longcat_flash",
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 96,
        "q_lora_rank": 40,
        "head_dim": 8,
        "moe_topk": 4,
        "n_routed_experts": 8,
        "zero_expert_num": 5,
        "expert_ffn_hidden_size": 32,
        "routed_scaling_factor": 2.5,
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    "deepseek-v3-halves": {
        **LATENT,
        "model_type": "deepseek_v3",
        "q_lora_rank": None,
        "rope_interleave": False,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
    },
}
