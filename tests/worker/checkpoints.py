"""Tiny random checkpoints of every supported family, made by transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from channel_cases import CHANNELS
from dense_cases import FURTHER
from expert_cases import SIGMOID, SOFTMAX
from hunyuan_cases import HUNYUAN_DENSE, HUNYUAN_EXPERTS
from latent_cases import LATENT_CASES, MINICPM3, YARN, YOUTU
from recurrent_cases import EXPERTS, MAMBA_FACTORS, MIXTURES, RECURRENT
from text_parts import as_it_multiplies, class_of, config_of, model_of
from transformers import AutoConfig

VOCAB = 501  # odd, so that two ranks cannot share it equally
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA: dict[str, Any] = {
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 24,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 20.0,
}

SLIDING = "sliding_attention"
GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "attention_bias": True,
    "layer_types": [SLIDING, SLIDING, "full_attention"],
    "sliding_window": 24,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 20.0,
    "tie_word_embeddings": True,
}
PARTIAL: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 9000.0,
        "partial_rotary_factor": 0.5,
    }
}
# Ends of names of what is random too, though transformers makes it 0 or 1.
FACTORS = (
    "bias",
    "alpha_p",
    "alpha_n",
    "sinks",
    "layer_scalar",
    "correct_output_scale",
    "router.scale",
    "per_expert_scale",
    "mamba.A_log",
    "mamba.D",
    "router.gate.weight",
    "hc.base",
    "hc.scale",
    "ple.conv1d.weight",
    "sconv.conv1d.weight",
    "global_scale",
    "hc_base",
    "hc_scale",
)

CASES: dict[str, dict[str, Any]] = {
    "llama2": {"model_type": "llama", "num_key_value_heads": 4},
    "llama-one-kv-head": {"model_type": "llama", "num_key_value_heads": 1},
    "llama3-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama31": {"model_type": "llama", "rope_parameters": LLAMA3_ROPE},
    "llama-linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama-yarn": {"model_type": "llama", "rope_parameters": YARN},
    "llama-yarn-mscale": {
        "model_type": "llama",
        "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
    },
    "llama-yarn-factor": {
        "model_type": "llama",
        "rope_parameters": {**YARN, "attention_factor": 1.2, "beta_fast": 16.0, "beta_slow": 2.0},
    },
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-head-dim": {"model_type": "llama", "head_dim": 32},
    "mistral-window": {"model_type": "mistral", "sliding_window": 24},
    "mistral-full": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen2-mixed": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "attention_bias": True},
    "qwen3-window": {
        "model_type": "qwen3",
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "gemma2": {**GEMMA, "model_type": "gemma2", "attn_logit_softcapping": 5.0},
    "gemma3": {
        **GEMMA,
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
    "phi3-window": {"model_type": "phi3", "sliding_window": 24, "pad_token_id": 0},
    "phi3-longrope": {
        "model_type": "phi3",
        "pad_token_id": 0,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0],
            "long_factor": [1.1, 1.4, 2.0, 3.0, 5.0, 8.0],
        },
    },
}
CASES |= {
    "qwen3-moe": {
        **EXPERTS,
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "qwen3-moe-window": {
        **EXPERTS,
        "model_type": "qwen3_moe",
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 24,
        "decoder_sparse_step": 2,
    },
    "qwen2-moe": {
        **EXPERTS,
        "model_type": "qwen2_moe",
        "num_experts_per_tok": 4,
        "shared_expert_intermediate_size": 48,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 2,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 8, "sliding_window": 24},
    "olmoe": {
        "model_type": "olmoe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "attention_bias": True,
        "num_key_value_heads": 4,
    },
    # transformers always takes the short factors; here both take them.
    "phimoe": {
        "model_type": "phimoe",
        "num_local_experts": 8,
        "attention_bias": True,
        "lm_head_bias": True,
        "router_jitter_noise": 0.2,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 512,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8, 2.0],
            "long_factor": [1.1, 1.4, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0],
            "short_mscale": 1.1,
            "long_mscale": 1.2,
        },
    },
    "glm4-moe": {
        "model_type": "glm4_moe",
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "n_shared_experts": 2,
        "routed_scaling_factor": 2.5,
        "n_group": 4,
        "topk_group": 2,
        "attention_bias": True,
        "use_qk_norm": True,
        "head_dim": 32,
    },
    "dots1": {
        "model_type": "dots1",
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "sliding_window": 24,
        "max_window_layers": 2,
        "attention_bias": True,
    },
    "ernie4_5-moe": {
        "model_type": "ernie4_5_moe",
        "num_hidden_layers": 4,
        "moe_num_experts": 8,
        "moe_k": 3,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
        "moe_layer_end_index": 2,
    },
    "granitemoe": {
        "model_type": "granitemoe",
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
    },
    "granitemoeshared": {
        "model_type": "granitemoeshared",
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 48,
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
    },
    "minimax-m2": {
        "model_type": "minimax_m2",
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "head_dim": 32,
        **PARTIAL,
    },
    "gemma4-moe": {
        **GEMMA4,
        **EXPERTS,
        "model_type": "gemma4_text",
        "enable_moe_block": True,
        "top_k_experts": 3,
    },
    "gpt-oss": {
        "model_type": "gpt_oss",
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "head_dim": 16,
        "sliding_window": 24,
        "rope_parameters": {**YARN, "truncate": False},
    },
}

LLAMA4: dict[str, Any] = {
    "model_type": "llama4_text",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 24,
    "attn_scale": 0.3,
    "floor_scale": 16,
}
CASES |= {
    # The last layer does not rotate, and sees all; chunks end inside of prompts and blocks.
    "llama4": {
        **LLAMA4,
        "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
        "rope_parameters": LLAMA3_ROPE,
    },
    "llama4-no-qk-norm": {
        **LLAMA4,
        "use_qk_norm": False,
        "attention_bias": True,
        "no_rope_layers": [1, 0, 0, 1],
        "attn_temperature_tuning": False,
    },
}

CASES |= LATENT_CASES
GPT: dict[str, Any] = {
    "n_inner": 96,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "num_key_value_heads": None,  # these families do not have it
    "intermediate_size": None,
}
ALONE: dict[str, Any] = {"num_key_value_heads": None}
FALCON: dict[str, Any] = {
    **ALONE,
    "model_type": "falcon",
    "intermediate_size": None,
    "ffn_hidden_size": 96,
    "tie_word_embeddings": True,
}
MINISTRAL3_ROPE: dict[str, Any] = {**YARN, "llama_4_scaling_beta": 0.3}
DENSE: dict[str, dict[str, Any]] = {
    "apertus": {"model_type": "apertus", "attention_bias": True, "rope_parameters": LLAMA3_ROPE},
    "arcee": {"model_type": "arcee", "hidden_act": "relu2"},
    "bloom": {**GPT, "model_type": "bloom", "hidden_size": 192, "n_head": 12, "n_inner": None},
    "cohere": {"model_type": "cohere", "logit_scale": 0.25, "tie_word_embeddings": True},
    "cohere-qk-norm": {
        "model_type": "cohere",
        "use_qk_norm": True,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "cohere2": {
        "model_type": "cohere2",
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    "ernie4_5": {"model_type": "ernie4_5", "head_dim": 32, "use_bias": True},
    "exaone4": {
        "model_type": "exaone4",
        "sliding_window": 24,
        "sliding_window_pattern": 2,
    },
    "exaone4-full": {
        "model_type": "exaone4",
        "sliding_window": None,
        "layer_types": ["full_attention"] * 3,
    },
    "falcon-7b": {**FALCON, "num_kv_heads": None, "multi_query": True},
    "falcon-40b": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon-11b": {
        **FALCON,
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 1,
        "num_kv_heads": 2,
        "tie_word_embeddings": False,
    },
    "falcon-serial": {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
    "falcon-rw": {
        **FALCON,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
        "alibi": True,
    },
    "gemma": {"model_type": "gemma", "head_dim": 32, "tie_word_embeddings": True},
    # A stream that is not the first is active; ids beyond the table of rows; sparse gates in a part
    # of the layers, whose sizes differ.
    "gemma3n": {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 5,
        "layer_types": [SLIDING, "full_attention", SLIDING, SLIDING, "full_attention"],
        "num_kv_shared_layers": 2,
        "head_dim": 16,
        "sliding_window": 24,
        "intermediate_size": [96, 96, 64, 96, 64],
        "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0, 0.9],
        "altup_num_inputs": 3,
        "altup_active_idx": 1,
        "laurel_rank": 8,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB - 40,
        "final_logit_softcapping": 20.0,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "cwm": {
        "model_type": "cwm",
        "head_dim": 16,
        "num_hidden_layers": 5,
        "sliding_window": 24,
        "rope_parameters": LLAMA3_ROPE,
    },
    "helium": {"model_type": "helium", "head_dim": 16, "attention_bias": True},
    "hyperclovax": {
        "model_type": "hyperclovax",
        "head_dim": 16,
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "hyperclovax-plain": {"model_type": "hyperclovax", "use_post_norm": False, "head_dim": None},
    "minicpm3": MINICPM3,
    "minicpm3-plain": {
        **MINICPM3,
        **dict.fromkeys(("q_lora_rank", "scale_depth", "dim_model_base", "rope_parameters")),
        "v_head_dim": 20,
    },
    "youtu": YOUTU,
    "youtu-whole-queries": {**YOUTU, "q_lora_rank": None, "rope_interleave": False},
    "vaultgemma": {
        "model_type": "vaultgemma",
        "head_dim": 16,
        "sliding_window": 24,
        "layer_types": [SLIDING, SLIDING, "full_attention"],
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 6.0,
        "final_logit_softcapping": 20.0,
        "attention_bias": True,
    },
    "gemma4": {**GEMMA4, "model_type": "gemma4_text"},
    "gemma4-shared": {
        **GEMMA4,
        "model_type": "gemma4_text",
        "num_hidden_layers": 5,
        "layer_types": [SLIDING, "full_attention", SLIDING, SLIDING, "full_attention"],
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "attention_k_eq_v": False,
        "num_key_value_heads": 1,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB,
    },
    "gemma4-unified": {**GEMMA4, "model_type": "gemma4_unified_text", "tie_word_embeddings": False},
    "glm": {"model_type": "glm", "head_dim": 16, **PARTIAL},
    "glm4": {"model_type": "glm4", "head_dim": 16, **PARTIAL},
    "gpt2": {**GPT, "model_type": "gpt2"},
    "gpt2-scales": {
        **GPT,
        "model_type": "gpt2",
        "n_inner": None,
        "scale_attn_by_inverse_layer_idx": True,
        "scale_attn_weights": False,
        "tie_word_embeddings": False,
    },
    "gpt_bigcode": {**GPT, "model_type": "gpt_bigcode"},
    "gpt_bigcode-heads": {**GPT, "model_type": "gpt_bigcode", "multi_query": False},
    "gptj": {**GPT, "model_type": "gptj", "rotary_dim": 8, "tie_word_embeddings": False},
    "gpt_neox": {**ALONE, "model_type": "gpt_neox", **PARTIAL},
    "gpt_neox-serial": {
        **ALONE,
        "model_type": "gpt_neox",
        "use_parallel_residual": False,
        "attention_bias": False,
    },
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
    },
    "granite_swa": {
        "model_type": "granite_swa",
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "layer_rope_theta": [9000.0, 0, 300.0],
        "sliding_window": 24,
    },
    "ministral": {
        "model_type": "ministral",
        "head_dim": 16,
        "sliding_window": 24,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "ministral3": {
        "model_type": "ministral3",
        "head_dim": 32,
        "rope_parameters": MINISTRAL3_ROPE,
    },
    "mpt": {
        **GPT,
        "model_type": "mpt",
        "n_inner": None,
        "max_seq_len": 512,
        "max_position_embeddings": None,
        "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.4},
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 9000.0},
            "full_attention": YARN,
        },
    },
    "phi": {"model_type": "phi", "num_key_value_heads": 4},
    "seed_oss": {"model_type": "seed_oss", "head_dim": 32},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0, 1]},
    "smollm3-window": {
        "model_type": "smollm3",
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 24,
        "tie_word_embeddings": True,
    },
    "stablelm": {"model_type": "stablelm", "use_qkv_bias": True, **PARTIAL},
    "stablelm-parallel": {
        "model_type": "stablelm",
        "use_parallel_residual": True,
        "qk_layernorm": True,
        **PARTIAL,
    },
    "starcoder2": {"model_type": "starcoder2", "sliding_window": 24},
}
DENSE |= FURTHER | HUNYUAN_DENSE | RECURRENT | CHANNELS
CASES |= HUNYUAN_EXPERTS | MIXTURES | SIGMOID | SOFTMAX
CASES |= {name: {"pad_token_id": 0, **fields} for name, fields in DENSE.items()}


def make(directory: Path, case: str) -> Path:
    """Writes the case's checkpoint."""
    return write(directory / case, **CASES[case])


def write(path: Path, **changes: Any) -> Path:
    """Writes a checkpoint with these fields of config.json, and SHAPE's; biases and factors are
    random too."""
    torch.manual_seed(7)
    config = config_of({**SHAPE, **changes})
    model = model_of(config).eval()
    factors = FACTORS + MAMBA_FACTORS.get(config.model_type, ())
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *model.named_buffers()):
            chosen = name.endswith(factors) or "norm" in name or ".ln_" in name
            if chosen and parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.2)
            if name.endswith("tid2eid"):  # distinct experts of each token id
                every = torch.rand(len(parameter), config.n_routed_experts).argsort(1)
                parameter.copy_(every[:, : parameter.shape[1]])
    model.save_pretrained(path)
    return path


def checkpoint_maker(directory: Path) -> Callable[[str], Path]:
    """Makes each case at most once below `directory`."""
    return lru_cache(lambda case: make(directory, case))


def reference(path: Path, dtype: torch.dtype, device: str = "cpu") -> Any:
    """The transformers model of a checkpoint, with its plainest attention and experts."""
    # The plainest attention of Falcon adds ALiBi twice: to scores, and in the mask.
    config = AutoConfig.from_pretrained(path)
    kind = "sdpa" if getattr(config, "alibi", False) else "eager"
    model = class_of(config).from_pretrained(path, dtype=dtype, attn_implementation=kind)
    model.set_experts_implementation("eager")  # the others do not compute in float64
    return as_it_multiplies(model).eval().to(device)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def generate(model: Any, ids: list[int], count: int = 64) -> list[int]:
    """Greedy tokens by transformers, without an end token."""
    inputs = torch.tensor([ids], device=model.device)
    out = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),  # a prompt may hold the pad id
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(ids) :].tolist()
