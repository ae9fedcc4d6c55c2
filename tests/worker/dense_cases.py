"""Dense families that share little with others."""

from __future__ import annotations

from typing import Any

ROPE = {"rope_type": "default", "rope_theta": 9000.0}
PARTIAL = {**ROPE, "partial_rotary_factor": 0.5}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "num_key_value_heads": None,
    "intermediate_size": None,
    "ffn_dim": 96,
}

FURTHER: dict[str, dict[str, Any]] = {
    "gpt_neo": {
        "model_type": "gpt_neo",
        "num_key_value_heads": None,
        "attention_types": [[["local", "global"], 1], [["local"], 1]],
        "window_size": 24,
        "tie_word_embeddings": True,
    },
    "jais2": {"model_type": "jais2", "rope_parameters": ROPE},
    "nanochat": {
        "model_type": "nanochat",
        "attention_bias": True,
        "final_logit_softcapping": 4.0,
        "rms_norm_eps": 1e-5,
        "rope_parameters": ROPE,
    },
    "nemotron": {
        "model_type": "nemotron",
        "head_dim": 24,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": PARTIAL,
    },
    "olmo": {"model_type": "olmo", "clip_qkv": 0.7, "attention_bias": True},
    "olmo-tied": {"model_type": "olmo", "tie_word_embeddings": True},
    "opt": {**OPT, "tie_word_embeddings": True},
    "opt-galactica": {**OPT, "enable_bias": False, "activation_function": "gelu"},
    "opt-no-affine": {**OPT, "layer_norm_elementwise_affine": False},
}
