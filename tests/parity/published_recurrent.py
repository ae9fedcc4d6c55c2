"""Published config.json files of models with recurrent layers, and their numbers of parameters."""

from __future__ import annotations

from typing import Any

MINIMAX: dict[str, Any] = {
    "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144,
    "initializer_range": 0.02, "intermediate_size": 9216, "max_position_embeddings": 10240000,
    "num_attention_heads": 64, "num_experts_per_tok": 2, "num_hidden_layers": 80,
    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
    "postnorm": True, "rms_norm_eps": 1e-05, "rope_theta": 10000000, "rotary_dim": 64,
    "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid", "sliding_window": None, "tie_word_embeddings": False,
    "vocab_size": 200064,
}  # fmt: skip
JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"], "attention_dropout": 0.0, "attn_layer_offset": 4,
    "attn_layer_period": 8, "expert_layer_offset": 1, "expert_layer_period": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16,
    "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_proj_bias": False,
    "max_position_embeddings": 262144, "model_type": "jamba", "num_attention_heads": 32,
    "num_experts": 16, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_logits_to_keep": 1, "output_router_logits": False,
    "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001, "sliding_window": None,
    "tie_word_embeddings": False, "use_mamba_kernels": True, "vocab_size": 65536,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "conv_kernel": 4, "hidden_act": "silu", "initializer_range": 0.1, "layer_norm_epsilon": 1e-05,
    "rescale_prenorm_residual": False, "residual_in_fp32": True, "time_step_floor": 0.0001,
    "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001,
    "time_step_scale": 1.0, "use_bias": False, "use_conv_bias": True,
}  # fmt: skip
ZAMBA2: dict[str, Any] = {
    "add_bias_linear": False, "architectures": ["Zamba2ForCausalLM"], "attention_dropout": 0.0,
    "chunk_size": 256, "initializer_range": 0.02, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_headdim": 64, "max_position_embeddings": 4096, "model_type": "zamba2",
    "num_attention_heads": 32, "num_key_value_heads": 32, "num_logits_to_keep": 1,
    "num_query_groups": 32, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_theta": 10000,
    "time_step_floor": 0.0001, "time_step_limit": None, "time_step_max": 0.1,
    "time_step_min": 0.001, "use_conv_bias": True, "use_long_context": False,
    "use_mamba_kernels": True, "use_mem_eff_path": False, "vocab_size": 32000,
}  # fmt: skip
GRIFFIN: dict[str, Any] = {
    "architectures": ["RecurrentGemmaForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "attention_window_size": 2048,
    "block_types": ["recurrent", "recurrent", "attention"], "conv1d_width": 4,
    "embeddings_scale_by_sqrt_dim": True, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "logits_soft_cap": 30.0,
    "model_type": "recurrent_gemma", "num_key_value_heads": 1, "pad_token_id": 0,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "vocab_size": 256000, "w_init_variance_scale": 0.01,
}  # fmt: skip
PUBLISHED_RECURRENT: dict[str, tuple[int, dict[str, Any]]] = {
    "tiiuae/falcon-mamba-7b": (7_272_665_088, {
        **MAMBA, "architectures": ["FalconMambaForCausalLM"], "expand": 16, "hidden_size": 4096,
        "intermediate_size": 8192, "model_type": "falcon_mamba", "num_hidden_layers": 64,
        "pad_token_id": 11, "state_size": 16, "tie_word_embeddings": False,
        "time_step_rank": 256, "vocab_size": 65024,
    }),
    "state-spaces/mamba-130m-hf": (129_135_360, {
        **MAMBA, "architectures": ["MambaForCausalLM"], "d_inner": 1536, "d_model": 768,
        "expand": 2, "fused_add_norm": True, "hidden_size": 768, "intermediate_size": 1536,
        "model_type": "mamba", "n_layer": 24, "num_hidden_layers": 24, "pad_token_id": 0,
        "pad_vocab_size_multiple": 8, "rms_norm": True, "ssm_cfg": {}, "state_size": 16,
        "time_step_rank": 48, "vocab_size": 50280,
    }),
    "mistralai/Mamba-Codestral-7B-v0.1": (7_285_403_648, {
        **MAMBA, "architectures": ["Mamba2ForCausalLM"], "chunk_size": 256, "expand": 2,
        "head_dim": 64, "hidden_size": 4096, "intermediate_size": 8192, "model_type": "mamba2",
        "n_groups": 8, "norm_before_gate": True, "num_heads": 128, "num_hidden_layers": 64,
        "pad_token_id": 0, "rms_norm": True, "state_size": 128, "tie_word_embeddings": False,
        "time_step_limit": [0.0, float("inf")], "time_step_rank": 256, "vocab_size": 32768,
    }),
    "LiquidAI/LFM3-1.7B": (1_728_801_536, {
        "architectures": ["Lfm3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "conv_L_cache": 7, "conv_bias": False, "dtype": "bfloat16", "head_dim": 128,
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 7680,
        "layer_types": ["conv", "conv", "full_attention", "conv"]
        + ["sliding_attention", "conv", "full_attention", "conv"] * 5,
        "max_position_embeddings": 128000, "model_type": "lfm3", "norm_eps": 1e-05,
        "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 4,
        "pad_token_id": 124893, "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.5, "rope_theta": 1e6, "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 256, "tie_word_embeddings": True, "use_attention_gate": True,
        "use_sandwich_norm": True, "vocab_size": 128000,
    }),
    # Sizes from descriptions of these three models; the counts are those of transformers' models.
    # As transformers' defaults describe it: the published file was not at hand.
    "Zyphra/Zamba-7B-v1": (7_232_490_496, {
        "architectures": ["ZambaForCausalLM"], "attention_dropout": 0.0, "attn_layer_offset": 4,
        "attention_head_dim": 464, "attention_hidden_size": 7424, "attn_layer_period": 6,
        "hidden_act": "gelu", "hidden_mamba_act": "silu", "hidden_size": 3712,
        "initializer_range": 0.02, "intermediate_size": 14848, "layers_block_type": [
            "hybrid" if i == 2 or (i % 6 == 1 and i > 1) else "mamba" for i in range(76)
        ],
        "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 232,
        "mamba_expand": 2, "mamba_proj_bias": False, "max_position_embeddings": 4096,
        "model_type": "zamba", "n_mamba_heads": 2, "num_attention_heads": 16,
        "num_hidden_layers": 76, "num_key_value_heads": 16, "num_logits_to_keep": 1,
        "pad_token_id": 0, "rms_norm_eps": 1e-05, "tie_word_embeddings": True,
        "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001,
        "use_associative_scan": True, "use_mamba_kernels": True, "vocab_size": 32000,
    }),
    "Zyphra/Zamba2-1.2B": (1_215_064_704, {
        **ZAMBA2, "adapter_rank": 128, "attention_head_dim": 128, "attention_hidden_size": 4096,
        "hidden_act": "gelu", "hidden_size": 2048, "hybrid_layer_ids": [5, 11, 17, 23, 29, 35],
        "intermediate_size": 8192, "kv_channels": 64, "layers_block_type": (["mamba"] * 5
        + ["hybrid"]) * 6 + ["mamba"] * 2, "mamba_d_state": 128, "mamba_ngroups": 1,
        "n_mamba_heads": 64, "num_hidden_layers": 38, "num_mem_blocks": 1, "use_mem_rope": True,
        "use_shared_attention_adapter": True,
    }),
    "Zyphra/Zamba2-2.7B": (2_662_214_560, {
        **ZAMBA2, "attention_head_dim": 160, "attention_hidden_size": 5120, "hidden_size": 2560,
        "hybrid_layer_ids": [6, 12, 18, 24, 30, 36, 42, 47, 51], "intermediate_size": 10240,
        "kv_channels": 80, "mamba_d_state": 64, "mamba_ngroups": 1, "n_mamba_heads": 80,
        "num_hidden_layers": 54, "num_mem_blocks": 2, "use_mem_rope": False,
        "use_shared_attention_adapter": False,
    }),
    "Zyphra/Zamba2-7B": (7_356_749_648, {
        **ZAMBA2, "attention_head_dim": 224, "attention_hidden_size": 7168, "hidden_size": 3584,
        "intermediate_size": 14336, "kv_channels": 112, "layers_block_type": ["mamba"] * 6
        + ["hybrid"] + (["mamba"] * 4 + ["hybrid"]) + (["mamba"] * 5 + ["hybrid"]) * 11
        + ["mamba"] * 3, "mamba_d_state": 64, "mamba_ngroups": 2, "n_mamba_heads": 112,
        "num_hidden_layers": 81, "num_mem_blocks": 2, "use_mem_rope": True,
        "use_shared_attention_adapter": False,
    }),
    # The count includes the biases of the choice of experts.
    "Zyphra/ZAYA1-8B": (8_840_489_464, {
        "architectures": ["ZayaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 2, "cca_time0": 2, "cca_time1": 2, "dtype": "bfloat16",
        "eos_token_id": 106, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "layer_types": ["hybrid"] * 40, "lm_head_bias": False,
        "max_position_embeddings": 131072, "model_type": "zaya", "moe_intermediate_size": 2048,
        "num_attention_heads": 8, "num_experts": 16, "num_experts_per_tok": 1,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "output_router_logits": False,
        "pad_token_id": 0, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "hybrid": {
                "partial_rotary_factor": 0.5, "rope_theta": 5000000, "rope_type": "default",
            },
            "hybrid_sliding": {
                "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default",
            },
            "rope_type": "default",
        },
        "router_hidden_size": 256, "sliding_window": None, "tie_word_embeddings": True,
        "use_cache": True, "vocab_size": 262272,
    }),
    # Sizes from descriptions of these two models, the other fields as transformers has them.
    "google/recurrentgemma-2b": (2_682_862_080, {
        **GRIFFIN, "_block_types": (["recurrent"] * 2 + ["attention"]) * 8 + ["recurrent"] * 2,
        "final_w_init_variance_scale": 0.07692307692307693, "hidden_size": 2560,
        "intermediate_size": 15360, "lru_width": 2560, "num_attention_heads": 10,
        "num_hidden_layers": 26,
    }),
    "google/recurrentgemma-9b": (8_579_977_216, {
        **GRIFFIN, "final_w_init_variance_scale": 0.05263157894736842, "hidden_size": 4096,
        "intermediate_size": 24576, "lru_width": 4096, "num_attention_heads": 16,
        "num_hidden_layers": 38,
    }),
    "ai21labs/AI21-Jamba-1.5-Mini": (51_570_323_328, JAMBA),
    # Sizes from descriptions of these two models, the other fields as in Mini.
    "ai21labs/AI21-Jamba-1.5-Large": (398_555_145_696, {
        **JAMBA, "hidden_size": 8192, "intermediate_size": 24576, "mamba_dt_rank": 512,
        "num_attention_heads": 64, "num_hidden_layers": 72,
    }),
    "ai21labs/AI21-Jamba-Reasoning-3B": (3_029_337_472, {
        **JAMBA, "attn_layer_offset": 7, "attn_layer_period": 14, "hidden_size": 2560,
        "intermediate_size": 8192, "mamba_dt_rank": 160, "num_attention_heads": 20,
        "num_experts": 1, "num_hidden_layers": 28, "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    }),
    "MiniMaxAI/MiniMax-M1-80k": (456_089_655_296, {
        **MINIMAX, "architectures": ["MiniMaxM1ForCausalLM"], "model_type": "minimax_m1",
        "attn_type_list": ([0] * 7 + [1]) * 10,
        "auto_map": {"AutoConfig": "configuration_minimax_m1.MiniMaxM1Config"},
        "layernorm_full_attention_alpha": 3.5565588200778455,
        "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_alpha": 3.5565588200778455,
        "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_alpha": 3.5565588200778455,
        "layernorm_mlp_beta": 1.0,
    }),
    "MiniMaxAI/MiniMax-Text-01-hf": (456_089_655_296, {
        **MINIMAX, "architectures": ["MiniMaxForCausalLM"], "model_type": "minimax",
        "block_size": 256, "full_attn_alpha_factor": 3.5565588200778455,
        "full_attn_beta_factor": 1.0,
        "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
        "linear_attn_alpha_factor": 3.5565588200778455, "linear_attn_beta_factor": 1.0,
        "mlp_alpha_factor": 3.5565588200778455, "mlp_beta_factor": 1.0,
    }),
    # The values are transformers' defaults; the count includes the routers' biases.
    "inclusionAI/Ling-3.0-Flash": (124_414_211_552, {
        "architectures": ["BailingHybridForCausalLM"], "attention_bias": False,
        "dtype": "bfloat16", "first_k_dense_replace": 2, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 2560, "intermediate_size": 6144, "kda_lower_bound": -5.0,
        "kda_safe_gate": True, "kv_lora_rank": 512, "layer_group_size": 6,
        "model_max_length": 262144, "model_type": "bailing_hybrid", "moe_intermediate_size": 768,
        "moe_renormalize": True, "num_attention_heads": 32, "num_expert_group": 8,
        "num_experts": 512, "num_experts_per_token": 8, "num_hidden_layers": 42,
        "num_key_value_heads": 32, "num_nextn_predict_layers": 1, "num_shared_experts": 1,
        "pad_token_id": 156892, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06, "rope_theta": 6000000.0, "routed_scaling_factor": 2.5,
        "short_conv_kernel_size": 4, "tie_word_embeddings": False, "topk_group": 4,
        "v_head_dim": 128, "vocab_size": 157184,
    }),
    # The values are transformers' defaults; the count is its model's without the part for images,
    # and includes the routers' biases.
    "zai-org/GLM-5.3-Flash": (313_326_828_862, {
        "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
        "image_token_id": 154854, "tie_word_embeddings": False, "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "hc_eps": 1e-06, "hc_mult": 4,
            "hc_sinkhorn_iters": 20, "head_dim": 0, "hidden_act": "silu", "hidden_size": 4096,
            "index_head_dim": 128, "index_kpool": 16, "index_kpool_always_select_tail": True,
            "index_n_heads": 32, "index_topk": 2048, "indexer_types": ["full"] * 45,
            "initializer_range": 0.02, "intermediate_size": 12288, "kv_lora_rank": 512,
            "layer_types": (["linear_attention"] * 3 + ["indexed_attention"]) * 11
            + ["linear_attention"],
            "linear_conv_kernel_dim": 4, "linear_head_dim": 128, "linear_lower_bound": -5.0,
            "linear_num_heads": 64, "max_position_embeddings": 1048576,
            "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42, "model_type": "glm5_next_text",
            "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 288,
            "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64,
            "num_experts_per_tok": 8, "num_hidden_layers": 45, "num_key_value_heads": 64,
            "output_router_logits": False, "pad_token_id": 154820, "q_lora_rank": 1536,
            "qk_head_dim": 256, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0,
            "rms_norm_eps": 1e-05, "routed_scaling_factor": 2.5, "router_aux_loss_coef": 0.001,
            "swiglu_limit": 10.0, "tie_word_embeddings": False, "topk_group": 1,
            "use_cache": True, "v_head_dim": 256, "vocab_size": 154880,
        },
        "vision_config": {"model_type": "glm5_next_vision", "depth": 24, "hidden_size": 1024},
    }),
    # The values are transformers' defaults. It has none for the indexer, nor for which layers have
    # n-grams; what stands here for these was chosen.
    "Qwen/Qwen4-Exp": (108_347_421_824, {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "image_token_id": 248056,
        "model_type": "qwen4_exp", "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": [248046, 248044],
            "hc_count": 4, "hc_lowrank": 320, "head_dim": 256, "heads_per_ngram": 8,
            "hidden_act": "silu", "hidden_size": 2048, "indexer_budget": 2048,
            "indexer_compress_ratio": 16, "indexer_head_dim": 128, "indexer_kv_heads": 1,
            "indexer_n_heads": 16, "initializer_range": 0.02,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_value_head_dim": 128,
            "make_ngram_vocab_size_divisible_by": 128, "max_position_embeddings": 32768,
            "model_type": "qwen4_exp_text", "moe_intermediate_size": 512, "ngram_size": 3,
            "ngram_vocab_size_base": 20000000, "norm_topk_prob": True,
            "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
            "num_hidden_layers": 40, "num_key_value_heads": 2, "output_gate_type": None,
            "output_router_logits": False, "ple_conv_kernel_size": 4, "ple_embed_dim": 2048,
            "ple_layer_ids": [2], "rms_norm_eps": 1e-06, "rope_parameters": {
                "mrope_interleaved": True, "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25, "rope_theta": 1e7, "rope_type": "default",
            },
            "router_aux_loss_coef": 0.001, "seed": 1234, "shared_expert_intermediate_size": 512,
            "split_ngram_parts": 512, "tie_word_embeddings": False, "vocab_size": 248320,
        },
        "tie_word_embeddings": False, "video_token_id": 248057,
        "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": "qwen4_exp_vision"},
        "vision_end_token_id": 248054, "vision_start_token_id": 248053,
    }),
    # The values are transformers' defaults, under names that it reads in published files. It has
    # none for dense layers, the scale of scores and spare rows; what stands here was chosen.
    "thinkingmachines/Inkling": (947_013_694_018, {
        "architectures": ["InklingForConditionalGeneration"], "audio_bos_token_id": 200020,
        "audio_config": {"mel_vocab_size": 256, "model_type": "inkling_audio", "n_mel_bins": 80},
        "audio_token_id": 200053, "image_bos_token_id": 200005, "image_token_id": 200054,
        "model_type": "inkling_mm_model", "mtp_config": {
            "chain_hidden_post_norm": False, "num_nextn_predict_layers": 3,
        },
        "text_config": {
            "d_rel": 16, "dense_intermediate_size": 24576, "dense_mlp_idx": 2, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 6144, "intermediate_size": 3072,
            "local_layer_ids": [i for i in range(66) if (i + 1) % 6], "log_scaling_alpha": 0.1,
            "log_scaling_n_floor": 8192, "logits_mup_width_multiplier": 24.0,
            "model_max_length": 131072, "model_type": "inkling_text", "n_routed_experts": 256,
            "n_shared_experts": 2, "num_attention_heads": 64, "num_experts_per_tok": 6,
            "num_hidden_layers": 66, "num_key_value_heads": 8, "rel_extent": 1024,
            "rms_norm_eps": 1e-06, "rms_norm_eps_moe_gate": 1e-06, "route_scale": 8.0,
            "sconv_kernel_size": 4, "shared_expert_sink": True, "sliding_window_size": 512,
            "swa_head_dim": 128, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 16,
            "unpadded_vocab_size": 200058, "vocab_size": 201024,
        },
        "vision_config": {"hidden_size": 1024, "model_type": "inkling_vision", "n_layers": 24},
    }),
    # As transformers' defaults describe it: the published file was not at hand.
    "thinkingmachines/Inkling-2": (593_714_045_952, {
        "architectures": ["Inkling2ForConditionalGeneration"], "image_token_id": 200054,
        "model_type": "inkling2", "text_config": {
            "attention_dropout": 0.0, "conv_kernel_size": 4, "d_rel": 16,
            "final_logit_softcapping": 30.0, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 4608, "initializer_range": 0.02,
            "layer_types": ["hybrid" if i % 6 == 5 else "hybrid_sliding" for i in range(48)],
            "log_scaling_alpha": 0.1, "log_scaling_n_floor": 128000,
            "max_position_embeddings": 1048576, "mlp_gate_softcap": 4.0, "mlp_up_softcap": 25.0,
            "model_type": "inkling2_text", "moe_intermediate_size": 2304,
            "n_layers_per_attn_res_block": 6, "n_routed_experts": 384, "num_attention_heads": 48,
            "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 8,
            "pad_token_id": None, "qk_l2_clip_threshold": 22.627416997969522, "rel_extent": 1024,
            "rel_l2_clip_threshold": 8.0, "rms_norm_eps": 1e-06, "route_scale": 8.0,
            "scoring_func": "sigmoid", "sliding_window_size": 1024, "swa_head_dim": 128,
            "swa_num_attention_heads": 48, "swa_num_key_value_heads": 8,
            "unpadded_vocab_size": 200058, "vocab_size": 201024,
        },
        "vision_config": {"hidden_size": 1024, "model_type": "inkling2_vision"},
    }),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": (49_122_681_728, {
        "architectures": ["KimiLinearForCausalLM"], "dtype": "bfloat16", "eos_token_id": 163586,
        "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304,
        "initializer_range": 0.02, "intermediate_size": 9216, "kv_lora_rank": 512,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128,
            "kda_layers": [i for i in range(1, 27) if i % 4], "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
        "mla_use_nope": True, "model_max_length": 1048576, "model_type": "kimi_linear",
        "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
        "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8,
        "num_hidden_layers": 27, "num_key_value_heads": 32, "num_nextn_predict_layers": 0,
        "num_shared_experts": 1, "pad_token_id": 163839, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000.0, "routed_scaling_factor": 2.446,
        "tie_word_embeddings": False, "topk_group": 1, "use_grouped_topk": True,
        "v_head_dim": 128, "vocab_size": 163840,
    }),
    "allenai/Olmo-Hybrid-7B": (7_430_870_688, {
        "architectures": ["OlmoHybridForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "dtype": "bfloat16", "hidden_act": "silu", "hidden_size": 3840,
        "initializer_range": 0.02, "intermediate_size": 11008,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
        "linear_a_log_max": 16.0, "linear_a_log_min": 0.0, "linear_allow_neg_eigval": True,
        "linear_conv_kernel_dim": 4, "linear_dt_init_floor": 0.0001, "linear_dt_max": 0.1,
        "linear_dt_min": 0.001, "linear_key_head_dim": 96, "linear_num_key_heads": 30,
        "linear_num_value_heads": 30, "linear_value_head_dim": 192,
        "max_position_embeddings": 65536, "model_type": "olmo_hybrid",
        "num_attention_heads": 30, "num_hidden_layers": 32, "num_key_value_heads": 30,
        "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_parameters": {
            "rope_theta": None, "rope_type": "default",
        },
        "tie_word_embeddings": False, "vocab_size": 100352,
    }),
}  # fmt: skip
