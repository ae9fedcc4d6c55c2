"""Published configurations of dense families."""

from __future__ import annotations

from typing import Any

PUBLISHED_DENSE: dict[str, tuple[int, dict[str, Any]]] = {
    "inceptionai/Jais-2-8B-Chat": (8_090_401_280, {
        "architectures": ["Jais2ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 150024, "head_dim": 128, "hidden_act": "relu2",
        "hidden_size": 3328, "initializer_range": 0.02, "intermediate_size": 26624,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 8192, "mlp_bias": True,
        "model_type": "jais2", "num_attention_heads": 26, "num_hidden_layers": 32,
        "num_key_value_heads": 26, "tie_word_embeddings": False, "vocab_size": 150272,
    }),
    "nvidia/Minitron-4B-Base": (4_190_509_056, {
        "architectures": ["NemotronForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "relu2", "hidden_size": 3072,
        "initializer_range": 0.0134, "intermediate_size": 9216, "max_position_embeddings": 4096,
        "mlp_bias": False, "model_type": "nemotron", "norm_eps": 1e-05,
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "vocab_size": 256000,
    }),
}  # fmt: skip
