"""Fields of config.json of tiny models with recurrent layers; checkpoints.py writes them."""

from __future__ import annotations

from typing import Any

DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
}
CONVOLVED: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
}
MAMBA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 24,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "num_hidden_layers": None,  # layers_block_type has as many
    "head_dim": 32,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 24,
    "chunk_size": 16,
    "time_step_min": 1e-6,  # a bound of steps in transformers, but of prompts alone
}
BESIDE: dict[str, Any] = {
    "model_type": "falcon_h1",
    "mamba_d_ssm": 96,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 1.7,
    "mlp_multipliers": [0.7, 1.4],
    "ssm_multipliers": [0.6, 1.2, 0.9, 1.1, 0.7],
    "ssm_out_multiplier": 1.6,
    "key_multiplier": 0.6,
    "attention_out_multiplier": 1.5,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "moe_intermediate_size": 32}
KIMI: dict[str, Any] = {
    "model_type": "kimi_linear",
    "pad_token_id": 0,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "linear_head_dim": 12,
    "linear_num_heads": 8,
}

MIXTURES: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {
        **MAMBA,
        "model_type": "granitemoehybrid",
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 48,
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
    },
    "kimi_linear": {
        **KIMI,
        "num_hidden_layers": 4,
        "layer_types": [
            *("linear_attention", "linear_attention", "full_attention", "linear_attention"),
        ],
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 2,
        "linear_conv_kernel_dim": 3,
        "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
    },
    "kimi_linear-latent-queries": {
        **KIMI,
        "num_hidden_layers": 5,  # the last one has attention
        "q_lora_rank": 40,
        "norm_topk_prob": False,
        "rms_norm_eps": 1e-4,
    },
    "lfm2-moe": {
        **CONVOLVED,
        "model_type": "lfm2_moe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "num_dense_layers": 1,
        "routed_scaling_factor": 2.5,
    },
    "minimax": {
        "model_type": "minimax",
        "num_hidden_layers": 5,
        # Where the first layer has no keys, transformers' cache says that it is empty.
        "layer_types": [
            *("full_attention", "linear_attention", "linear_attention"),
            *("full_attention", "linear_attention"),
        ],
        "head_dim": 24,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "block_size": 32,
        "full_attn_alpha_factor": 1.3,
        "full_attn_beta_factor": 0.7,
        "linear_attn_alpha_factor": 2.1,
        "linear_attn_beta_factor": 1.2,
        "mlp_alpha_factor": 0.8,
        "mlp_beta_factor": 1.6,
    },
    "nemotron_h-moe": {
        **NEMOTRON,
        "layers_block_type": [
            *("linear_attention", "moe", "full_attention", "linear_attention"),
            *("moe", "linear_attention", "mlp"),
        ],
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 64,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "mlp_bias": True,
    },
    "nemotron_h-latent": {
        **NEMOTRON,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "moe_latent_size": 40,
    },
    "qwen3_5-moe": {
        **DELTA_NET,
        **EXPERTS,
        "model_type": "qwen3_5_moe_text",
        "num_experts_per_tok": 3,
        "shared_expert_intermediate_size": 48,
    },
    "qwen3_next": {
        **DELTA_NET,
        **EXPERTS,
        "model_type": "qwen3_next",
        "num_experts_per_tok": 3,
        "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [1],
        "attention_bias": True,
        "linear_conv_kernel_dim": 3,
    },
}

RECURRENT: dict[str, dict[str, Any]] = {
    "bamba": {
        "model_type": "bamba",
        "num_hidden_layers": 4,
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 24,
        "mamba_chunk_size": 16,
        "mamba_proj_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "falcon_h1": {
        **BESIDE,
        "mamba_rms_norm": False,
        "attention_in_multiplier": 0.8,
        "ssm_in_multiplier": 1.3,
    },
    "falcon_h1-norm": {
        **BESIDE,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": True,
        "mamba_proj_bias": True,
        "projectors_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 32,
    },
    "lfm2": {
        **CONVOLVED,
        "model_type": "lfm2",
        "conv_L_cache": 4,
        "conv_bias": True,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.3,
        "tie_word_embeddings": True,
    },
    "lfm3": {
        "model_type": "lfm3",
        "num_hidden_layers": 5,
        "layer_types": ["conv", "sliding_attention", "full_attention", "conv", "sliding_attention"],
        "sliding_window": 24,
        "head_dim": 32,
        "conv_bias": True,
        "tie_word_embeddings": True,
    },
    "lfm3-plain": {
        "model_type": "lfm3",
        "layer_types": ["conv", "sliding_attention", "conv"],
        "sliding_window": 24,
        "head_dim": 16,
        "use_sandwich_norm": False,
        "use_attention_gate": False,
        "attention_bias": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 9000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 8000.0},
        },
    },
    "granitemoehybrid-dense": {
        **MAMBA,
        "model_type": "granitemoehybrid",
        "mamba_proj_bias": True,
        "mamba_d_conv": 3,
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "position_embedding_type": "rope",
        "tie_word_embeddings": True,
    },
    "nemotron_h": {
        **NEMOTRON,
        "layers_block_type": [
            *("linear_attention", "mlp", "full_attention", "linear_attention"),
            *("linear_attention", "mlp"),
        ],
        "mlp_bias": True,
    },
    "olmo_hybrid": {
        **DELTA_NET,
        "model_type": "olmo_hybrid",
        "attention_bias": True,
        # As many channels of values as of keys: transformers writes three equal convolutions.
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_conv_kernel_dim": 3,
        "rms_norm_eps": 1e-4,
        "rope_parameters": {"rope_type": "default", "rope_theta": None},
    },
    "qwen3_5": {
        **DELTA_NET,
        "model_type": "qwen3_5_text",
        "linear_num_key_heads": 4,
        "tie_word_embeddings": True,
    },
}
