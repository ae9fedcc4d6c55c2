"""config.json for Meta's and Mistral's own checkpoints."""

from __future__ import annotations

from typing import Any

import torch

from penstock.convert.output import Output
from penstock.convert.parameters import Parameters

LLAMA_3_TOKENS = 128_256
CONTEXT = 8192  # of a model whose files do not say it
LONG_CONTEXT = 131_072  # with scaled RoPE
MISTRAL_CONTEXT = 32_768
DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def of_parameters(
    read: Parameters, weights: Output, *, meta: bool
) -> tuple[dict[str, Any], list[str]]:
    """Returns config.json, and the values that are assumed."""
    vocabulary, _ = weights.shapes["model.embed_tokens.weight"]
    inner, _ = weights.shapes["model.layers.0.mlp.gate_proj.weight"]
    llama_3 = meta and vocabulary >= LLAMA_3_TOKENS
    context = read.context or _context(read, meta=meta, llama_3=llama_3)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM" if meta else "MistralForCausalLM"],
        "model_type": "llama" if meta else "mistral",
        "vocab_size": vocabulary,
        "hidden_size": read.dim,
        "intermediate_size": inner,
        "num_hidden_layers": read.layers,
        "num_attention_heads": read.heads,
        "num_key_value_heads": read.kv_heads,
        "head_dim": read.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": read.norm_eps,
        "rope_theta": read.rope_theta,
        "max_position_embeddings": context,
        "tie_word_embeddings": read.tied,
        "torch_dtype": DTYPES.get(weights.dtype, str(weights.dtype)),
        "bos_token_id": 128_000 if llama_3 else 1,
        "eos_token_id": [128_001, 128_008, 128_009] if llama_3 else 2,
    }
    assumed = [] if read.context else [f"max_position_embeddings {context}"]
    if not meta:
        config["sliding_window"] = read.window
    if read.scaled_rope:
        # Llama 3.2, whose models are narrower, was trained with another factor.
        factor = 32.0 if read.dim < 4096 else 8.0
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": CONTEXT,
        }
        assumed.append(f"rope_scaling factor {factor:g}")
    return config, assumed


def _context(read: Parameters, *, meta: bool, llama_3: bool) -> int:
    if not meta:
        return MISTRAL_CONTEXT
    if read.scaled_rope:
        return LONG_CONTEXT
    return CONTEXT if llama_3 else CONTEXT // 2
