//! The facts about a model that the launcher needs before a worker starts: its shape and its weight
//! files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Failure, Outcome};
use crate::values::Dtype;

/// The location of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// On this host, for a worker that the launcher starts.
    Here,
    /// Known only to a worker that another process runs.
    Elsewhere,
}

/// Facts about a model from its directory. `resolve` derives every limit from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// The directory of config.json; workers get it in the Load call.
    pub directory: PathBuf,
    /// The architecture's name in config.json, for messages.
    pub family: String,
    /// Attention layers with a KV cache.
    pub layers: u64,
    /// Query heads; tensor parallelism must divide them.
    pub heads: u64,
    /// KV heads; tensor parallelism must divide them.
    pub kv_heads: u64,
    /// Elements per head.
    pub head_dim: u64,
    /// The context length of the model in tokens.
    pub max_tokens: u32,
    /// The dtype of the stored weights.
    pub dtype: Option<Dtype>,
    /// The size of all weight files in bytes; 0 if they are elsewhere.
    pub weight_bytes: u64,
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
            Failure::runtime(format!(
                "cannot read {shown}: {error}. A model directory holds config.json, tokenizer.json \
                 and *.safetensors; --model takes such a directory or a hub id."
            ))
        })?;
        let config: Value = serde_json::from_str(&text)
            .map_err(|error| Failure::runtime(format!("{shown} is not JSON: {error}")))?;
        let weight_bytes = match weights {
            Weights::Here => weight_bytes(directory)?,
            Weights::Elsewhere => 0,
        };
        Self::from_config(directory, &config, weight_bytes)
            .map_err(|problem| Failure::runtime(format!("{shown}: {problem}")))
    }

    fn from_config(directory: &Path, config: &Value, weight_bytes: u64) -> Result<Self, String> {
        // Multimodal models keep the language model's configuration in `text_config`.
        let text = config.get("text_config").unwrap_or(config);
        let heads = count(text, "num_attention_heads")?;
        let head_dim = match text.get("head_dim") {
            None | Some(Value::Null) => count(text, "hidden_size")? / heads,
            Some(_) => count(text, "head_dim")?,
        };
        let kv_heads = match text.get("num_key_value_heads") {
            None | Some(Value::Null) => heads,
            Some(_) => count(text, "num_key_value_heads")?,
        };
        let dtype = text.get("dtype").or_else(|| text.get("torch_dtype"));
        let dtype = dtype
            .or_else(|| config.get("torch_dtype"))
            .and_then(Value::as_str);
        let max_tokens = count(text, "max_position_embeddings")?;
        Ok(Self {
            directory: directory.to_owned(),
            family: family(config),
            layers: count(text, "num_hidden_layers")?,
            heads,
            kv_heads,
            head_dim,
            max_tokens: u32::try_from(max_tokens).unwrap_or(u32::MAX),
            dtype: dtype.and_then(Dtype::from_name),
            weight_bytes,
        })
    }

    /// Returns the KV bytes of one token on one of `tp` ranks.
    pub fn kv_token_bytes(&self, dtype: Dtype, tp: u32) -> u64 {
        2 * self.layers * (self.kv_heads / u64::from(tp)) * self.head_dim * dtype.bytes()
    }

    /// Returns the bytes of one rank's weights in `dtype`; exact if every layer is split.
    pub fn rank_weight_bytes(&self, dtype: Dtype, tp: u32) -> u64 {
        let stored = self.dtype.unwrap_or(dtype).bytes();
        self.weight_bytes * dtype.bytes() / stored / u64::from(tp)
    }
}

fn family(config: &Value) -> String {
    let architecture = config.get("architectures").and_then(|names| names.get(0));
    let name = architecture
        .or_else(|| config.get("model_type"))
        .and_then(Value::as_str);
    name.unwrap_or("unknown architecture").to_owned()
}

fn count(config: &Value, field: &str) -> Result<u64, String> {
    match config.get(field) {
        None | Some(Value::Null) => Err(format!("has no {field}, which every decoder model has")),
        Some(value) => match value.as_u64() {
            Some(number) if number > 0 => Ok(number),
            _ => Err(format!(
                "{field} must be a whole number above 0, not {value}"
            )),
        },
    }
}

fn weight_bytes(directory: &Path) -> Outcome<u64> {
    let shown = directory.display();
    let entries = std::fs::read_dir(directory)
        .map_err(|error| Failure::runtime(format!("cannot list {shown}: {error}")))?;
    let (mut bytes, mut pickled) = (0, false);
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".safetensors") {
            // Hub caches contain symbolic links; count the size of the target.
            bytes += std::fs::metadata(entry.path()).map_or(0, |metadata| metadata.len());
        }
        pickled |= name.ends_with(".bin") || name.ends_with(".pt");
    }
    match (bytes, pickled) {
        (0, true) => Err(Failure::runtime(format!(
            "{shown} has only pickled weights (*.bin, *.pt), which can run code when loaded. \
             Convert them to safetensors, or take a model that has them."
        ))),
        (0, false) => Err(Failure::runtime(format!(
            "{shown} has no *.safetensors files. Copy the model's weights there, or name another \
             directory with --model."
        ))),
        (bytes, _) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts(config: &Value) -> Result<ModelFacts, String> {
        ModelFacts::from_config(Path::new("/m"), config, 1 << 20)
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
        assert_eq!(facts.kv_token_bytes(Dtype::Bfloat16, 2), 2 * 4 * 4 * 64 * 2);
        assert_eq!(facts.rank_weight_bytes(Dtype::Float32, 2), 1 << 20);
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
