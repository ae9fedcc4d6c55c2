//! Quantized weights: `--quantize`, and what config.json says of the checkpoint.

use std::ffi::OsStr;
use std::path::Path;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, Error, ValueEnum};
use serde_json::Value;

use crate::values::Dtype;

/// The weight format of `--quantize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Quantize {
    /// LLM.int8 of bitsandbytes.
    Bitsandbytes,
    /// NormalFloat4 of bitsandbytes.
    BitsandbytesNf4,
    /// FP4 of bitsandbytes.
    BitsandbytesFp4,
    /// A GPTQ checkpoint.
    Gptq,
    /// An AWQ checkpoint.
    Awq,
    /// int8 with a scale per output.
    Eetq,
    /// A checkpoint in Marlin's layout, or in GPTQ's.
    Marlin,
    /// float8 e4m3 with a scale per output.
    Fp8,
    /// int4 in groups of 128 inputs, rounded to nearest.
    Int4,
    /// The same; each group covers the range of weights with the least error, which loads slower.
    Int4Mse,
}

/// Other libraries' names of formats, and the values of `--quantize` that they stand for.
const MEANT: [(&str, &[&str]); 3] = [
    ("fp4", &["bitsandbytes-fp4"]),
    ("int8", &["eetq", "bitsandbytes"]),
    ("nf4", &["bitsandbytes-nf4"]),
];

/// Reads the value of `--quantize`. An error suggests what is meant by other libraries' names, which
/// differ in more letters from it than from other values.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeParser;

/// Files that hold the settings where config.json does not, and their format.
const FILES: [(&str, &str); 3] = [
    ("quantize_config.json", "gptq"),
    ("quant_config.json", "awq"),
    ("hf_quant_config.json", "modelopt"),
];

/// What a model directory says of quantized weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredQuantization {
    /// The format, `quant_method` in config.json.
    pub method: String,
    /// The bits of a weight; 8 if config.json does not say.
    pub bits: u64,
    /// The values of `--quantize` that name this format. For `resolve`; a worker has the same rule.
    pub agreeing: Vec<Quantize>,
}

impl TypedValueParser for QuantizeParser {
    type Value = Quantize;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Quantize, Error> {
        let known = EnumValueParser::<Quantize>::new();
        known.parse_ref(command, arg, value).map_err(|mut error| {
            match MEANT.iter().find(|(name, _)| *name == value) {
                Some((_, meant)) => {
                    let meant = meant.iter().map(|name| (*name).to_owned()).collect();
                    error.insert(ContextKind::SuggestedValue, ContextValue::Strings(meant));
                    error
                }
                None => error,
            }
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let variants = Quantize::value_variants().iter();
        Some(Box::new(variants.filter_map(Quantize::to_possible_value)))
    }
}

impl Quantize {
    /// Returns the name in the protocol, which is the flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bitsandbytes => "bitsandbytes",
            Self::BitsandbytesNf4 => "bitsandbytes-nf4",
            Self::BitsandbytesFp4 => "bitsandbytes-fp4",
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::Eetq => "eetq",
            Self::Marlin => "marlin",
            Self::Fp8 => "fp8",
            Self::Int4 => "int4",
            Self::Int4Mse => "int4-mse",
        }
    }

    /// Returns whether floats can be converted to the format while they are loaded.
    pub fn converts_floats(self) -> bool {
        !matches!(self, Self::Gptq | Self::Awq | Self::Marlin)
    }

    /// Returns the bytes of `weights` floats that are quantized while loading, without the scales
    /// of whole rows.
    pub fn bytes(self, weights: u64, dtype: Dtype) -> u64 {
        match self {
            // A scale and a zero point per group.
            Self::Int4 | Self::Int4Mse => weights / 2 + weights / 128 * 2 * dtype.bytes(),
            Self::BitsandbytesNf4 | Self::BitsandbytesFp4 => weights / 2 + weights / 64 * 4,
            Self::Bitsandbytes | Self::Eetq | Self::Fp8 => weights,
            // Formats of checkpoints alone: floats stay floats.
            Self::Gptq | Self::Awq | Self::Marlin => weights * dtype.bytes(),
        }
    }
}

impl StoredQuantization {
    /// Reads a file beside config.json; `None` if there is none. A worker says what is wrong in it.
    pub fn beside(directory: &Path) -> Option<Self> {
        FILES.iter().find_map(|(name, method)| {
            let text = std::fs::read_to_string(directory.join(name)).ok()?;
            let file: Value = serde_json::from_str(&text).ok()?;
            Some(Self::read(method, &file))
        })
    }

    /// Reads a config.json; `None` if its weights are not quantized.
    pub fn of(config: &Value) -> Option<Self> {
        [
            ("quantization_config", "unknown"),
            ("compression_config", "compressed-tensors"),
        ]
        .iter()
        .find_map(|(field, method)| {
            let stored = config.get(*field)?;
            stored.as_object().filter(|fields| !fields.is_empty())?;
            let loads = |bits| stored.get(bits) == Some(&Value::Bool(true));
            let method = match text(stored, "quant_method") {
                Some(named) => named,
                // Before transformers 4.33.
                None if loads("load_in_8bit") || loads("load_in_4bit") => "bitsandbytes",
                None => method,
            };
            Some(Self::read(method, stored))
        })
    }

    fn read(method: &str, stored: &Value) -> Self {
        let stored = stored.get("quantization").unwrap_or(stored);
        Self {
            method: method.to_owned(),
            bits: bits(stored).unwrap_or(8),
            agreeing: agreeing(method, stored),
        }
    }
}

/// Returns the values of `--quantize` that name the format. Fields that are missing or malformed
/// contradict nothing: a worker says what is wrong in them.
fn agreeing(method: &str, stored: &Value) -> Vec<Quantize> {
    match method {
        "awq" => vec![Quantize::Awq],
        "bitsandbytes" => vec![bitsandbytes(stored)],
        "eetq" => vec![Quantize::Eetq],
        "fp8" | "fbgemm_fp8" => vec![Quantize::Fp8],
        "gptq" => vec![Quantize::Gptq, Quantize::Marlin],
        "marlin" => vec![Quantize::Marlin],
        "auto-round" | "intel/auto-round" => {
            let packing = text(stored, "packing_format").or_else(|| text(stored, "backend"));
            match packing.is_some_and(|packing| packing.contains("awq")) {
                true => vec![Quantize::Awq],
                false => vec![Quantize::Gptq, Quantize::Marlin],
            }
        }
        "compressed-tensors" if all(stored, "config_groups", |group| is_fp8(group, stored)) => {
            vec![Quantize::Fp8]
        }
        "modelopt" if is_fp8_algorithm(stored) => vec![Quantize::Fp8],
        _ => Vec::new(),
    }
}

fn bitsandbytes(stored: &Value) -> Quantize {
    let set = |field: &str| stored.get(field) == Some(&Value::Bool(true));
    if !set("load_in_4bit") && !set("_load_in_4bit") {
        return Quantize::Bitsandbytes;
    }
    match text(stored, "bnb_4bit_quant_type") {
        Some("nf4") => Quantize::BitsandbytesNf4,
        _ => Quantize::BitsandbytesFp4,
    }
}

/// Returns whether a group of compressed-tensors is in fp8; `config` has the format of groups that
/// do not name one.
fn is_fp8(group: &Value, config: &Value) -> bool {
    let format = text(group, "format").or_else(|| text(config, "format"));
    let kind = group.pointer("/weights/type").and_then(Value::as_str);
    match format {
        Some("float-quantized") => true,
        Some("naive-quantized") => kind == Some("float"),
        _ => false,
    }
}

/// Returns whether the Model Optimizer's algorithm is fp8, of all modules if they have their own.
fn is_fp8_algorithm(stored: &Value) -> bool {
    match text(stored, "quant_algo") {
        Some("FP8" | "FP8_PER_CHANNEL_PER_TOKEN") => true,
        Some("MIXED_PRECISION") => all(stored, "quantized_layers", is_fp8_algorithm),
        _ => false,
    }
}

/// Returns whether a rule holds for all values of the object in a field.
fn all(stored: &Value, field: &str, rule: impl Fn(&Value) -> bool) -> bool {
    let values = stored.get(field).and_then(Value::as_object);
    values.is_none_or(|values| values.values().all(rule))
}

fn text<'a>(stored: &'a Value, field: &str) -> Option<&'a str> {
    stored.get(field).and_then(Value::as_str)
}

fn bits(stored: &Value) -> Option<u64> {
    let groups = stored.get("config_groups").and_then(Value::as_object);
    let group = groups.and_then(|groups| groups.values().next());
    let four = stored.get("load_in_4bit") == Some(&Value::Bool(true))
        || stored.get("quant_method").and_then(Value::as_str) == Some("mxfp4")
        || stored.get("quant_algo").and_then(Value::as_str) == Some("NVFP4");
    let bits = stored
        .get("bits")
        .or_else(|| stored.get("w_bit"))
        .or_else(|| group?.pointer("/weights/num_bits"))
        .and_then(Value::as_u64)
        .or(four.then_some(4));
    bits.filter(|bits| (1..=16).contains(bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_the_values_of_the_flag() {
        for format in Quantize::value_variants() {
            let value = format.to_possible_value().unwrap();
            assert_eq!(format.name(), value.get_name());
        }
    }

    #[test]
    fn bytes_follow_from_bits_and_scales() {
        let bytes = |format: Quantize| format.bytes(1280, Dtype::Bfloat16);
        assert_eq!(bytes(Quantize::Int4), 640 + 10 * 4);
        assert_eq!(bytes(Quantize::Int4Mse), 640 + 10 * 4);
        assert_eq!(bytes(Quantize::BitsandbytesNf4), 640 + 20 * 4);
        assert_eq!(bytes(Quantize::Fp8), 1280);
        assert_eq!(bytes(Quantize::Gptq), 2560);
    }

    #[test]
    fn settings_may_have_a_file_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let read = || StoredQuantization::beside(directory.path());
        assert_eq!(read(), None);
        let write = |name, text| std::fs::write(directory.path().join(name), text).unwrap();
        write("quant_config.json", r#"{"w_bit": 4, "q_group_size": 128}"#);
        let awq = StoredQuantization {
            method: "awq".into(),
            bits: 4,
            agreeing: vec![Quantize::Awq],
        };
        assert_eq!(read(), Some(awq));
    }

    #[test]
    fn a_flag_agrees_with_the_checkpoints_that_a_worker_accepts() {
        let cases = include_str!("../../tests/worker/agreement.json");
        for case in serde_json::from_str::<Vec<Value>>(cases).unwrap() {
            let config = json!({ "quantization_config": case["config"] });
            let mut found: Vec<_> = StoredQuantization::of(&config).unwrap().agreeing;
            found.sort_by_key(|format| format.name());
            let names: Vec<_> = found.into_iter().map(Quantize::name).collect();
            assert_eq!(json!(names), case["agrees"], "{config}");
        }
    }

    #[test]
    fn config_json_names_method_and_bits() {
        let read = |config: &Value| {
            StoredQuantization::of(config).map(|stored| (stored.method, stored.bits))
        };
        let stored = |fields: Value| read(&json!({ "quantization_config": fields }));
        assert_eq!(
            stored(json!({"quant_method": "gptq", "bits": 4})),
            Some(("gptq".into(), 4))
        );
        assert_eq!(
            stored(json!({"load_in_4bit": true, "quant_method": null})),
            Some(("bitsandbytes".into(), 4))
        );
        assert_eq!(
            stored(
                json!({"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"num_bits": 4}}}})
            ),
            Some(("compressed-tensors".into(), 4))
        );
        assert_eq!(
            stored(json!({"quant_method": "bitsandbytes", "load_in_4bit": true})),
            Some(("bitsandbytes".into(), 4))
        );
        assert_eq!(
            stored(json!({"quant_method": "fp8"})),
            Some(("fp8".into(), 8))
        );
        assert_eq!(
            stored(json!({"quant_method": "gptq", "bits": 0})),
            Some(("gptq".into(), 8))
        );
        assert_eq!(
            stored(json!({"quant_method": "modelopt", "quant_algo": "NVFP4"})),
            Some(("modelopt".into(), 4))
        );
        assert_eq!(stored(Value::Null), None);
        assert_eq!(stored(json!({})), None);
        assert_eq!(
            read(
                &json!({"quantization_config": null, "compression_config": {"config_groups": {}}})
            ),
            Some(("compressed-tensors".into(), 8))
        );
        assert_eq!(read(&json!({})), None);
    }
}
