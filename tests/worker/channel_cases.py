"""Fields of config.json of tiny models with a state per channel; checkpoints.py writes them."""

from __future__ import annotations

from typing import Any

ZAMBA: dict[str, Any] = {
    "model_type": "zamba",
    "pad_token_id": 0,
    "num_hidden_layers": 4,
    "n_mamba_heads": 2,
    "mamba_d_state": 12,
    "tie_word_embeddings": True,
}
# Sequences are longer than the window. The root of the hidden size is no number of bfloat16.
GRIFFIN: dict[str, Any] = {
    "model_type": "recurrent_gemma",
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "attention_window_size": 24,
    "lru_width": 64,
    "logits_soft_cap": 6.0,
    "w_init_variance_scale": 0.1,
    "tie_word_embeddings": True,
}

CHANNELS: dict[str, dict[str, Any]] = {
    # Places by the default rule: layers 2, 4 and 7. Four ranks share heads of Mamba, two have one.
    "zamba": {
        **ZAMBA,
        "num_hidden_layers": 9,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "attention_head_dim": 24,
        "mamba_proj_bias": True,
        "rms_norm_eps": 1e-4,
    },
    # Places in the first and in the last layer.
    "zamba-list": {
        **ZAMBA,
        "layers_block_type": ["hybrid", "linear_attention", "linear_attention", "hybrid"],
        "n_mamba_heads": 4,
        "num_key_value_heads": 4,
        "mamba_conv_bias": False,
        "mamba_d_conv": 3,
        "mamba_dt_rank": 5,
        "mamba_expand": 3,
        "hidden_act": "silu",
    },
    "recurrent_gemma": {**GRIFFIN, "num_key_value_heads": 1, "rms_norm_eps": 1e-4},
    "recurrent_gemma-plain": {
        **GRIFFIN,
        "block_types": ["attention", "recurrent", "recurrent"],
        "lru_width": None,
        "conv1d_width": 3,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 9000.0,
            "partial_rotary_factor": 0.25,
        },
        "tie_word_embeddings": False,
    },
}
