"""Published configurations of Gemma 3n and 4."""

from __future__ import annotations

from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"


def gemma4(sound: bool, period: int, **fields: Any) -> dict[str, Any]:
    """A config.json with images, perhaps with sound; the last layer of each period is full."""
    kinds = [FULL if (i + 1) % period == 0 else SLIDING for i in range(fields["num_hidden_layers"])]
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": False,
        "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": False, "eos_token_id": 1,
        "expert_intermediate_size": None, "final_logit_softcapping": 30.0,
        "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 256, "initializer_range": 0.02, "layer_types": kinds,
        "max_position_embeddings": 131072, "model_type": "gemma4_text",
        "moe_intermediate_size": None, "num_experts": None, "num_global_key_value_heads": None,
        "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-06,
        "rope_parameters": {
            FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
            SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 512, "tie_word_embeddings": True, "top_k_experts": None,
        "use_bidirectional_attention": None, "use_cache": True, "use_double_wide_mlp": False,
        "vocab_size": 262144, "vocab_size_per_layer_input": 262144, **fields,
    }  # fmt: skip
    return {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "audio_config": {"hidden_size": 1024} if sound else None, "audio_token_id": 258881,
        "boa_token_id": 256000, "boi_token_id": 255999, "eoa_token_index": 258883,
        "image_token_id": 258880, "text_config": text, "tie_word_embeddings": True,
        "vision_config": {"hidden_size": 768, "model_type": "gemma4_vision"},
        "vision_soft_tokens_per_image": 280,
    }  # fmt: skip


GEMMA4_LARGE: dict[str, Any] = {
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "use_bidirectional_attention": "vision",
}
# Without the encoders of images and sound.
PUBLISHED_GEMMA: dict[str, tuple[int, dict[str, Any]]] = {
    "google/gemma-3n-E4B-it": (6_835_235_568, {
        "architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n",
        "audio_config": {"model_type": "gemma3n_audio"}, "audio_soft_tokens_per_image": 188,
        "text_config": {
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 25, "altup_active_idx": 0,
            "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_lr_multiplier": 1.0,
            "altup_num_inputs": 4, "attention_bias": False, "attention_dropout": 0.0,
            "final_logit_softcapping": 30.0, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2048,
            "hidden_size_per_layer_input": 256,
            "initializer_range": 0.02, "intermediate_size": [16384] * 35, "laurel_rank": 64,
            "layer_types": [FULL if (i + 1) % 5 == 0 else SLIDING for i in range(35)],
            "max_position_embeddings": 32768, "model_type": "gemma3n_text",
            "num_attention_heads": 8, "num_hidden_layers": 35, "num_key_value_heads": 2,
            "num_kv_shared_layers": 15, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1e6,
            "sliding_window": 512, "torch_dtype": "bfloat16", "use_cache": True,
            "vocab_size": 262400, "vocab_size_per_layer_input": 262144,
        },
        "vision_config": {"model_type": "gemma3n_vision"}, "vision_soft_tokens_per_image": 256,
    }),
    "google/gemma-4-E2B-it": (4_628_569_379, gemma4(
        True, 5, hidden_size=1536, intermediate_size=6144, num_hidden_layers=35,
        num_attention_heads=8, num_key_value_heads=1, num_kv_shared_layers=20,
        use_double_wide_mlp=True,
    )),
    "google/gemma-4-E4B-it": (7_463_013_418, gemma4(
        True, 6, hidden_size=2560, intermediate_size=10240, num_hidden_layers=42,
        num_attention_heads=8, num_key_value_heads=2, num_kv_shared_layers=18,
    )),
    "google/gemma-4-31B-it": (30_697_345_340, gemma4(
        False, 6, **GEMMA4_LARGE, hidden_size=5376, intermediate_size=21504, num_hidden_layers=60,
        num_attention_heads=32, num_key_value_heads=16, num_global_key_value_heads=4,
    )),
    "google/gemma-4-26B-A4B-it": (25_233_141_790, gemma4(
        False, 6, **GEMMA4_LARGE, hidden_size=2816, intermediate_size=2112, num_hidden_layers=30,
        num_attention_heads=16, num_key_value_heads=8, num_global_key_value_heads=2,
        enable_moe_block=True, moe_intermediate_size=704, num_experts=128, top_k_experts=8,
    )),
}  # fmt: skip
