//! The facts about a model that the launcher needs before a worker starts: its shape and its weight
//! files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Failure, Outcome};
use crate::kv_layers::KvLayers;
use crate::model_defaults::{SLIDING_BY_DEFAULT, default_size};
use crate::quantize::{Quantize, StoredQuantization};
use crate::states::{States, listed_kinds};
use crate::values::{Device, Dtype};
use crate::weight_files::StoredWeights;

/// The location of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// On this host, for a worker that the launcher starts.
    Here,
    /// Known only to a worker that another process runs.
    Elsewhere,
}

/// The experts of a layer of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Routed experts; expert parallelism must divide them.
    pub count: u64,
    /// Experts that compute a token, for `--explain`.
    pub per_token: u64,
}

/// Facts about a model from its directory. `resolve` derives every limit from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// The directory of config.json; workers get it in the Load call.
    pub directory: PathBuf,
    /// The architecture's name in config.json, for messages.
    pub family: String,
    /// Attention layers with a KV cache, those in `full` excepted.
    pub layers: u64,
    /// Query heads; tensor parallelism must divide them.
    pub heads: u64,
    /// KV heads; the ranks share them equally, or each is on several ranks. With `latent`, there is one.
    pub kv_heads: u64,
    /// Elements per KV head.
    pub head_dim: u64,
    /// Layers with full attention, where their KV heads are not those of the other layers.
    pub full: Option<KvLayers>,
    /// Whether attention caches one row per token, a latent, a rotated key and perhaps an index key,
    /// in place of keys and values (multi-head latent attention). Every rank has all rows.
    pub latent: bool,
    /// The experts, if the model has any.
    pub experts: Option<Experts>,
    /// The recurrent layers, if the model has any; `layers` does not count them.
    pub states: Option<States>,
    /// The context length of the model in tokens.
    pub max_tokens: u32,
    /// Whether layers may have a sliding window: a sequence then needs less KV memory than all of
    /// its blocks. For `resolve`.
    pub sliding: bool,
    /// The dtype of the stored weights.
    pub dtype: Option<Dtype>,
    /// The sizes of the stored tensors; 0 if they are elsewhere.
    pub weights: StoredWeights,
    /// The format of quantized weights, if config.json names one.
    pub quantization: Option<StoredQuantization>,
}

impl ModelFacts {
    /// Reads config.json and lists the weight files in `directory`.
    ///
    /// # Errors
    /// If a file is missing or config.json lacks a required field.
    pub fn read(directory: &Path, weights: Weights) -> Outcome<Self> {
        let path = directory.join("config.json");
        let shown = path.display();
        let text = std::fs::read_to_string(&path).map_err(|error| {
            if directory.join("params.json").is_file() {
                return Failure::runtime(format!(
                    "{} has params.json and no config.json: it is a checkpoint in Meta's or Mistral's own \
                     layout. `penstock convert` makes a model directory of it.",
                    directory.display()
                ));
            }
            Failure::runtime(format!(
                "cannot read {shown}: {error}. A model directory holds config.json, tokenizer.json \
                 and *.safetensors; --model takes such a directory or a hub id."
            ))
        })?;
        // transformers writes infinity as no JSON has it; no size is infinite.
        let config: Value = serde_json::from_str(&text)
            .or_else(|error| match text.contains("Infinity") {
                true => serde_json::from_str(&text.replace("Infinity", "null")),
                false => Err(error),
            })
            .map_err(|error| Failure::runtime(format!("{shown} is not JSON: {error}")))?;
        let stored = match weights {
            Weights::Here => StoredWeights::read(directory)?,
            Weights::Elsewhere => StoredWeights::default(),
        };
        let mut facts = Self::from_config(directory, &config, stored)
            .map_err(|problem| Failure::runtime(format!("{shown}: {problem}")))?;
        facts.quantization = facts
            .quantization
            .or_else(|| StoredQuantization::beside(directory));
        Ok(facts)
    }

    fn from_config(
        directory: &Path,
        config: &Value,
        weights: StoredWeights,
    ) -> Result<Self, String> {
        // Multimodal models keep the language model's configuration in `text_config`.
        let text = config.get("text_config").unwrap_or(config);
        let heads = count(text, "num_attention_heads")?;
        // Hunyuan's files have the field, and no latent attention.
        let latent = match model_type(text) {
            Some("hunyuan_v1_dense" | "hunyuan_v1_moe") => None,
            _ => size(text, "kv_lora_rank")?,
        };
        let head_dim = match (latent, size(text, "head_dim")?) {
            (Some(rank), _) => {
                let index = size(text, "index_head_dim")?.unwrap_or(0); // of sparse attention
                rank + count(text, "qk_rope_head_dim")? + index
            }
            (None, Some(head_dim)) => head_dim,
            (None, None) => count(text, "hidden_size")? / heads,
        };
        let kv_heads = match latent {
            Some(_) => 1,
            None => kv_heads(text)?.unwrap_or(heads),
        };
        let layers = layer_count(text)?;
        let alike = KvLayers {
            layers,
            kv_heads,
            head_dim,
        };
        let divided = alike.divided(text);
        let dtype = text.get("dtype").or_else(|| text.get("torch_dtype"));
        let dtype = dtype
            .or_else(|| config.get("torch_dtype"))
            .and_then(Value::as_str);
        let max_tokens = count(text, "max_position_embeddings")?;
        let states = States::of(text, layers);
        Ok(Self {
            directory: directory.to_owned(),
            family: family(config),
            layers: match (divided, states) {
                (Some((others, _)), _) => others.layers,
                (None, Some(states)) => states.attending(text, layers),
                (None, None) => layers,
            },
            states,
            heads,
            kv_heads,
            head_dim,
            full: divided.map(|(_, full)| full),
            latent: latent.is_some(),
            experts: experts(text),
            max_tokens: u32::try_from(max_tokens).unwrap_or(u32::MAX),
            sliding: slides(text),
            dtype: dtype.and_then(Dtype::from_name),
            weights,
            quantization: StoredQuantization::of(config).or_else(|| StoredQuantization::of(text)),
        })
    }

    /// Returns the KV heads of one of `tp` ranks. With more ranks than heads, several have the same
    /// head.
    pub fn rank_kv_heads(&self, tp: u32) -> u64 {
        if self.latent {
            self.kv_heads
        } else {
            (self.kv_heads / u64::from(tp)).max(1)
        }
    }

    /// Returns the bytes of one token's keys and values on one of `tp` ranks, if a head of this
    /// many elements takes `head_bytes`.
    pub fn kv_token_bytes(&self, head_bytes: impl Fn(u64) -> u64, tp: u32) -> u64 {
        let planes = if self.latent { 1 } else { 2 };
        let full = self.full.map_or(0, |full| {
            full.layers * full.rank_heads(tp) * head_bytes(full.head_dim)
        });
        planes * (self.layers * self.rank_kv_heads(tp) * head_bytes(self.head_dim) + full)
    }

    /// Returns the bytes of one rank's weights in `dtype`, with `quantize` as typed; nearly exact
    /// if every layer is split. On the CPU, quantized weights become floats.
    pub fn rank_weight_bytes(
        &self,
        device: Device,
        dtype: Dtype,
        quantize: Option<Quantize>,
        tp: u32,
    ) -> u64 {
        let bytes = match (device, &self.quantization) {
            (Device::Cpu, None) => self.weights.bytes(dtype, None),
            (Device::Cpu, Some(stored)) => {
                let weights = self.weights.other_bytes * 8 / stored.bits;
                (self.weights.floats + weights) * dtype.bytes()
            }
            (Device::Cuda, None) => self.weights.bytes(dtype, quantize),
            (Device::Cuda, Some(_)) => self.weights.bytes(dtype, None),
        };
        bytes / u64::from(tp)
    }
}

/// Returns the experts; `None` for a dense model.
fn experts(config: &Value) -> Option<Experts> {
    let number = |value: &Value| value.get(0).unwrap_or(value).as_u64(); // perhaps one per layer
    let first = |names: &[&str]| names.iter().find_map(|name| number(config.get(*name)?));
    let names = [
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
    ];
    let chosen = ["num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"];
    Some(Experts {
        count: first(&names).filter(|count| *count > 1)?, // Hunyuan's dense models have 1
        per_token: first(&chosen)?,
    })
}

/// Returns whether layers may have a sliding window.
fn slides(config: &Value) -> bool {
    let is_off = config.get("use_sliding_window") == Some(&Value::Bool(false));
    match config.get("sliding_window") {
        Some(window) => !window.is_null() && !is_off,
        None => model_type(config).is_some_and(|name| SLIDING_BY_DEFAULT.contains(&name)),
    }
}

/// Returns the number of KV heads; `None` if it is that of the query heads.
fn kv_heads(config: &Value) -> Result<Option<u64>, String> {
    let is_set = |field, default| {
        config
            .get(field)
            .and_then(Value::as_bool)
            .unwrap_or(default)
    };
    match model_type(config) {
        Some("gpt_bigcode") if is_set("multi_query", true) => Ok(Some(1)),
        Some("falcon") if is_set("new_decoder_architecture", false) => size(config, "num_kv_heads"),
        Some("falcon") if is_set("multi_query", true) => Ok(Some(1)),
        Some("falcon") => size(config, "num_kv_heads"),
        Some("gpt_bigcode") => Ok(None),
        Some("mimo_v2_flash") => Ok(size(config, "num_key_value_heads")?.map(|full| 2 * full)),
        _ => size(config, "num_key_value_heads"),
    }
}

fn model_type(config: &Value) -> Option<&str> {
    config.get("model_type").and_then(Value::as_str)
}

fn family(config: &Value) -> String {
    let architecture = config.get("architectures").and_then(|names| names.get(0));
    let name = architecture
        .or_else(|| config.get("model_type"))
        .and_then(Value::as_str);
    name.unwrap_or("unknown architecture").to_owned()
}

/// Returns a size of config.json, or the family's default; an error if there is neither.
fn count(config: &Value, field: &str) -> Result<u64, String> {
    size(config, field)?.ok_or_else(|| format!("has no {field}, which every decoder model has"))
}

/// Returns the number of layers; newer files of Nemotron-H only list them. `LongCat` counts pairs.
fn layer_count(config: &Value) -> Result<u64, String> {
    if model_type(config) == Some("longcat_flash") {
        return Ok(2 * count(config, "num_layers")?);
    }
    let listed = listed_kinds(config).map(|kinds| kinds.len() as u64);
    match (size(config, "num_hidden_layers")?, listed) {
        (None, Some(layers)) if layers > 0 => Ok(layers),
        _ => count(config, "num_hidden_layers"),
    }
}

/// Other names of sizes: of models before they had common names.
const OTHER_NAMES: &[(&str, &[&str])] = &[
    ("hidden_size", &["n_embd", "n_embed", "d_model"]),
    ("num_attention_heads", &["n_head", "n_heads", "num_heads"]),
    ("num_hidden_layers", &["n_layer", "n_layers", "num_layers"]),
    (
        "max_position_embeddings",
        &[
            "n_positions",
            "n_ctx",
            "max_seq_len",
            "seq_length",
            "model_max_length",
        ],
    ),
];

fn size(config: &Value, field: &str) -> Result<Option<u64>, String> {
    let names = OTHER_NAMES.iter().find(|(name, _)| *name == field);
    let others = names.map_or(&[][..], |(_, others)| others);
    let mut values = std::iter::once(&field)
        .chain(others)
        .filter_map(|name| config.get(*name));
    match values.find(|value| !value.is_null()) {
        None => Ok(default_size(model_type(config), field)),
        Some(value) => match value.as_u64() {
            Some(number) if number > 0 => Ok(Some(number)),
            _ => Err(format!(
                "{field} must be a whole number above 0, not {value}"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
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
            ("granite_swa", 4, 32, true),
            ("hy_v3", 8, 128, false),
            ("laguna", 8, 128, false),
            ("mellum", 4, 128, false),
            ("mimo_v2_flash", 8, 192, true), // in layers with windows
            ("mistral4", 1, 320, false),     // a row of latents
            ("solar_open", 16, 128, false),
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
}
