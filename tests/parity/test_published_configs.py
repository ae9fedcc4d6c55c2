"""Published config.json files are read, and give the models' published numbers of parameters."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.models import FAMILIES, Backend, family, model_class, native, read_specification
from penstock.models.decoder import Decoder
from penstock.models.model_types import ARCHITECTURES, OWN
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from published_dense import PUBLISHED_DENSE
from published_experts import PUBLISHED_EXPERTS
from published_gemma import PUBLISHED_GEMMA
from published_hunyuan import PUBLISHED_HUNYUAN
from published_recurrent import PUBLISHED_RECURRENT
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "use_cache": True}
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    **PUBLISHED_GEMMA,
    **PUBLISHED_HUNYUAN,
    "openai-community/gpt2": (124_439_808, {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1, "embd_pdrop": 0.1, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
        "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 50257,
    }),
    "EleutherAI/gpt-neo-1.3B": (1_315_575_808, {
        "activation_function": "gelu_new", "architectures": ["GPTNeoForCausalLM"],
        "attention_dropout": 0, "attention_layers": ["global", "local"] * 12,
        "attention_types": [[["global", "local"], 12]], "embed_dropout": 0,
        "gradient_checkpointing": False, "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": None, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 2048,
        "model_type": "gpt_neo", "num_heads": 16, "num_layers": 24, "resid_dropout": 0,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "tokenizer_class": "GPT2Tokenizer", "vocab_size": 50257, "window_size": 256,
    }),
    "EleutherAI/pythia-1b": (1_011_781_632, {
        "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 8192, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8,
        "num_hidden_layers": 16, "rotary_emb_base": 10000, "rotary_pct": 0.25,
        "tie_word_embeddings": False, "use_parallel_residual": True, "vocab_size": 50304,
    }),
    "EleutherAI/gpt-j-6b": (6_050_882_784, {
        "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"],
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "gradient_checkpointing": False,
        "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16,
        "n_inner": None, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True,
        "rotary_dim": 64, "scale_attn_weights": True, "summary_use_proj": True,
        "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer", "vocab_size": 50400,
    }),
    "microsoft/phi-2": (2_779_683_840, {
        "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "embd_pdrop": 0.0,
        "hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "phi",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "partial_rotary_factor": 0.4, "qk_layernorm": False, "resid_pdrop": 0.1,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "vocab_size": 51200,
    }),
    "tiiuae/falcon-7b": (6_921_720_704, {
        "alibi": False, "apply_residual_connection_post_layernorm": False,
        "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}, "bias": False,
        "hidden_dropout": 0.0, "hidden_size": 4544, "layer_norm_epsilon": 1e-05,
        "model_type": "falcon", "multi_query": True, "new_decoder_architecture": False,
        "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71,
        "parallel_attn": True, "vocab_size": 65024,
    }),
    "bigscience/bloom-560m": (559_214_592, {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
        "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True,
        "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 1024, "n_inner": None,
        "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3,
        "pretraining_tp": 1, "seq_length": 2048, "skip_bias_add": True,
        "skip_bias_add_qkv": False, "slow_but_exact": False, "unk_token_id": 0,
        "vocab_size": 250880,
    }),
    "mosaicml/mpt-7b": (6_649_286_656, {
        "architectures": ["MPTForCausalLM"], "attn_config": {
            "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
            "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
            "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
        },
        "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "d_model": 4096,
        "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4,
        "init_config": {"emb_init_std": None, "init_div_is_residual": True,
                        "name": "kaiming_normal_", "verbose": 0},
        "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048,
        "model_type": "mpt", "n_heads": 32, "n_layers": 32, "no_bias": True,
        "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
        "tokenizer_name": "EleutherAI/gpt-neox-20b", "verbose": 0, "vocab_size": 50432,
    }),
    "tiiuae/falcon-rw-1b": (1_311_625_216, {
        "alibi": True, "apply_residual_connection_post_layernorm": False,
        "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": True,
        "hidden_dropout": 0.0, "hidden_size": 2048, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": False,
        "new_decoder_architecture": False, "num_attention_heads": 32, "num_hidden_layers": 24,
        "parallel_attn": False, "vocab_size": 50304,
    }),
    "baichuan-inc/Baichuan-13B-Chat": (13_264_901_120, {
        "_from_model_config": True, "architectures": ["BaichuanForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_baichuan.BaichuanConfig"},
        "gradient_checkpointing": False, "hidden_act": "silu", "hidden_size": 5120,
        "initializer_range": 0.02, "intermediate_size": 13696, "model_max_length": 4096,
        "model_type": "baichuan", "num_attention_heads": 40, "num_hidden_layers": 40,
        "pad_token_id": 0, "rms_norm_eps": 1e-06, "tie_word_embeddings": False,
        "vocab_size": 64000,
    }),
    "baichuan-inc/Baichuan2-13B-Chat": (13_896_668_160, {
        "architectures": ["BaichuanForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_baichuan.BaichuanConfig"},
        "gradient_checkpointing": False, "hidden_act": "silu", "hidden_size": 5120,
        "initializer_range": 0.02, "intermediate_size": 13696, "model_max_length": 4096,
        "model_type": "baichuan", "num_attention_heads": 40, "num_hidden_layers": 40,
        "pad_token_id": 0, "rms_norm_eps": 1e-06, "tie_word_embeddings": False,
        "vocab_size": 125696, "z_loss_weight": 0,
    }),
    "google/gemma-2b": (2_506_172_416, {
        "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048,
        "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
        "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "vocab_size": 256000,
    }),
    "meta-llama/Llama-3.1-8B": (8_030_261_248, {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": False, "vocab_size": 128256,
    }),
    "swiss-ai/Apertus-8B-Instruct-2509": (8_053_338_240, {
        "architectures": ["ApertusForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "hidden_act": "xielu", "hidden_dropout": 0.0,
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 21504,
        "max_position_embeddings": 65536, "mlp_bias": False, "model_type": "apertus",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "post_norm": False, "qk_norm": True, "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3", "type": "llama3",
        },
        "rope_theta": 12000000, "tie_word_embeddings": False, "vocab_size": 131072,
    }),
    "HuggingFaceTB/SmolLM2-135M": (134_515_008, {
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 576,
        "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192,
        "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "tie_word_embeddings": True, "transformers.js_config": {"dtype": "q4"},
        "vocab_size": 49152,
    }),
    "mistralai/Mistral-7B-v0.1": (7_241_732_096, {
        "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": False, "vocab_size": 32000,
    }),
    "Qwen/Qwen2.5-7B": (7_615_616_512, {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False,
        "use_mrope": False, "use_sliding_window": False, "vocab_size": 152064,
    }),
    "bigcode/starcoder2-3b": (3_030_371_328, {
        "activation_function": "gelu", "architectures": ["Starcoder2ForCausalLM"],
        "attention_dropout": 0.1, "attention_softmax_in_fp32": True, "embedding_dropout": 0.1,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "intermediate_size": 12288,
        "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384, "mlp_type": "default",
        "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
        "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
        "residual_dropout": 0.1, "rope_theta": 999999.4420358813,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True,
        "sliding_window": 4096, "use_bias": True, "vocab_size": 49152,
    }),
    "bigcode/starcoder": (15_517_456_384, {
        "activation_function": "gelu", "architectures": ["GPTBigCodeForCausalLM"],
        "attention_softmax_in_fp32": True, "attn_pdrop": 0.1, "embd_pdrop": 0.1,
        "inference_runner": 0, "layer_norm_epsilon": 1e-05, "max_batch_size": None,
        "max_sequence_length": None, "model_type": "gpt_bigcode", "multi_query": True,
        "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40, "n_positions": 8192,
        "pad_key_length": True, "pre_allocate_kv_cache": False, "resid_pdrop": 0.1,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True,
        "summary_use_proj": True, "validate_runner_input": True, "vocab_size": 49152,
    }),
    "stabilityai/stablelm-3b-4e1t": (2_795_443_200, {
        "architectures": ["StableLmForCausalLM"], "hidden_act": "silu", "hidden_size": 2560,
        "intermediate_size": 6912, "layer_norm_eps": 1e-05, "max_position_embeddings": 4096,
        "model_type": "stablelm", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000,
        "tie_word_embeddings": False, "use_qkv_bias": False, "vocab_size": 50304,
    }),
    "stabilityai/stablelm-2-12b": (12_143_185_920, {
        "architectures": ["StableLmForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
        "hidden_dropout": 0.0, "hidden_size": 5120, "intermediate_size": 13824,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.25, "qk_layernorm": True, "rope_theta": 10000,
        "tie_word_embeddings": False, "use_parallel_residual": True, "use_qkv_bias": False,
        "vocab_size": 100352,
    }),
    "baichuan-inc/Baichuan2-7B-Chat": (7_505_973_248, {
        "_from_model_config": True, "architectures": ["BaichuanForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_baichuan.BaichuanConfig"},
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "model_max_length": 4096, "model_type": "baichuan",
        "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False, "tokenizer_class": "BaichuanTokenizer",
        "vocab_size": 125696,
    }),
    "internlm/internlm2-chat-7b": (7_737_708_544, {
        "architectures": ["InternLM2ForCausalLM"], "attn_implementation": "eager", "bias": False,
        "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config"},
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "internlm2", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "rope_theta": 1000000, "tie_word_embeddings": False, "vocab_size": 92544,
    }),
    "CohereLabs/c4ai-command-r7b-12-2024": (8_028_033_024, {
        "architectures": ["Cohere2ForCausalLM"], "attention_bias": False, "head_dim": 128,
        "cache_implementation": "hybrid", "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "layer_norm_eps": 1e-05, "layer_switch": 4,
        "logit_scale": 0.25, "max_position_embeddings": 8192, "model_type": "cohere2",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000,
        "rotary_pct": 1.0, "sliding_window": 4096, "use_embedding_sharing": True,
        "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True,
        "vocab_size": 256000,
    }),
    "HuggingFaceTB/SmolLM3-3B": (3_075_098_624, {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
        "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "layer_types": ["full_attention"] * 36, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0,
        "sliding_window": None, "use_sliding_window": False, "vocab_size": 128256,
    }),
    "allenai/OLMo-2-1124-7B": (7_298_617_344, {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096,
        "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100352,
    }),
    "zai-org/glm-4-9b-chat-hf": (9_399_951_360, {
        "architectures": ["GlmForCausalLM"], "attention_bias": True, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 13696,
        "max_position_embeddings": 131072, "model_type": "glm", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "vocab_size": 151552,
    }),
    "ByteDance-Seed/Seed-OSS-36B-Base": (36_151_104_512, {
        "architectures": ["SeedOssForCausalLM"], "attention_bias": True,
        "attention_out_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": False,
        "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64,
        "num_key_value_heads": 8, "pretraining_tp": 1, "residual_dropout": 0.1,
        "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"}, "rope_theta": 1e7,
        "tie_word_embeddings": False, "vocab_size": 155136,
    }),
    # The file lists 81,324,862,720: 1,650,471,424 are for multi-token prediction.
    "LiquidAI/LFM2-1.2B": (1_170_340_608, {
        "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048,
        "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0,
        "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0,
        "block_use_swiglu": True, "block_use_xavier_init": True, "conv_L_cache": 3,
        "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": True,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "initializer_range": 0.02,
        "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
        "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0,
        "theta": 1000000.0, "tie_embedding": True, "use_pos_enc": True, "vocab_size": 65536,
    }),
    "ibm-granite/granite-4.0-h-tiny": (6_939_037_248, {
        "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "attention_multiplier": 0.0078125, "embedding_multiplier": 12,
        "hidden_act": "silu", "hidden_size": 1536, "init_method": "mup", "initializer_range": 0.1,
        "intermediate_size": 512,
        "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
        "logits_scaling": 6, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1,
        "mamba_n_heads": 48, "mamba_proj_bias": False, "max_position_embeddings": 131072,
        "model_type": "granitemoehybrid", "normalization_function": "rmsnorm",
        "num_attention_heads": 12, "num_experts_per_tok": 6, "num_hidden_layers": 40,
        "num_key_value_heads": 4, "num_local_experts": 64, "output_router_logits": False,
        "pad_token_id": 100256, "position_embedding_type": "nope", "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000,
        "router_aux_loss_coef": 0.0001, "shared_intermediate_size": 1024,
        "tie_word_embeddings": True, "vocab_size": 100352,
    }),
    "ibm-ai-platform/Bamba-9B-v1": (9_780_235_392, {
        "architectures": ["BambaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128,
        "mamba_proj_bias": False, "max_position_embeddings": 262144, "mlp_bias": False,
        "model_type": "bamba", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_logits_to_keep": 1, "pad_token_id": 0,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "use_mamba_kernels": True, "vocab_size": 128256,
    }),
    "tiiuae/Falcon-H1-7B-Instruct": (7_585_513_568, {
        "architectures": ["FalconH1ForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 0.21875, "attn_layer_indices": None,
        "embedding_multiplier": 5.656854249492381, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 12288,
        "key_multiplier": 0.02209708691207961, "lm_head_multiplier": 0.013020833333333334,
        "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 128,
        "mamba_d_ssm": 3072, "mamba_d_state": 256, "mamba_expand": 2, "mamba_n_groups": 1,
        "mamba_n_heads": 24, "mamba_norm_before_gate": False, "mamba_proj_bias": False,
        "mamba_rms_norm": False, "mamba_use_mlp": True, "max_position_embeddings": 262144,
        "mlp_bias": False, "mlp_expansion_factor": 8,
        "mlp_multipliers": [0.8838834764831844, 0.2946278254943948], "model_type": "falcon_h1",
        "num_attention_heads": 12, "num_hidden_layers": 44, "num_key_value_heads": 2,
        "num_logits_to_keep": 1, "pad_token_id": 0, "projectors_bias": False,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 100000000000.0,
        "ssm_in_multiplier": 1.25, "ssm_multipliers": [
            0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738,
        ],
        "ssm_out_multiplier": 0.23570226039551587, "tie_word_embeddings": False,
        "vocab_size": 130048,
    }),
    "nvidia/Nemotron-H-8B-Base-8K": (8_100_852_736, {
        "architectures": ["NemotronHForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "attention_head_dim": 128,
        "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
        "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0,
        "hidden_size": 4096,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "initializer_range": 0.02, "intermediate_size": 21504, "layer_norm_epsilon": 1e-05,
        "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128,
        "mamba_proj_bias": False, "max_position_embeddings": 8192, "mlp_bias": False,
        "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8,
        "num_attention_heads": 32, "num_hidden_layers": 52, "num_key_value_heads": 8,
        "num_logits_to_keep": 1, "pad_token_id": 0, "rescale_prenorm_residual": True,
        "residual_in_fp32": False, "rms_norm_eps": 1e-05, "sliding_window": None,
        "ssm_state_size": 128, "tie_word_embeddings": False, "time_step_floor": 0.0001,
        "time_step_limit": [0.0, float("inf")], "time_step_max": 0.1, "time_step_min": 0.001,
        "time_step_rank": 256, "use_bias": False, "use_conv_bias": True, "use_mamba_kernels": True,
        "vocab_size": 131072,
    }),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31_577_940_288, {
        "architectures": ["NemotronHForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
        "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0,
        "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "initializer_range": 0.02, "intermediate_size": 1856, "layer_norm_epsilon": 1e-05,
        "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
        "mamba_proj_bias": False, "mamba_ssm_cache_dtype": "float32",
        "max_position_embeddings": 262144, "mlp_bias": False, "mlp_hidden_act": "relu2",
        "model_type": "nemotron_h", "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
        "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05,
        "norm_topk_prob": True, "num_attention_heads": 32, "num_experts_per_tok": 6,
        "num_hidden_layers": 52, "num_key_value_heads": 2, "num_logits_to_keep": 1,
        "pad_token_id": 0, "partial_rotary_factor": 1.0, "rescale_prenorm_residual": True,
        "residual_in_fp32": False, "rope_theta": 10000, "routed_scaling_factor": 2.5,
        "sliding_window": None, "ssm_state_size": 128, "tie_word_embeddings": False,
        "time_step_floor": 0.0001, "time_step_limit": [0.0, float("inf")], "time_step_max": 0.1,
        "time_step_min": 0.001, "topk_group": 1, "use_bias": False, "use_conv_bias": True,
        "use_mamba_kernels": True, "vocab_size": 131072,
    }),
    "Qwen/Qwen2.5-VL-7B-Instruct": (7_615_616_512, {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 3584, "image_token_id": 151655,
        "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 128000,
        "max_window_layers": 28, "model_type": "qwen2_5_vl", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"}, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": False, "use_sliding_window": False,
        "video_token_id": 151656, "vision_config": {"depth": 32, "hidden_act": "silu"},
        "vision_end_token_id": 151653, "vision_start_token_id": 151652,
        "vision_token_id": 151654, "vocab_size": 152064,
    }),
    "Qwen/Qwen3-VL-8B-Instruct": (8_190_735_360, {
        "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655,
        "model_type": "qwen3_vl", "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
            "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
            "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06, "rope_scaling": {
                "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
            },
            "rope_theta": 5000000, "use_cache": True, "vocab_size": 151936,
        },
        "tie_word_embeddings": False, "video_token_id": 151656,
        "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": "qwen3_vl"},
        "vision_end_token_id": 151653, "vision_start_token_id": 151652,
    }),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": (30_532_122_624, {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"], "image_token_id": 151655,
        "model_type": "qwen3_vl_moe", "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
            "decoder_sparse_step": 1, "dtype": "bfloat16", "eos_token_id": 151645,
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 6144,
            "max_position_embeddings": 262144, "mlp_only_layers": [],
            "model_type": "qwen3_vl_moe_text", "moe_intermediate_size": 768,
            "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
            "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06, "rope_scaling": {
                "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
            },
            "rope_theta": 5000000, "use_cache": True, "vocab_size": 151936,
        },
        "tie_word_embeddings": False, "video_token_id": 151656,
        "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": "qwen3_vl_moe"},
        "vision_end_token_id": 151653, "vision_start_token_id": 151652,
    }),
    "meta-llama/Llama-4-Scout-17B-16E": (107_769_861_120, {
        "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080,
        "eoi_token_index": 200081, "image_token_index": 200092, "model_type": "llama4",
        "text_config": {
            "_attn_implementation_autoset": True, "attention_bias": False,
            "attention_chunk_size": 8192, "attention_dropout": 0.0, "attn_scale": 0.1,
            "attn_temperature_tuning": 4, "bos_token_id": 200000, "cache_implementation": "hybrid",
            "eos_token_id": [200001, 200007, 200008], "floor_scale": 8192,
            "for_llm_compressor": False, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 5120, "initializer_range": 0.02, "interleave_moe_layer_step": 1,
            "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "max_position_embeddings": 10485760, "model_type": "llama4_text",
            "no_rope_layers": [], "num_attention_heads": 40, "num_experts_per_tok": 1,
            "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
            "output_router_logits": False, "pad_token_id": 200018, "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
            "torch_dtype": "bfloat16", "use_cache": True, "use_qk_norm": True,
            "vocab_size": 202048,
        },
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1408, "model_type": "llama4_vision_model"},
    }),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (79_674_391_296, {
        "architectures": ["Qwen3NextForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "decoder_sparse_step": 1, "full_attention_interval": 4,
        "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next",
        "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16,
        "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
        "num_key_value_heads": 2, "output_router_logits": False, "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
    }),
    "Qwen/Qwen3.5-27B": (26_895_998_464, {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 248056,
        "model_type": "qwen3_5", "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
            "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4,
            "head_dim": 256, "hidden_act": "silu", "hidden_size": 5120,
            "initializer_range": 0.02, "intermediate_size": 17408,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 48, "linear_value_head_dim": 128,
            "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
            "mlp_only_layers": [], "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False, "num_attention_heads": 24,
            "num_hidden_layers": 64, "num_key_value_heads": 4, "partial_rotary_factor": 0.25,
            "rms_norm_eps": 1e-06, "rope_parameters": {
                "mrope_interleaved": True, "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default",
            },
            "tie_word_embeddings": False, "use_cache": True, "vocab_size": 248320,
        },
        "tie_word_embeddings": False, "video_token_id": 248057,
        "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": "qwen3_5"},
        "vision_end_token_id": 248054, "vision_start_token_id": 248053,
    }),
    "Qwen/Qwen3.5-35B-A3B": (34_660_610_688, {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": 248056,
        "model_type": "qwen3_5_moe", "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
            "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4,
            "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_value_head_dim": 128,
            "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
            "mlp_only_layers": [], "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512,
            "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
            "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
            "num_hidden_layers": 40, "num_key_value_heads": 2, "output_router_logits": False,
            "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_parameters": {
                "mrope_interleaved": True, "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default",
            },
            "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
            "use_cache": True, "vocab_size": 248320,
        },
        "tie_word_embeddings": False, "video_token_id": 248057,
        "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": "qwen3_5_moe"},
        "vision_end_token_id": 248054, "vision_start_token_id": 248053,
    }),
}  # fmt: skip
PUBLISHED |= PUBLISHED_DENSE | PUBLISHED_EXPERTS | PUBLISHED_RECURRENT
SHARED = {"baichuan", "dots3_note", "llama4", "mllama", "qwen3_5", "qwen3_5_moe", "qwen4_exp"}
"""Types of two architectures: two versions, or a language model alone and with images."""
OTHERS = {"exaone", "internlm3", "sarvam_mla", "sarvam_moe", "shieldgemma2"}
"""Types for which transformers names an architecture that is not the type's own."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name: str) -> None:
    parameters, fields = PUBLISHED[name]
    raw, device = {**TOKENS, **fields}, torch.device("meta")
    cls = family(raw)
    methods = Methods(Unquantized(torch.bfloat16, device))
    model = cls(read_specification(cls, raw), Build(torch.bfloat16, device, Group(), methods, 8))
    assert isinstance(model, Decoder)
    found = sum(target.destination.numel() for target in model.all_targets().values())
    assert found == parameters


COUNTS = re.compile(
    r"(num_|n_|moe_num_)?(local_|routed_|shared_)?experts?|moe_k|moe_top_?k|num_experts_per_tok(en)?"
    r"|top_k_experts|n_group|num_expert_group|topk_group|(mamba_)?n_groups"
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_errors_name_the_fields_of_experts_as_config_json_does(name: str) -> None:
    _, fields = PUBLISHED[name]
    place = "text_config" if "text_config" in fields else None
    section = fields if place is None else fields[place]
    for field in filter(COUNTS.fullmatch, section):
        for value in (None, "many", 0, 1.5):
            changed = {**section, field: value}
            raw = {**TOKENS, **(changed if place is None else {**fields, place: changed})}
            try:
                read_specification(family(raw), raw)
            except BadModel as error:
                assert re.search(rf"\b{field}\b", str(error)), f"{field} = {value!r}: {error}"


@pytest.mark.parametrize("name", PUBLISHED)
def test_model_type_implies_the_family(name: str) -> None:
    _, fields = PUBLISHED[name]
    bare = {field: value for field, value in fields.items() if field != "architectures"}
    if fields["model_type"] in SHARED | (OTHERS - OWN.keys()):
        assert native(bare) is None
    else:
        assert model_class(bare, Backend.AUTO) is family(fields)
        assert model_class({**bare, "architectures": []}, Backend.NATIVE) is family(fields)


def test_model_types_are_those_of_transformers() -> None:
    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    for model_type in {*mappings[0], *mappings[1]} - OTHERS:
        named = {mapping[model_type] for mapping in mappings if model_type in mapping}
        known = named & FAMILIES.keys()
        assert (model_type in SHARED) == (len(named) > 1 and bool(known)), model_type
        expected = None if model_type in SHARED else next(iter(known), None)
        assert ARCHITECTURES.get(model_type) == expected, model_type
    assert set(ARCHITECTURES.values()) <= FAMILIES.keys()
    assert not ARCHITECTURES.keys() & OTHERS
    assert OWN.keys() <= OTHERS and set(OWN.values()) <= FAMILIES.keys()
