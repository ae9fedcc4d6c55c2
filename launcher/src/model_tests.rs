use super::*;
use serde_json::json;

fn facts(config: &Value) -> Result<ModelFacts, String> {
    let weights = StoredWeights {
        floats: 1 << 20,
        linear: 1 << 19,
        other_bytes: 512,
    };
    ModelFacts::from_config(Path::new("/m"), config, weights)
}

#[test]
fn missing_fields_are_derived_from_others() {
    let config = json!({
        "model_type": "llama", "hidden_size": 512, "num_attention_heads": 8,
        "num_hidden_layers": 4, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
    });
    let facts = facts(&config).unwrap();
    assert_eq!((facts.kv_heads, facts.head_dim), (8, 64));
    assert_eq!(facts.dtype, Some(Dtype::Bfloat16));
    // 2 (key, value) x 4 layers x 4 of 8 heads x 64 elements x 2 bytes.
    assert_eq!(facts.kv_token_bytes(|dim| 2 * dim, 2), 2 * 4 * 4 * 128);
    let bytes = facts.rank_weight_bytes(Device::Cpu, Dtype::Float32, None, 2);
    assert_eq!(bytes, (2 << 20) + 256);
}

#[test]
fn listed_layers_are_counted() {
    let mut config = json!({
        "model_type": "nemotron_h", "hidden_size": 512, "num_attention_heads": 8,
        "max_position_embeddings": 2048,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
    });
    let listed = facts(&config).unwrap();
    assert_eq!((listed.layers, listed.states.unwrap().layers), (1, 1));
    config["layers_block_type"] = json!([]);
    let error = facts(&config).unwrap_err();
    assert!(error.contains("num_hidden_layers"), "{error}");
}

#[test]
fn models_without_attention_need_no_heads() {
    let mut config = json!({
        "model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "head_dim": 64,
    });
    for (family, tokens) in [("mamba", 2048), ("falcon_mamba", 8192), ("mamba2", 262_144)] {
        config["model_type"] = json!(family);
        let found = facts(&config).unwrap();
        assert!(!found.attends() && found.kv_token_bytes(|dim| 2 * dim, 1) == 0);
        assert_eq!((found.layers, found.states.unwrap().layers), (0, 24));
        assert_eq!(found.max_tokens, tokens);
    }
    config["model_type"] = json!("llama");
    assert!(facts(&config).unwrap_err().contains("num_attention_heads"));
}

#[test]
fn layers_that_attend_to_images_are_left_out() {
    let config = json!({"model_type": "mllama", "text_config": {
        "model_type": "mllama_text_model", "hidden_size": 512, "num_attention_heads": 8,
        "num_hidden_layers": 40, "max_position_embeddings": 2048,
        "cross_attention_layers": [3, 8, 13],
    }});
    assert_eq!(facts(&config).unwrap().layers, 37);
}

#[test]
fn layers_of_zamba2_may_have_a_transformer_before_mamba() {
    let mut config = json!({
        "model_type": "zamba2", "hidden_size": 3584, "n_mamba_heads": 112, "mamba_ngroups": 2,
        "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    });
    let found = facts(&config).unwrap();
    // Heads share twice the hidden size.
    assert_eq!((found.layers, found.kv_heads, found.head_dim), (2, 32, 224));
    assert_eq!(found.max_tokens, 4096);
    let states = found.states.unwrap();
    let layer = 112 * 64 * 64 * 4 + 3 * (7168 + 2 * 2 * 64) * 2;
    assert_eq!(states.bytes(Dtype::Bfloat16, 1), 4 * layer);
    config["layers_block_type"] = json!(null);
    config["num_hidden_layers"] = json!(null);
    assert_eq!(facts(&config).unwrap().layers, 9);
}

#[test]
fn places_of_zamba_follow_a_period() {
    let mut config = json!({"model_type": "zamba", "hidden_size": 3712});
    let found = facts(&config).unwrap();
    // Heads share twice the hidden size.
    assert_eq!(
        (found.layers, found.kv_heads, found.head_dim),
        (13, 16, 464)
    );
    let states = found.states.unwrap();
    let layer = 7424 * 16 * 4 + 3 * 7424 * 2;
    assert_eq!(states.bytes(Dtype::Bfloat16, 1), 76 * layer);
    assert_eq!(states.shared, ("the number of Mamba channels", 7424));
    config["num_hidden_layers"] = json!(3);
    config["layers_block_type"] = json!(["mamba", "hybrid", "hybrid"]);
    config["attention_head_dim"] = json!(128);
    let found = facts(&config).unwrap();
    assert_eq!((found.layers, found.head_dim), (2, 128));
    assert_eq!(found.states.unwrap().layers, 3);
}

#[test]
fn quantized_weights_take_their_bits_on_cuda_and_become_floats_on_the_cpu() {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 512, "num_attention_heads": 8,
        "num_hidden_layers": 4, "max_position_embeddings": 2048,
    });
    let fp8 = Some(Quantize::Fp8);
    let plain = facts(&config).unwrap();
    let bytes = plain.rank_weight_bytes(Device::Cuda, Dtype::Bfloat16, fp8, 1);
    assert_eq!(bytes, (1 << 20) + (1 << 19) + 512);
    let bytes = plain.rank_weight_bytes(Device::Cpu, Dtype::Float32, fp8, 1);
    assert_eq!(bytes, (4 << 20) + 512);
    config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    let stored = facts(&config).unwrap();
    let bytes = stored.rank_weight_bytes(Device::Cuda, Dtype::Bfloat16, None, 1);
    assert_eq!(bytes, (2 << 20) + 512);
    let bytes = stored.rank_weight_bytes(Device::Cpu, Dtype::Float32, None, 1);
    assert_eq!(bytes, (4 << 20) + 1024 * 4);
}

#[test]
fn fields_of_latents_of_hunyuan_are_unused() {
    let config = json!({
        "model_type": "hunyuan_v1_moe", "hidden_size": 512, "num_attention_heads": 8,
        "num_hidden_layers": 4, "max_position_embeddings": 2048, "head_dim": 64,
        "num_key_value_heads": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    });
    let facts = facts(&config).unwrap();
    assert_eq!((facts.kv_heads, facts.head_dim), (2, 64));
}

#[test]
fn families_have_default_sizes() {
    let config = json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
        },
    });
    let found = facts(&config).unwrap();
    let heads = (found.heads, found.kv_heads, found.head_dim);
    assert_eq!(heads, (8, 4, 256));
    assert_eq!(found.max_tokens, 131_072);
    assert!(found.sliding);
    for (family, kv_heads, head_dim, slides) in [
        ("afmoe", 16, 128, true),
        ("cohere2_moe", 16, 128, true),
        ("cwm", 8, 128, true),
        ("gemma3n_text", 2, 256, true),
        ("granite_swa", 4, 32, true),
        ("hy_v3", 8, 128, false),
        ("laguna", 8, 128, false),
        ("mellum", 4, 128, false),
        ("mimo_v2_flash", 8, 192, true), // in layers with windows
        ("minicpm3", 1, 288, false),     // a row of latents
        ("mistral4", 1, 320, false),
        ("muse_glimmer_text", 2, 128, true),
        ("solar_open", 16, 128, false),
        ("step3p5", 8, 128, false),
        ("vaultgemma", 4, 256, true),
        ("youtu", 1, 576, false), // likewise
    ] {
        let found = facts(&json!({
            "model_type": family, "hidden_size": 512, "num_attention_heads": 16,
            "num_hidden_layers": 1, "max_position_embeddings": 2048,
        }));
        let found = found.unwrap();
        assert_eq!(
            (found.kv_heads, found.head_dim),
            (kv_heads, head_dim),
            "{family}"
        );
        assert_eq!(found.sliding, slides, "{family}");
    }
}

#[test]
fn numbers_of_dbrx_are_in_objects() {
    let config = json!({
        "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
        "attn_config": {"kv_n_heads": 8}, "ffn_config": {"moe_num_experts": 16, "moe_top_k": 4},
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.heads, found.kv_heads, found.head_dim), (48, 8, 128));
    let experts = found.experts.unwrap();
    assert_eq!((experts.count, experts.per_token), (16, 4));
}

#[test]
fn step_has_other_names_of_sizes() {
    let config = json!({
        "model_type": "step3p7", "architectures": ["Step3p7ForConditionalGeneration"],
        "text_config": {
            "model_type": "step3p5", "hidden_size": 4096, "num_attention_groups": 4,
            "moe_num_experts": 288, "moe_top_k": 6, "max_seq_len": 262_144, "sliding_window": 512,
            "num_nextn_predict_layers": 3, "layer_types": vec!["sliding_attention"; 48],
        },
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.layers, found.heads, found.kv_heads), (45, 64, 4));
    assert_eq!((found.head_dim, found.max_tokens), (128, 262_144));
    let experts = found.experts.unwrap();
    assert_eq!((experts.count, experts.per_token), (288, 6));
    assert!(found.sliding && found.states.is_none());
    assert_eq!(found.kv_token_bytes(|dim| 2 * dim, 2), 45 * 2 * 2 * 256);
}

#[test]
fn layers_of_both_kinds_take_memory() {
    let config = json!({
        "model_type": "gemma4", "text_config": {
            "model_type": "gemma4_text", "num_hidden_layers": 12, "attention_k_eq_v": true,
            "num_global_key_value_heads": 2, "enable_moe_block": true, "num_experts": 128,
            "top_k_experts": 8,
        },
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.layers, found.heads, found.kv_heads), (10, 8, 4));
    assert_eq!(found.experts.unwrap().per_token, 8);
    let bytes = 2 * (10 * 2 * 512 + 2 * 1024);
    assert_eq!(found.kv_token_bytes(|dim| 2 * dim, 2), bytes);
}

#[test]
fn layers_of_inkling_have_keys_and_convolutions() {
    let config = json!({"model_type": "inkling_mm_model", "text_config": {
        "model_type": "inkling_text", "n_routed_experts": 256,
    }});
    let found = facts(&config).unwrap();
    assert_eq!((found.layers, found.heads, found.kv_heads), (55, 64, 16));
    assert_eq!((found.head_dim, found.max_tokens), (128, 131_072));
    assert!(found.sliding && found.experts.unwrap().per_token == 6);
    let bytes = 2 * (55 * 2 + 11) * 256;
    assert_eq!(found.kv_token_bytes(|dim| 2 * dim, 8), bytes);
    // Every rank keeps both outputs, and its share of the KV heads, or one of them.
    let states = found.states.unwrap();
    for (ranks, heads) in [(1, 16), (8, 2), (32, 1)] {
        let layer = 3 * (2 * heads * 128 + 2 * 6144) * 2;
        assert_eq!(states.bytes(Dtype::Bfloat16, ranks), 66 * layer);
        assert!(states.divides(ranks.into()));
    }
}

#[test]
fn layers_of_zaya_have_keys_and_convolutions() {
    let listed = json!({
        "model_type": "zaya", "num_experts": 16, "sliding_window": 1024,
        "layer_types": ["hybrid", "hybrid_sliding", "hybrid_sliding"], "num_hidden_layers": 3,
    });
    for (config, layers) in [(listed, 3), (json!({"model_type": "zaya"}), 40)] {
        let found = facts(&config).unwrap();
        assert_eq!((found.layers, found.heads, found.kv_heads), (layers, 8, 2));
        assert_eq!((found.head_dim, found.max_tokens), (128, 131_072));
        assert!(found.experts.is_none_or(|experts| experts.per_token == 1));
        // Two ranks share the KV heads; four have two copies of each.
        let states = found.states.unwrap();
        for (ranks, kv_heads) in [(1, 2), (2, 1), (4, 1)] {
            let layer = kv_heads * (2 * 5 + 1) * 128 * 2;
            assert_eq!(states.bytes(Dtype::Bfloat16, ranks), layers * layer);
            assert!(states.divides(ranks.into()));
        }
    }
}

#[test]
fn layers_of_inkling_2_are_as_inklings() {
    let config = json!({"model_type": "inkling2", "text_config": {
        "model_type": "inkling2_text", "n_routed_experts": 384,
    }});
    let found = facts(&config).unwrap();
    assert_eq!((found.layers, found.heads, found.kv_heads), (40, 48, 8));
    assert_eq!((found.head_dim, found.max_tokens), (128, 1 << 20));
    assert!(found.sliding && found.experts.unwrap().per_token == 8);
    let states = found.states.unwrap();
    let layer = 3 * (2 * 8 * 128 + 2 * 4608) * 2;
    assert_eq!(states.bytes(Dtype::Bfloat16, 1), 48 * layer);
}

#[test]
fn latents_are_one_row_per_token_on_every_rank() {
    let config = json!({
        "model_type": "deepseek_v2", "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_hidden_layers": 27, "max_position_embeddings": 4096,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_dim": 64,
    });
    let found = facts(&config).unwrap();
    assert!(found.latent);
    assert_eq!((found.heads, found.kv_heads, found.head_dim), (16, 1, 576));
    for ranks in [1, 2] {
        assert_eq!(found.kv_token_bytes(|dim| 2 * dim, ranks), 27 * 2 * 576);
    }
    let pairs = json!({"model_type": "longcat_flash", "num_layers": 28});
    assert_eq!(layer_count(&pairs), Ok(56));
}

#[test]
fn rows_have_an_index_key_of_each_head() {
    let mut config = json!({
        "model_type": "qwen4_exp_text", "hidden_size": 2048, "num_attention_heads": 16,
        "num_hidden_layers": 4, "indexer_head_dim": 128,
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.kv_heads, found.head_dim, found.index), (2, 256, 128));
    assert_eq!((found.layers, found.max_tokens), (1, 32_768));
    assert_eq!(
        found.kv_token_bytes(|dim| 2 * dim, 1),
        2 * 2 * (2 * 256 + 128)
    );
    assert_eq!(found.kv_token_bytes(|dim| 2 * dim, 4), 2 * (2 * 256 + 128));
    config["indexer_head_dim"] = json!(null);
    assert_eq!(facts(&config).unwrap().index, 0);
}

#[test]
fn layers_that_choose_blocks_have_index_keys() {
    let mut text = json!({
        "model_type": "minimax_m3_vl_text", "hidden_size": 6144, "num_hidden_layers": 3,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "num_local_experts": 128,
    });
    let bytes = 2 * (2 * (2 * 128 + 128) + 2 * 128);
    let found = facts(&text).unwrap();
    assert_eq!((found.layers, found.heads, found.index), (2, 64, 128));
    assert_eq!((found.kv_heads, found.head_dim), (4, 128));
    assert_eq!(found.experts.unwrap().per_token, 4);
    assert_eq!(found.kv_token_bytes(|dim| 2 * dim, 4), bytes);
    text["layer_types"] = json!(null);
    assert_eq!(facts(&text).unwrap().index, 0);
    text["sparse_attention_config"] =
        json!({"sparse_attention_freq": [0, 1, 1], "sparse_index_dim": 64});
    let found = facts(&json!({"model_type": "minimax_m3_vl", "text_config": text})).unwrap();
    assert_eq!((found.layers, found.full.unwrap().layers), (2, 1));
    assert_eq!(found.kv_token_bytes(|dim| 2 * dim, 4), bytes - 2 * 2 * 64);
}

#[test]
fn rows_of_sparse_attention_have_an_index_key() {
    for family in ["deepseek_v32", "glm_moe_dsa", "hy_v4"] {
        let mut config = json!({
            "model_type": family, "hidden_size": 7168, "num_attention_heads": 128,
            "num_hidden_layers": 61, "max_position_embeddings": 4096, "head_dim": 192,
        });
        assert_eq!(facts(&config).unwrap().head_dim, 512 + 64 + 128);
        config["index_head_dim"] = json!(64);
        let found = facts(&config).unwrap();
        assert_eq!((found.latent, found.head_dim), (true, 640));
        assert_eq!(found.kv_token_bytes(|dim| 2 * dim, 2), 61 * 2 * 640);
    }
}

#[test]
fn rows_of_pooled_attention_have_an_index_key_and_a_gate() {
    let config = json!({
        "model_type": "glm5_next_text", "hidden_size": 4096, "head_dim": 0, "qk_rope_head_dim": 0,
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.latent, found.head_dim), (true, 512 + 2 * 128));
    assert_eq!(
        (found.layers, found.heads, found.max_tokens),
        (11, 64, 1 << 20)
    );
    assert_eq!(found.kv_token_bytes(|dim| 2 * dim, 2), 11 * 2 * 768);
}

#[test]
fn rows_of_dots3_have_two_sizes() {
    let mut config = json!({
        "model_type": "dots3_note", "hidden_size": 5120, "sliding_window_size": 512,
        "vision_config": {"hidden_size": 1536},
    });
    let found = facts(&config).unwrap();
    assert!(found.latent && found.sliding);
    assert_eq!((found.heads, found.max_tokens), (128, 1 << 19));
    assert_eq!((found.layers, found.head_dim), (33, 1024 + 64));
    let full = found.full.unwrap();
    assert_eq!((full.layers, full.head_dim), (13, 512 + 64 + 128));
    for ranks in [1, 2] {
        let bytes = 2 * (33 * 1088 + 13 * 704);
        assert_eq!(found.kv_token_bytes(|dim| 2 * dim, ranks), bytes);
    }
    config["use_dsa"] = json!(false);
    assert_eq!(facts(&config).unwrap().full.unwrap().head_dim, 512 + 64);
    config["use_sliding_window"] = json!(false);
    let found = facts(&config).unwrap();
    assert_eq!((found.layers, found.head_dim), (46, 576));
    assert_eq!(found.full, None);
}

#[test]
fn tokens_of_deepseek_v4_have_a_share_of_an_entry() {
    let config = json!({"model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43});
    let found = facts(&config).unwrap();
    assert!(found.latent && found.sliding);
    assert_eq!(
        (found.heads, found.kv_heads, found.head_dim),
        (64, 1, (512 + 128) / 4)
    );
    for ranks in [1, 2] {
        assert_eq!(found.kv_token_bytes(|dim| 2 * dim, ranks), 43 * 2 * 160);
    }
}

#[test]
fn gpt_families_have_other_names() {
    let mut config = json!({
        "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40,
        "n_positions": 8192,
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.heads, found.kv_heads, found.head_dim), (48, 1, 128));
    assert_eq!((found.layers, found.max_tokens), (40, 8192));
    config["multi_query"] = json!(false);
    assert_eq!(facts(&config).unwrap().kv_heads, 48);
    config["n_head"] = json!(0);
    let error = facts(&config).unwrap_err();
    assert!(
        error.contains("num_attention_heads must be a whole number"),
        "{error}"
    );
}

#[test]
fn yarn_makes_the_context_longer() {
    let mut config = json!({
        "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
        "num_hidden_layers": 28, "max_position_embeddings": 32_768,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    });
    assert_eq!(facts(&config).unwrap().max_tokens, 131_072);
    config["max_position_embeddings"] = json!(163_840);
    assert_eq!(facts(&config).unwrap().max_tokens, 163_840);
    config["rope_scaling"] = json!({"type": "linear", "factor": 4.0});
    config["max_position_embeddings"] = json!(16_384);
    assert_eq!(facts(&config).unwrap().max_tokens, 16_384);
    config["max_position_embeddings"] = json!(1_010_000);
    config["dual_chunk_attention_config"] = json!({"chunk_size": 262_144, "local_size": 8192});
    assert_eq!(facts(&config).unwrap().max_tokens, 262_144);
}

#[test]
fn a_base_of_rope_may_grow() {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
        "num_hidden_layers": 32, "max_position_embeddings": 2048,
    });
    assert!(!facts(&config).unwrap().extends);
    config["rope_scaling"] = json!({"type": "dynamic", "factor": 2.0});
    assert!(facts(&config).unwrap().extends);
    config["rope_parameters"] = json!({"rope_type": "linear", "factor": 2.0});
    assert!(facts(&config).unwrap().extends, "the older name counts");
    config["rope_scaling"] = json!(null);
    assert!(!facts(&config).unwrap().extends);
    config["rope_parameters"]["rope_type"] = json!("dynamic");
    assert!(facts(&config).unwrap().extends);
    config["model_type"] = json!("qwen");
    config["seq_length"] = json!(1024);
    let found = facts(&config).unwrap();
    assert_eq!((found.max_tokens, found.extends), (1024, true));
    config["use_dynamic_ntk"] = json!(false);
    assert!(!facts(&config).unwrap().extends);
    config["model_type"] = json!("internlm");
    config["rope_parameters"] = json!(null);
    assert!(!facts(&config).unwrap().extends);
    config["rotary"] = json!({"base": 10_000, "type": "dynamic"});
    assert!(facts(&config).unwrap().extends);
}

#[test]
fn falcon_has_one_kv_head_or_those_of_the_new_decoder() {
    let mut config = json!({
        "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71,
        "num_hidden_layers": 32, "num_kv_heads": 71,
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.kv_heads, found.max_tokens), (1, 2048));
    config["multi_query"] = json!(false);
    assert_eq!(facts(&config).unwrap().kv_heads, 71);
    config["new_decoder_architecture"] = json!(true);
    config["num_kv_heads"] = json!(8);
    assert_eq!(facts(&config).unwrap().kv_heads, 8);
}

#[test]
fn experts_are_found_under_any_name() {
    for name in [
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
    ] {
        let mut config = json!({
            "model_type": "mixtral", "hidden_size": 512, "num_attention_heads": 16,
            "num_hidden_layers": 4, "max_position_embeddings": 2048, "moe_topk": [2, 2],
        });
        assert_eq!(facts(&config).unwrap().experts, None);
        config[name] = json!(16);
        let found = facts(&config).unwrap();
        let experts = Experts {
            count: 16,
            per_token: 2,
        };
        assert_eq!((found.experts, found.kv_heads), (Some(experts), 8));
    }
}

#[test]
fn older_names_of_sizes_are_found() {
    let config = json!({
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 6, "n_positions": 1024,
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.layers, found.heads, found.head_dim), (6, 12, 64));
    assert_eq!(found.max_tokens, 1024);
    let config = json!({
        "model_type": "bloom", "n_embed": 1024, "num_attention_heads": 16, "n_layer": 24,
    });
    let found = facts(&config).unwrap();
    assert_eq!((found.layers, found.kv_heads, found.head_dim), (24, 16, 64));
    assert_eq!(found.max_tokens, 2048);
    let config = json!({
        "model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40,
        "num_hidden_layers": 40, "model_max_length": 4096,
    });
    assert_eq!(facts(&config).unwrap().max_tokens, 4096);
}

#[test]
fn sliding_windows_are_found() {
    let windows = |fields: Value| {
        let mut config = json!({
            "model_type": "qwen2", "hidden_size": 512, "num_attention_heads": 8,
            "num_hidden_layers": 4, "max_position_embeddings": 2048,
        });
        let more = fields.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(more);
        facts(&config).unwrap().sliding
    };
    assert!(!windows(json!({})));
    assert!(!windows(json!({"sliding_window": null})));
    assert!(!windows(
        json!({"sliding_window": 64, "use_sliding_window": false})
    ));
    assert!(windows(json!({"sliding_window": 64})));
    assert!(windows(json!({"model_type": "cohere2"})));
    assert!(windows(json!({"model_type": "llama4_text"}))); // chunks
    assert!(!windows(json!({"model_type": "gemma"})));
}

#[test]
fn errors_name_the_field_and_the_value() {
    let mut config = json!({
        "hidden_size": 512, "num_attention_heads": 0,
        "num_hidden_layers": 4, "max_position_embeddings": 2048,
    });
    let error = facts(&config).unwrap_err();
    assert!(
        error.contains("num_attention_heads must be a whole number above 0, not 0"),
        "{error}"
    );
    config["num_attention_heads"] = Value::Null;
    assert!(
        facts(&config)
            .unwrap_err()
            .contains("has no num_attention_heads")
    );
}
