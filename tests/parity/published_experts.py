"""Published config.json files of mixtures of experts, and the models' numbers of parameters."""

from __future__ import annotations

from typing import Any

PUBLISHED_EXPERTS: dict[str, tuple[int, dict[str, Any]]] = {
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
