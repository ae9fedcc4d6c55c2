//! Other names of sizes, and what transformers assumes where a family's config.json lacks a field.

/// Other names of sizes: of models before they had common names.
pub(crate) const OTHER_NAMES: &[(&str, &[&str])] = &[
    ("hidden_size", &["n_embd", "n_embed", "d_model"]),
    ("num_attention_heads", &["n_head", "n_heads", "num_heads"]),
    ("num_hidden_layers", &["n_layer", "n_layers", "num_layers"]),
    ("num_key_value_heads", &["num_attention_groups"]),
    (
        "max_position_embeddings",
        &[
            "n_positions",
            "n_ctx",
            "max_seq_len",
            "seq_length",
            "model_max_length",
            "max_sequence_length",
        ],
    ),
];

/// Families whose layers have a sliding window where config.json has no field for it.
pub(crate) const SLIDING_BY_DEFAULT: [&str; 31] = [
    "afmoe",
    "cohere2",
    "cohere2_moe",
    "cwm",
    "deepseek_v4",
    "dots1",
    "dots3_note",
    "dots3_note_text",
    "exaone4",
    "exaone_moe",
    "flint",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "gpt_neo",
    "gpt_oss",
    "granite_swa",
    "granitemoe_swa",
    "inkling2_text",
    "inkling_text",
    "kolibri1",
    "lfm3",
    "llama4_text",
    "mimo_v2_flash",
    "ministral",
    "muse_glimmer_text",
    "olmo3",
    "recurrent_gemma",
    "vaultgemma",
];

/// Sizes that transformers assumes where config.json lacks them: field, size, families.
const SIZES: &[(&str, u64, &str)] = &[
    ("head_dim", 64, "gpt_oss"),
    (
        "head_dim",
        128,
        "afmoe cohere2_moe cwm ernie4_5 flint glm glm4 helium hy_v3 internlm3 kolibri1 laguna lfm3 llama4_text \
        mellum minimax_m2 minimax_m3_vl_text ministral3 muse_glimmer_text nemotron_h qwen3 qwen3_vl_text seed_oss solar_open step3p5 zaya",
    ),
    ("head_dim", 192, "mimo_v2_flash"),
    (
        "head_dim",
        256,
        "gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text qwen3_5 \
        qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text vaultgemma",
    ),
    ("head_dim", 512, "deepseek_v4"),
    ("index_head_dim", 128, "deepseek_v4 minimax_m3_vl_text"),
    ("swa_head_dim", 128, "inkling2_text inkling_text"),
    ("swa_num_key_value_heads", 8, "inkling2_text"),
    ("swa_num_key_value_heads", 16, "inkling_text"),
    ("max_position_embeddings", 2048, "bloom falcon llama mamba"),
    (
        "max_position_embeddings",
        4096,
        "helium nemotron_h zamba zamba2",
    ),
    (
        "max_position_embeddings",
        8192,
        "falcon_h1 falcon_mamba gemma gemma2 recurrent_gemma vaultgemma",
    ),
    (
        "max_position_embeddings",
        32_768,
        "gemma3n_text minicpm3 qwen4_exp qwen4_exp_text",
    ),
    (
        "max_position_embeddings",
        128_000,
        "lfm2 lfm2_moe lfm3 step3p5",
    ),
    (
        "max_position_embeddings",
        131_072,
        "cwm gemma3_text gemma4_text inkling_text muse_glimmer_text phi4_multimodal youtu zaya",
    ),
    (
        "max_position_embeddings",
        262_144,
        "bailing_hybrid bamba flint gemma4_unified_text jamba kolibri1 mamba2",
    ),
    (
        "num_attention_heads",
        8,
        "gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text vaultgemma zaya",
    ),
    (
        "max_position_embeddings",
        1 << 20,
        "deepseek_v4 glm5_next glm5_next_text inkling2_text kimi_linear",
    ),
    (
        "max_position_embeddings",
        1 << 19,
        "dots3_note dots3_note_text minimax_m3_vl_text",
    ),
    ("num_hidden_layers", 30, "gemma4_text gemma4_unified_text"),
    ("num_attention_heads", 16, "youtu zamba"),
    (
        "num_attention_heads",
        32,
        "bailing_hybrid muse_glimmer_text zamba2",
    ),
    ("num_attention_heads", 40, "minicpm3"),
    ("num_attention_heads", 48, "inkling2_text kolibri1"),
    (
        "num_attention_heads",
        64,
        "deepseek_v4 glm5_next glm5_next_text inkling_text minimax_m3_vl_text step3p5",
    ),
    ("num_attention_heads", 128, "dots3_note dots3_note_text"),
    ("num_experts_per_tok", 1, "zaya"),
    (
        "num_experts_per_tok",
        2,
        "jamba minimax minimax_m1 minimax_text_01",
    ),
    ("num_experts_per_tok", 4, "minimax_m3_vl_text"),
    (
        "num_experts_per_tok",
        6,
        "deepseek_v4 inkling_text kolibri1",
    ),
    (
        "num_experts_per_tok",
        8,
        "bailing_hybrid dots3_note dots3_note_text glm5_next glm5_next_text inkling2_text kimi_linear step3p5",
    ),
    ("num_experts_per_tok", 10, "qwen4_exp qwen4_exp_text"),
    ("num_hidden_layers", 32, "youtu"),
    ("num_hidden_layers", 35, "gemma3n_text"),
    ("num_hidden_layers", 40, "zaya"),
    ("num_hidden_layers", 42, "bailing_hybrid"),
    ("num_hidden_layers", 43, "deepseek_v4"),
    ("num_hidden_layers", 45, "glm5_next glm5_next_text step3p5"),
    ("num_hidden_layers", 46, "dots3_note dots3_note_text"),
    ("num_hidden_layers", 48, "inkling2_text"),
    ("num_hidden_layers", 49, "flint"),
    ("num_hidden_layers", 50, "kolibri1"),
    ("num_hidden_layers", 52, "muse_glimmer_text"),
    ("num_hidden_layers", 54, "zamba2"),
    ("num_hidden_layers", 60, "minimax_m3_vl_text"),
    ("num_hidden_layers", 62, "minicpm3"),
    ("num_hidden_layers", 66, "inkling_text"),
    ("num_hidden_layers", 76, "zamba"),
    ("num_key_value_heads", 1, "deepseek_v4"),
    (
        "num_key_value_heads",
        2,
        "ernie4_5 gemma3n_text muse_glimmer_text qwen4_exp qwen4_exp_text zaya",
    ),
    (
        "num_key_value_heads",
        4,
        "flint gemma2 gemma3_text gemma4_text gemma4_unified_text granite_swa kolibri1 lfm3 mellum mimo_v2_flash \
        minimax_m3_vl_text smollm3 vaultgemma",
    ),
    ("num_key_value_heads", 16, "zamba"),
    (
        "num_key_value_heads",
        8,
        "bamba cwm falcon_h1 hy_v3 jamba laguna lfm2 lfm2_moe minimax minimax_m1 minimax_text_01 mixtral \
        nemotron_h phi4_multimodal phimoe step3p5",
    ),
];

/// Returns the sizes that transformers assumes where a family's config.json lacks them.
pub(crate) fn default_size(family: Option<&str>, field: &str) -> Option<u64> {
    let family = family?;
    let lists = |families: &str| families.split(' ').any(|one| one == family);
    let listed = SIZES
        .iter()
        .find(|(name, _, families)| *name == field && lists(families));
    match listed {
        Some((_, size, _)) => Some(*size),
        None => latent_size(family, field),
    }
}

/// Returns the sizes of a row of latents where config.json lacks them.
fn latent_size(family: &str, field: &str) -> Option<u64> {
    let (rank, rotated, index) = match family {
        "axk1" | "bailing_hybrid" | "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite"
        | "kimi_linear" | "longcat_flash" | "youtu" => (512, 64, None),
        "deepseek_v32" | "dots3_note" | "dots3_note_text" | "glm_moe_dsa" | "hy_v4" => {
            (512, 64, Some(128))
        }
        "glm5_next" | "glm5_next_text" => (512, 0, Some(128)),
        "axk2" => (128, 32, Some(128)),
        "minicpm3" => (256, 32, None),
        "mistral4" => (256, 64, None),
        _ => return None,
    };
    match field {
        "kv_lora_rank" => Some(rank),
        "qk_rope_head_dim" => Some(rotated),
        "index_head_dim" => index,
        _ => None,
    }
}
