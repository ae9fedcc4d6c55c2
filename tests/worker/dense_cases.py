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
PHI_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
PHI_VISION |= {"num_attention_heads": 2, "image_size": 28, "crop_size": 28, "patch_size": 14}
PHI_AUDIO = {"hidden_size": 32, "intermediate_size": 32, "num_blocks": 1, "num_attention_heads": 2}
PHI_AUDIO |= {"ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32}
PHI_AUDIO |= {"nemo_conv_channels": 32, "bias_max_distance": 8}

BIOGPT: dict[str, Any] = {
    "model_type": "biogpt",
    "num_key_value_heads": None,
    "layer_norm_eps": 0.1,  # which its norms do not have
    "tie_word_embeddings": True,
}

STRETCHED: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 9000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FURTHER: dict[str, dict[str, Any]] = {
    # Tokens behind those of the head are of images and audio.
    "apertus1p5": {
        "model_type": "apertus1p5_text",
        "rope_parameters": STRETCHED,
        "vocab_size": 541,
        "output_vocab_size": 501,
    },
    "biogpt": BIOGPT,
    "biogpt-unscaled": {
        **BIOGPT,
        "scale_embedding": False,
        "hidden_act": "gelu_new",
        "tie_word_embeddings": False,
    },
    # The matrix of queries, values and keys is stored in four blocks; each has two heads here.
    "codegen": {
        "model_type": "codegen",
        "num_key_value_heads": None,
        "intermediate_size": None,
        "n_head": 8,
        "n_inner": 96,
        "rotary_dim": 4,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    # Its tensors have names of their own; config.json has Llama's architecture.
    "exaone": {"model_type": "exaone", "rope_parameters": STRETCHED},
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
    # All sequences of the tests are longer than the original length.
    "phi4_multimodal": {
        "model_type": "phi4_multimodal",
        "vision_config": PHI_VISION,
        "audio_config": PHI_AUDIO,
        "sliding_window": 24,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 9000.0,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0],
            "long_factor": [1.1, 1.4, 2.0, 3.0, 5.0, 8.0],
        },
    },
}
