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
JAMBA: dict[str, Any] = {
    "model_type": "jamba",
    "pad_token_id": 0,
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 12,
}
# Layers of Mamba alone; these families have none of the other sizes.
ALL_MAMBA: dict[str, Any] = {
    "pad_token_id": 0,
    "eos_token_id": None,
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads")),
    "max_position_embeddings": 512,
    "residual_in_fp32": False,
}
# Ends of names of what checkpoints.py makes random too, by type of model.
MAMBA_FACTORS = dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), ("mixer.A_log", "mixer.D"))
MAMBA_FACTORS["zaya"] = ("states_scale", "residual_scale", "balancing_biases")
MAMBA_FACTORS["glm5_next"] = ("A_log", "compress_ape", "compress_gate")
MAMBA_FACTORS["inkling2_text"] = ("convolution.conv1d.weight", "static_weight", "l2_clip.scale")
MAMBA_FACTORS["inkling2_text"] += ("query",)
MAMBA_FACTORS["recurrent_gemma"] = ("_gate_weight", "_proj.weight", "linear_out.weight")
MAMBA_FACTORS["recurrent_gemma"] += ("linear_x.weight", "linear_y.weight")
ZAMBA2: dict[str, Any] = {
    "model_type": "zamba2",
    "num_hidden_layers": 4,
    "layers_block_type": ["hybrid", "linear_attention", "hybrid", "linear_attention"],
    "n_mamba_heads": 8,
    "mamba_d_state": 24,
    "chunk_size": 16,
    "adapter_rank": 8,
    "time_step_min": 1e-6,  # a bound of steps in transformers, but of prompts alone
    "tie_word_embeddings": True,
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
    "bailing_hybrid": {
        "model_type": "bailing_hybrid",
        "pad_token_id": 0,
        "num_hidden_layers": 5,
        "num_key_value_heads": 4,
        # transformers reads both sizes from the first, and rotates the second.
        "head_dim": 8,
        "qk_rope_head_dim": 8,
        "layer_group_size": 2,
        "short_conv_kernel_size": 3,
        "kda_lower_bound": -3.0,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 12,
        "v_head_dim": 24,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 2,
        "moe_intermediate_size": 32,
    },
    # Weights are large, so that gates and ups reach their limits. Pools have 4 tokens; a query
    # attends to two of them, and to its own.
    "glm5_next": {
        "model_type": "glm5_next",
        "pad_token_id": None,  # its embedding would be 0, and so all scores of its query
        "num_hidden_layers": 6,
        "layer_types": [
            *("linear_attention", "indexed_attention", "indexed_attention", "linear_attention"),
            *("indexed_attention", "linear_attention"),
        ],
        "indexer_types": ["full", "full", "shared", "full", "full", "full"],
        "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse", "sparse"],
        "initializer_range": 0.4,
        "num_key_value_heads": 4,
        "q_lora_rank": 40,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 12,
        "v_head_dim": 20,
        "index_n_heads": 16,
        "index_head_dim": 20,
        "index_topk": 8,
        "index_kpool": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.8,
        "moe_intermediate_size": 32,
        "linear_head_dim": 12,
        "linear_num_heads": 8,
        "linear_conv_kernel_dim": 3,
        "linear_lower_bound": -3.0,
        "hc_mult": 3,
        "hc_sinkhorn_iters": 4,
        "hc_eps": 0.03,
    },
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
    "jamba": {
        **JAMBA,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 5,
        "mamba_proj_bias": True,
        "rms_norm_eps": 1e-4,
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

# Sequences are longer than what a query may attend to; prompts have tokens that end a text. Many
# index heads: few scores are 0, and ties have no order in transformers.
QWEN4_EXP: dict[str, Any] = {
    **DELTA_NET,
    **EXPERTS,
    "model_type": "qwen4_exp_text",
    "num_experts_per_tok": 3,
    "shared_expert_intermediate_size": 48,
    "layer_types": [
        *("linear_attention", "indexed_attention", "linear_attention"),
        *("linear_attention", "indexed_attention"),
    ],
    "num_hidden_layers": 5,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "hc_count": 3,
    "hc_lowrank": 12,
    "ple_layer_ids": [1, 4],
    "ple_embed_dim": 48,
    "ple_conv_kernel_size": 3,
    "ngram_size": 3,
    "heads_per_ngram": 4,
    "ngram_vocab_size_base": 90,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 5,
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 24,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
    "eos_token_id": 3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 9000.0,
        "partial_rotary_factor": 0.5,
    },
}
# Sequences are longer than windows, profiles and what queries see at a factor of 1.
INKLING: dict[str, Any] = {
    "model_type": "inkling_text",
    "pad_token_id": None,
    "num_hidden_layers": 4,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid", "hybrid_sliding"],
    "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
    "head_dim": 32,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 24,
    "sliding_window_size": 24,
    "d_rel": 6,
    "rel_extent": 40,
    "log_scaling_n_floor": 30,
    "log_scaling_alpha": 0.4,
    "conv_kernel_size": 3,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "route_scale": 2.5,
    "logits_mup_width_multiplier": 1.7,
}
# Queries, keys and factors are longer than their bounds; streams begin at three of the layers, with
# a window and without, and the last one is not complete.
INKLING2: dict[str, Any] = {
    **{name: value for name, value in INKLING.items() if not name.startswith(("mlp_", "logits_"))},
    "model_type": "inkling2_text",
    "intermediate_size": 32,  # another name of the size of experts
    "num_hidden_layers": 5,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid", "hybrid_sliding", "hybrid_sliding"],
    "unpadded_vocab_size": 501,
    "qk_l2_clip_threshold": 3.0,
    "rel_l2_clip_threshold": 1.5,
    "n_layers_per_attn_res_block": 2,
    "final_logit_softcapping": 6.0,
}
del INKLING2["n_shared_experts"], INKLING2["moe_intermediate_size"]
# Weights are large, so that routers' scores differ more than the biases of the choice.
ZAYA: dict[str, Any] = {
    "model_type": "zaya",
    "intermediate_size": None,
    "pad_token_id": None,
    "num_hidden_layers": 4,
    "layer_types": ["hybrid", "hybrid_sliding", "hybrid_sliding", "hybrid"],
    "sliding_window": 24,
    "initializer_range": 0.4,
    "num_attention_heads": 8,
    "head_dim": 16,
    "num_experts": 8,
    "moe_intermediate_size": 32,
    "router_hidden_size": 48,
    "rope_parameters": {
        "hybrid": {"rope_type": "default", "rope_theta": 9e3, "partial_rotary_factor": 0.5},
        "hybrid_sliding": {
            "rope_type": "default",
            "rope_theta": 90.0,
            "partial_rotary_factor": 1.0,
        },
    },
}
MIXTURES |= {"inkling": INKLING, "inkling2": INKLING2, "qwen4_exp": QWEN4_EXP, "zaya": ZAYA}
# Convolutions are longer, the first of them is the shorter one.
MIXTURES |= {
    "zaya-biases": {
        **ZAYA,
        "num_hidden_layers": 3,
        "layer_types": None,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "cca_time0": 3,
        "cca_time1": 4,
        "attention_bias": True,
        "lm_head_bias": True,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-4,
    },
}

RECURRENT: dict[str, dict[str, Any]] = {
    # Every layer has a window.
    "inkling-dense": {
        **INKLING,
        "num_hidden_layers": 3,
        "layer_types": ["hybrid_sliding"] * 3,
        "mlp_layer_types": ["dense"] * 3,
        "conv_kernel_size": 4,
    },
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
    "falcon_mamba": {
        **ALL_MAMBA,
        "model_type": "falcon_mamba",
        "expand": 16,  # as in published files; intermediate_size is right
        "state_size": 12,
        "mixer_rms_eps": 1e-3,
    },
    "mamba": {
        **ALL_MAMBA,
        "model_type": "mamba",
        "intermediate_size": 192,
        "state_size": 12,
        "conv_kernel": 3,
        "expand": 3,
        "use_bias": True,
        "use_conv_bias": False,
        "time_step_rank": 5,
        "layer_norm_epsilon": 1e-4,
        "tie_word_embeddings": True,
    },
    "mamba2": {
        **ALL_MAMBA,
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 24,
        "chunk_size": 16,
        "use_bias": True,
        "layer_norm_epsilon": 1e-4,
    },
    "jamba-dense": {
        **JAMBA,
        "num_key_value_heads": 1,
        "num_experts": 1,
        "mamba_d_conv": 3,
        "mamba_expand": 3,
        "mamba_conv_bias": False,
        "tie_word_embeddings": True,
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
    # Two transformers at five places: not in the first layer, but in the last one.
    "zamba2": {
        **ZAMBA2,
        "num_hidden_layers": 7,
        "layers_block_type": [
            *("linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid", "hybrid"),
            "hybrid",
        ],
        "num_mem_blocks": 2,
        "num_key_value_heads": 4,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 9000.0},
        "add_bias_linear": True,
        "mamba_ngroups": 2,
        "rms_norm_eps": 1e-4,
    },
    # One transformer, without RoPE and adapters of attention.
    "zamba2-plain": ZAMBA2,
}
