//! The facts about a model that the launcher needs before a worker starts: its shape and its weight
//! files.

use std::path::{Path, PathBuf};

use penstock_text::python_json;
use serde_json::Value;

use crate::error::{Failure, Outcome};
use crate::kv_layers::{INKLING, KvLayers, choosing_layers};
use crate::model_defaults::{OTHER_NAMES, SLIDING_BY_DEFAULT, default_size};
use crate::quantize::{Quantize, StoredQuantization};
use crate::states::{States, are_all, listed_kinds};
use crate::values::{Device, Dtype};
use crate::weight_files::StoredWeights;

const DEEPSEEK_V4: &str = "deepseek_v4";
const QWEN_1: &str = "qwen";
const ENTRY_TOKENS: u64 = 4; // of the shorter compressed entries of DeepSeek-V4

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
    /// Query heads; tensor parallelism must divide them. 0 = no layer has attention, and `layers`,
    /// `kv_heads` and `head_dim` are 0 too.
    pub heads: u64,
    /// KV heads; the ranks share them equally, or each is on several ranks. With `latent`, there is one.
    pub kv_heads: u64,
    /// Elements per KV head.
    pub head_dim: u64,
    /// Layers with full attention, where their KV heads, or rows of latents, are not those of the other
    /// layers.
    pub full: Option<KvLayers>,
    /// Whether attention caches one row per token, a latent, a rotated key and perhaps an index key,
    /// in place of keys and values (multi-head latent attention). Every rank has all rows.
    pub latent: bool,
    /// Elements of an index key, which a token's row has beside key and value, of each KV head, except
    /// in layers of `full`; 0 = there is none.
    pub index: u64,
    /// The experts, if the model has any.
    pub experts: Option<Experts>,
    /// The recurrent layers, if the model has any; `layers` does not count them.
    pub states: Option<States>,
    /// The context length of the model in tokens; a default if no layer has attention.
    pub max_tokens: u32,
    /// Whether sequences may be longer, because the base of RoPE grows.
    pub extends: bool,
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
        let config = python_json::parse(&text)
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
        let attends = !are_all(text);
        let heads = match attends {
            true => count(text, "num_attention_heads")?,
            false => 0,
        };
        // Hunyuan's files have the field, and no latent attention.
        let latent = match model_type(text) {
            Some("hunyuan_v1_dense" | "hunyuan_v1_moe") => None,
            Some(DEEPSEEK_V4) => size(text, "head_dim")?,
            _ => size(text, "kv_lora_rank")?,
        };
        let head_dim = match latent {
            Some(rank) => latent_row(text, rank)?,
            None if !attends => 0,
            None => match size(text, head_dim_field(text))? {
                Some(head_dim) => head_dim,
                None => read_size(text)? / heads,
            },
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
        let max_tokens = context_length(text)?;
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
            head_dim: divided.map_or(head_dim, |(others, _)| others.head_dim),
            full: divided.map(|(_, full)| full),
            latent: latent.is_some(),
            index: index_key(text)?,
            experts: experts(text),
            max_tokens: u32::try_from(max_tokens).unwrap_or(u32::MAX),
            extends: extends(text),
            sliding: slides(text),
            dtype: dtype.and_then(Dtype::from_name),
            weights,
            quantization: StoredQuantization::of(config).or_else(|| StoredQuantization::of(text)),
        })
    }

    /// Returns whether any layer has attention, and so keys and values.
    pub fn attends(&self) -> bool {
        self.heads > 0
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
        let heads = self.layers * self.rank_kv_heads(tp);
        let index = match self.index {
            0 => 0, // a head of no elements may have parameters all the same
            index => heads * head_bytes(index),
        };
        planes * (heads * head_bytes(self.head_dim) + full) + index
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

/// Returns a number of DBRX, whose config.json has objects of them; or what transformers assumes.
fn of_dbrx(config: &Value, section: &str, field: &str, default: u64) -> u64 {
    let found = config.get(section).and_then(|numbers| numbers.get(field));
    found.and_then(Value::as_u64).unwrap_or(default)
}

/// Returns the experts; `None` for a dense model.
fn experts(config: &Value) -> Option<Experts> {
    if model_type(config) == Some("dbrx") {
        return Some(Experts {
            count: of_dbrx(config, "ffn_config", "moe_num_experts", 4),
            per_token: of_dbrx(config, "ffn_config", "moe_top_k", 1),
        });
    }
    let number = |value: &Value| value.get(0).unwrap_or(value).as_u64(); // perhaps one per layer
    let first = |names: &[&str]| names.iter().find_map(|name| number(config.get(*name)?));
    let names = [
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
    ];
    let chosen = [
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_k",
        "moe_topk",
        "moe_top_k",
        "top_k_experts",
    ];
    Some(Experts {
        count: first(&names).filter(|count| *count > 1)?, // Hunyuan's dense models have 1
        per_token: first(&chosen)
            .or_else(|| default_size(model_type(config), "num_experts_per_tok"))?,
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

/// Returns the elements that attention reads of a token: Zamba's reads the embedding beside the
/// hidden state.
fn read_size(text: &Value) -> Result<u64, String> {
    let hidden = count(text, "hidden_size")?;
    let is_double = matches!(model_type(text), Some("zamba" | "zamba2"));
    Ok(if is_double { 2 * hidden } else { hidden })
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
        Some("dbrx") => Ok(Some(of_dbrx(config, "attn_config", "kv_n_heads", 1))),
        Some("mimo_v2_flash") => Ok(size(config, "num_key_value_heads")?.map(|full| 2 * full)),
        Some(family) if INKLING.contains(&family) => size(config, "swa_num_key_value_heads"),
        _ => size(config, "num_key_value_heads"),
    }
}

/// Returns the elements of an index key that is beside each KV head's key and value; 0 = there is
/// none. Published files of MiniMax-M3 have it in an object.
fn index_key(text: &Value) -> Result<u64, String> {
    if choosing_layers(text) == 0 {
        return Ok(size(text, "indexer_head_dim")?.unwrap_or(0));
    }
    let given = text.pointer("/sparse_attention_config/sparse_index_dim");
    match given.and_then(Value::as_u64) {
        Some(given) => Ok(given),
        None => count(text, "index_head_dim"),
    }
}

/// Returns the field with the elements of a head; of Inkling, in layers with windows.
fn head_dim_field(config: &Value) -> &'static str {
    match model_type(config) {
        Some(family) if INKLING.contains(&family) => "swa_head_dim",
        Some("zamba") => "attention_head_dim",
        _ => "head_dim",
    }
}

/// Returns the elements of a row of latents of `rank` elements: beside the latent a key that rotates
/// and, for sparse attention, an index key. In GLM-5-next no key rotates, and a gate is beside the
/// index key. In DeepSeek-V4 it is what a layer keeps of a token at most: its share of an entry and
/// of an index key.
fn latent_row(text: &Value, rank: u64) -> Result<u64, String> {
    let index = match text.get("use_dsa") {
        Some(Value::Bool(false)) => 0, // as published files of Dots3-Note say it
        _ => size(text, "index_head_dim")?.unwrap_or(0),
    };
    match model_type(text) {
        Some(DEEPSEEK_V4) => Ok((rank + index).div_ceil(ENTRY_TOKENS)),
        Some("glm5_next" | "glm5_next_text") => Ok(rank + 2 * index),
        _ => Ok(rank + count(text, "qk_rope_head_dim")? + index),
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

/// The field of the context length; Qwen 1's `max_position_embeddings` is what its RoPE is extended to.
fn length_field(text: &Value) -> &'static str {
    match model_type(text) {
        Some(QWEN_1) => "seq_length",
        _ => "max_position_embeddings",
    }
}

/// Returns the tokens of the longest sequence. Beyond a chunk, dual chunk attention is not supported.
fn context_length(text: &Value) -> Result<u64, String> {
    let longest = extended_length(text)?;
    let chunks = text.get("dual_chunk_attention_config");
    let sizes = ["chunk_size", "original_max_position_embeddings"];
    let bounds = sizes.map(|name| chunks.and_then(|fields| fields.get(name)?.as_u64()));
    Ok(bounds.into_iter().flatten().fold(longest, u64::min))
}

/// Returns the tokens of the longest sequence that positions allow. Model cards say to add `YaRN` and to leave
/// the field of the length as it is.
fn extended_length(text: &Value) -> Result<u64, String> {
    let longest = count(text, length_field(text))?;
    let Some(rope) = rope(text).filter(|rope| rope_kind(rope) == Some("yarn")) else {
        return Ok(longest);
    };
    let number = |name| rope.get(name).and_then(Value::as_f64);
    let original = number("original_max_position_embeddings").unwrap_or(longest as f64);
    Ok(longest.max((original * number("factor").unwrap_or(1.0)) as u64))
}

/// Whether the base of RoPE grows with the longest sequence.
fn extends(text: &Value) -> bool {
    if model_type(text) == Some(QWEN_1) {
        return text.get("use_dynamic_ntk") != Some(&Value::Bool(false));
    }
    let fields = match model_type(text) {
        Some("internlm") => text.get("rotary"),
        _ => rope(text),
    };
    fields.and_then(rope_kind) == Some("dynamic")
}

/// Returns the fields of RoPE. As in transformers, the older name counts where both have values.
fn rope(text: &Value) -> Option<&Value> {
    let fields = ["rope_scaling", "rope_parameters"].map(|name| text.get(name));
    fields
        .into_iter()
        .flatten()
        .find(|rope| rope.as_object().is_some_and(|fields| !fields.is_empty()))
}

fn rope_kind(rope: &Value) -> Option<&str> {
    rope.get("rope_type").or(rope.get("type"))?.as_str()
}

/// Returns a size of config.json, or the family's default; an error if there is neither.
fn count(config: &Value, field: &str) -> Result<u64, String> {
    size(config, field)?.ok_or_else(|| format!("has no {field}, which every decoder model has"))
}

/// Returns the number of layers; newer files of Nemotron-H only list them. `LongCat` counts pairs.
/// Layers of Llama 3.2 Vision that attend to images are left out.
fn layer_count(config: &Value) -> Result<u64, String> {
    match model_type(config) {
        Some("longcat_flash") => return Ok(2 * count(config, "num_layers")?),
        Some("mllama_text_model") => {
            let cross = config
                .get("cross_attention_layers")
                .and_then(Value::as_array);
            let cross = cross.map_or(0, |layers| layers.len() as u64);
            return Ok(count(config, "num_hidden_layers")?.saturating_sub(cross));
        }
        _ => {}
    }
    let listed = listed_kinds(config).map(|kinds| kinds.len() as u64);
    match (size(config, "num_hidden_layers")?, listed) {
        (None, Some(layers)) if layers > 0 => Ok(layers),
        _ => count(config, "num_hidden_layers"),
    }
}

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
#[path = "model_tests.rs"]
mod tests;
