"""Published config.json files of Hunyuan, and the models' numbers of parameters."""

from __future__ import annotations

from typing import Any

PUBLISHED_NEWER: dict[str, tuple[int, dict[str, Any]]] = {
    "tencent/Hunyuan-7B-Instruct": (7_504_568_320, {
        "add_classification_head": False, "anyres_pooling_size": 2,
        "architectures": ["HunYuanDenseV1ForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "attention_head_dim": 128, "cla_share_factor": 2,
        "class_num": 0, "dense_list": [4096, 0], "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "im_end_id": 5, "im_start_id": 4, "intermediate_size": 14336,
        "mask_init_id": 12, "max_position_embeddings": 32768, "mlp_bias": False,
        "model_type": "hunyuan_v1_dense", "norm_type": "rms", "num_attention_heads": 32,
        "num_experts": 1, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_media_embeds": 257, "org_vocab_size": 128167, "pad_id": 127961,
        "pool_type": "last", "position_embedding_xdrope": False, "rms_norm_eps": 1e-05,
        "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0,
                         "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"},
        "rope_theta": 10000.0, "tie_word_embeddings": True, "use_cla": False,
        "use_qk_norm": True, "use_rotary_pos_emb": True, "vit_token": 64, "vocab_size": 128167,
    }),
    "tencent/Hunyuan-A13B-Instruct": (80_393_183_232, {
        "architectures": ["HunYuanMoEV1ForCausalLM"], "attention_bias": False,
        "attention_head_dim": 128, "cla_share_factor": 2, "group_limited_greedy": False,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 3072,
        "max_position_embeddings": 32768, "mlp_bias": False, "model_type": "hunyuan_v1_moe",
        "moe_drop_tokens": False, "moe_intermediate_size": [3072] * 32,
        "moe_layer_num_skipped": 0, "moe_random_routing_dropped_token": False,
        "moe_topk": [8] * 32, "norm_topk_prob": True, "norm_type": "rms",
        "num_attention_heads": 32, "num_experts": 64, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_shared_expert": [1] * 32, "rms_norm_eps": 1e-05,
        "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0,
                         "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"},
        "rope_theta": 10000.0, "routed_scaling_factor": 1.0, "tie_word_embeddings": True,
        "use_cla": False, "use_mixed_mlp_moe": True, "use_mla": False, "use_qk_norm": True,
        "use_rotary_pos_emb": True, "vocab_size": 128167,
    }),
    "tencent/Hy3-preview": (295_033_543_488, {
        "architectures": ["HYV3ForCausalLM"], "enable_attention_fp32_softmax": True,
        "enable_lm_head_fp32": True, "enable_moe_fp32_combine": True, "expert_hidden_dim": 1536,
        "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.006, "intermediate_size": 13312,
        "max_position_embeddings": 262144, "model_type": "hy_v3", "moe_intermediate_size": 1536,
        "moe_router_enable_expert_bias": True, "moe_router_use_sigmoid": True,
        "num_attention_heads": 64, "num_experts": 192, "num_experts_per_tok": 8,
        "num_hidden_layers": 80, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
        "num_shared_experts": 1, "output_router_logits": True, "qk_norm": True,
        "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 11158840.0,
                                                   "rope_type": "default"},
        "route_norm": True, "router_scaling_factor": 2.826, "tie_word_embeddings": False,
        "use_grouped_mm": False, "vocab_size": 120832,
    }),
}  # fmt: skip
