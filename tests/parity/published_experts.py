"""Published config.json files of mixtures of experts, and the models' numbers of parameters."""

from __future__ import annotations

from typing import Any

PUBLISHED_EXPERTS: dict[str, tuple[int, dict[str, Any]]] = {
    "LGAI-EXAONE/K-EXAONE-236B-A23B": (236_571_156_352, {
        "architectures": ["ExaoneMoEForCausalLM"], "attention_dropout": 0.0, "dtype": "bfloat16",
        "first_last_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 6144, "initializer_range": 0.02, "intermediate_size": 18432,
        "is_moe_layer": [False] + [True] * 47,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 12,
        "max_position_embeddings": 262144, "model_type": "exaone_moe",
        "moe_intermediate_size": 2048, "n_group": 1, "norm_topk_prob": True,
        "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
        "num_shared_experts": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 1000000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "sliding_window": 128, "sliding_window_pattern": "LLLG", "tie_word_embeddings": False,
        "tokenizer_class": "GPT2Tokenizer", "topk_group": 1, "topk_method": "noaux_tc",
        "vocab_size": 153600,
    }),
    "arcee-ai/Trinity-Nano-Preview": (6_120_003_328, {
        "architectures": ["AfmoeForCausalLM"], "attention_dropout": 0.0, "dtype": "bfloat16",
        "global_attn_every_n_layers": 4, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 14,
        "load_balance_coeff": 0.001, "max_position_embeddings": 131072, "model_type": "afmoe",
        "moe_intermediate_size": 256, "mup_enabled": True, "n_group": 1,
        "num_attention_heads": 8, "num_dense_layers": 2, "num_expert_groups": 1,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 56,
        "num_key_value_heads": 2, "num_limited_groups": 1, "num_shared_experts": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000, "route_norm": True,
        "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 2048,
        "tie_word_embeddings": False, "topk_group": 1, "transformers_version": "4.57.3",
        "use_cache": True, "use_grouped_mm": True, "vocab_size": 200192,
    }),
    "upstage/Solar-Open-100B": (102_651_799_552, {
        "architectures": ["SolarOpenForCausalLM"], "first_k_dense_replace": 0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10240,
        "max_position_embeddings": 131072, "model_type": "solar_open",
        "moe_intermediate_size": 1280, "n_routed_experts": 128, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 2.0, "original_max_position_embeddings": 65536, "type": "yarn",
        },
        "rope_theta": 1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": False,
        "vocab_size": 196608,
    }),
}  # fmt: skip
