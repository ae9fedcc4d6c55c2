//! What transformers assumes where a family's config.json lacks a field.

/// Families whose layers have a sliding window where config.json has no field for it.
pub(crate) const SLIDING_BY_DEFAULT: [&str; 18] = [
    "afmoe",
    "cohere2",
    "cohere2_moe",
    "dots1",
    "exaone4",
    "exaone_moe",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gemma4_unified_text",
    "gpt_oss",
    "granite_swa",
    "granitemoe_swa",
    "lfm3",
    "llama4_text",
    "mimo_v2_flash",
    "ministral",
    "olmo3",
];

/// Returns the sizes that transformers assumes where a family's config.json lacks them.
pub(crate) fn default_size(family: Option<&str>, field: &str) -> Option<u64> {
    match (family?, field) {
        (
            "gemma2" | "gemma3_text" | "gemma4_text" | "gemma4_unified_text",
            "num_attention_heads",
        ) => Some(8),
        (
            "gemma2" | "gemma3_text" | "gemma4_text" | "gemma4_unified_text",
            "num_key_value_heads",
        ) => Some(4),
        (
            "gemma" | "gemma2" | "gemma3_text" | "gemma4_text" | "gemma4_unified_text",
            "head_dim",
        ) => Some(256),
        ("gemma" | "gemma2", "max_position_embeddings") => Some(8192),
        ("gemma3_text" | "gemma4_text", "max_position_embeddings") => Some(131_072),
        ("gemma4_unified_text", "max_position_embeddings") => Some(262_144),
        ("gemma4_text" | "gemma4_unified_text", "num_hidden_layers") => Some(30),
        (
            "afmoe" | "cohere2_moe" | "ernie4_5" | "glm" | "glm4" | "hy_v3" | "internlm3"
            | "laguna" | "lfm3" | "llama4_text" | "mellum" | "minimax_m2" | "ministral3" | "qwen3"
            | "qwen3_vl_text" | "seed_oss" | "solar_open",
            "head_dim",
        ) => Some(128),
        (
            "qwen3_next" | "qwen3_5" | "qwen3_5_text" | "qwen3_5_moe" | "qwen3_5_moe_text",
            "head_dim",
        ) => Some(256),
        ("bloom" | "falcon", "max_position_embeddings") => Some(2048),
        ("ernie4_5", "num_key_value_heads") => Some(2),
        ("gpt_oss", "head_dim") => Some(64),
        ("mimo_v2_flash", "head_dim") => Some(192),
        (
            "granite_swa" | "lfm3" | "mellum" | "mimo_v2_flash" | "smollm3",
            "num_key_value_heads",
        ) => Some(4),
        ("hy_v3" | "laguna", "num_key_value_heads") => Some(8),
        ("nemotron_h", "head_dim") => Some(128),
        ("nemotron_h" | "lfm2" | "lfm2_moe" | "bamba" | "falcon_h1", "num_key_value_heads") => {
            Some(8)
        }
        ("bamba", "max_position_embeddings") => Some(262_144),
        ("falcon_h1", "max_position_embeddings") => Some(8192),
        ("nemotron_h", "max_position_embeddings") => Some(4096),
        ("lfm2" | "lfm2_moe" | "lfm3", "max_position_embeddings") => Some(128_000),
        ("mixtral" | "phimoe", "num_key_value_heads") => Some(8),
        (family, field) => latent_size(family, field),
    }
}

/// Returns the sizes of a row of latents where config.json lacks them.
fn latent_size(family: &str, field: &str) -> Option<u64> {
    let (rank, rotated, index) = match family {
        "axk1" | "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite" | "longcat_flash" => {
            (512, 64, None)
        }
        "deepseek_v32" | "glm_moe_dsa" | "hy_v4" => (512, 64, Some(128)),
        "axk2" => (128, 32, Some(128)),
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
