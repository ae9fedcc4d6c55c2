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
    # Sizes from descriptions of the model, the count from transformers' model of these sizes.
    "Salesforce/codegen-350M-mono": (356_712_448, {
        "activation_function": "gelu_new", "architectures": ["CodeGenForCausalLM"],
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "gradient_checkpointing": False,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "codegen",
        "n_ctx": 2048, "n_embd": 1024, "n_head": 16, "n_inner": None, "n_layer": 20,
        "n_positions": 2048, "resid_pdrop": 0.0, "rotary_dim": 32, "scale_attn_weights": True,
        "summary_type": "cls_index", "summary_use_proj": True, "tie_word_embeddings": False,
        "tokenizer_class": "GPT2Tokenizer", "vocab_size": 51200,
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
    "allenai/OLMo-1B-hf": (1_176_764_416, {
        "architectures": ["OlmoForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": None, "clip_qkv": None, "eos_token_id": 50279, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 2048, "model_type": "olmo", "num_attention_heads": 16,
        "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 1,
        "pretraining_tp": 1, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "vocab_size": 50304,
    }),
    "allenai/OLMo-7B-0424-hf": (6_888_095_744, {
        "architectures": ["OlmoForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "clip_qkv": 8.0, "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
        "model_type": "olmo", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "pad_token_id": 1, "pretraining_tp": 1, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 50304,
    }),
    "facebook/opt-125m": (125_239_296, {
        "activation_dropout": 0.0, "activation_function": "relu",
        "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
        "do_layer_norm_before": True, "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 3072,
        "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048,
        "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12,
        "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "vocab_size": 50272,
        "word_embed_proj_dim": 768,
    }),
    "karpathy/nanochat-d32": (1_879_048_192, {
        "architectures": ["NanoChatForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "final_logit_softcapping": 15.0, "hidden_act": "relu2",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 2048, "model_type": "nanochat", "num_attention_heads": 16,
        "num_hidden_layers": 32, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False, "vocab_size": 65536,
    }),
    # From descriptions of the model; the factors are not those that were published. The count is
    # without the parts for images and speech, and without adapters.
    "microsoft/Phi-4-multimodal-instruct": (3_836_021_760, {
        "architectures": ["Phi4MMForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "audio_processor": {"name": "cascades"},
        "auto_map": {"AutoConfig": "configuration_phi4mm.Phi4MMConfig"},
        "embd_layer": {"embedding_cls": "image_audio"}, "embd_pdrop": 0.0, "full_attn_mod": 1,
        "hidden_act": "silu", "hidden_size": 3072, "img_processor": None,
        "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1,
        "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False,
        "model_type": "phi4mm", "num_attention_heads": 24, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "original_max_position_embeddings": 4096,
        "pad_token_id": 199999, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05, "rope_scaling": {
            "long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope",
        },
        "rope_theta": 10000.0, "sliding_window": 262144,
        "speech_lora": {"dp": 0.01, "layer": "layers.*", "lora_alpha": 640, "r": 320},
        "tie_word_embeddings": True,
        "vision_lora": {"dp": 0.0, "layer": "layers.*", "lora_alpha": 512, "r": 256},
        "vocab_size": 200064,
    }),
    "meta-llama/Llama-3.2-11B-Vision-Instruct": (8_030_261_248, {
        "architectures": ["MllamaForConditionalGeneration"], "image_token_index": 128256,
        "model_type": "mllama", "text_config": {
            "_name_or_path": "", "add_cross_attention": False, "architectures": None,
            "bad_words_ids": None, "begin_suppress_tokens": None, "bos_token_id": 128000,
            "chunk_size_feed_forward": 0,
            "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38], "diversity_penalty": 0.0,
            "do_sample": False, "dropout": 0, "early_stopping": False,
            "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 14336, "is_decoder": False,
            "max_length": 20, "max_position_embeddings": 131072,
            "model_type": "mllama_text_model", "num_attention_heads": 32, "num_beams": 1,
            "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 128004,
            "pruned_heads": {}, "repetition_penalty": 1.0, "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "rope_theta": 500000.0, "temperature": 1.0, "tie_word_embeddings": False,
            "top_k": 50, "top_p": 1.0, "torch_dtype": "bfloat16", "typical_p": 1.0,
            "use_bfloat16": False, "use_cache": True, "vocab_size": 128256,
        },
        "torch_dtype": "bfloat16", "vision_config": {"model_type": "mllama_vision_model"},
    }),
}  # fmt: skip
