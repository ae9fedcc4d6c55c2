//! What a model's weight files store, by the headers of its safetensors files.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Failure, Outcome};
use crate::quantize::Quantize;
use crate::values::Dtype;

/// The format's own limit of a header in bytes.
const MAX_HEADER: u64 = 100_000_000;
/// Modules of checkpoints with images that a worker does not load.
const NOT_LOADED: [&str; 7] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_",
    "model.audio_",
    "model.embed_vision.",
    "model.embed_audio.",
    "model.multi_modal_projector.",
];
/// Parts of the names of matrices that no format converts.
const PLAIN: [&str; 6] = [
    "embed_tokens",
    "lm_head",
    ".gate.weight",
    ".router.weight",
    ".router.proj.weight",
    "per_layer_",
];
const SUFFIX: &str = ".safetensors";
const SINGLE: &str = "model.safetensors";
/// Says which file has which tensor.
const INDEX: &str = "model.safetensors.index.json";

/// The sizes of the tensors that workers load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredWeights {
    /// Elements of floating-point tensors; a worker converts them to its dtype.
    pub floats: u64,
    /// Those of `floats` that are matrices of linear layers, which `--quantize` converts.
    pub linear: u64,
    /// Bytes of all other tensors (quantized weights); a worker keeps their form.
    pub other_bytes: u64,
}

impl StoredWeights {
    /// Reads the headers of the safetensors files in `directory` that workers load.
    ///
    /// A file that is damaged counts by its size: the worker that loads it says what is wrong.
    ///
    /// # Errors
    /// If the directory cannot be listed, has no such file, or several without an index.
    pub fn read(directory: &Path) -> Outcome<Self> {
        let mut found = Self::default();
        for path in weight_files(directory)? {
            found.add_file(&path);
        }
        Ok(found)
    }

    /// Returns the bytes that a worker of `dtype` needs for all tensors, with the matrices of
    /// linear layers in the format `quantize`.
    pub fn bytes(self, dtype: Dtype, quantize: Option<Quantize>) -> u64 {
        let linear = quantize.map_or(self.linear * dtype.bytes(), |format| {
            format.bytes(self.linear, dtype)
        });
        (self.floats - self.linear) * dtype.bytes() + linear + self.other_bytes
    }

    fn add_file(&mut self, path: &Path) {
        match header(path) {
            Some(header) => {
                for (name, entry) in &header {
                    self.add_tensor(name, entry);
                }
            }
            // Hub caches contain symbolic links; count the size of the target.
            None => self.other_bytes += std::fs::metadata(path).map_or(0, |file| file.len()),
        }
    }

    fn add_tensor(&mut self, name: &str, entry: &Value) {
        let offset = |end: usize| entry["data_offsets"][end].as_u64().unwrap_or(0);
        let bytes = offset(1).saturating_sub(offset(0));
        if NOT_LOADED.iter().any(|module| name.starts_with(module)) {
            return;
        }
        let floats = match entry["dtype"].as_str() {
            Some("F64") => bytes / 8,
            Some("F32") => bytes / 4,
            Some("F16" | "BF16") => bytes / 2,
            _ => {
                self.other_bytes += bytes; // also the metadata, which has no offsets
                return;
            }
        };
        self.floats += floats;
        let dimensions = entry["shape"].as_array().map_or(0, Vec::len);
        // Three of them: the matrices of all experts of a layer.
        if matches!(dimensions, 2 | 3) && !PLAIN.iter().any(|module| name.contains(module)) {
            self.linear += floats;
        }
    }
}

/// Returns the files that workers load: model.safetensors, those that an index lists, or the only one. The worker
/// (`weights/files.py`) finds the same.
fn weight_files(directory: &Path) -> Outcome<Vec<PathBuf>> {
    let shown = directory.display();
    let entries = std::fs::read_dir(directory)
        .map_err(|error| Failure::runtime(format!("cannot list {shown}: {error}")))?;
    let names: BTreeSet<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let ending = |suffix: &str| -> Vec<&String> {
        names.iter().filter(|name| name.ends_with(suffix)).collect()
    };
    let files = ending(SUFFIX);
    let indices = ending(".safetensors.index.json");
    let index = match indices[..] {
        _ if names.contains(SINGLE) => None,
        _ if names.contains(INDEX) => Some(INDEX),
        [only] => Some(only.as_str()),
        _ => None,
    };
    if files.is_empty() {
        return Err(no_weights(directory, &names));
    }
    if let Some(listed) = index.and_then(|index| listed_files(&directory.join(index))) {
        return Ok(listed.iter().map(|name| directory.join(name)).collect());
    }
    match files[..] {
        _ if names.contains(SINGLE) => Ok(vec![directory.join(SINGLE)]),
        // A damaged index: the worker says so.
        _ if index.is_some() => Ok(files.iter().map(|name| directory.join(name)).collect()),
        [only] => Ok(vec![directory.join(only)]),
        _ => Err(Failure::runtime(format!(
            "{shown} has {} weight files ({}, {}, ...), and no {INDEX} says which file has which \
             tensor. Download the model again.",
            files.len(),
            files[0],
            files[1],
        ))),
    }
}

/// Returns the names of the files that an index lists; None if it is damaged.
fn listed_files(index: &Path) -> Option<BTreeSet<String>> {
    let text = std::fs::read_to_string(index).ok()?;
    let index: Value = serde_json::from_str(&text).ok()?;
    let names = index.get("weight_map")?.as_object()?.values();
    names
        .map(|name| name.as_str().map(str::to_owned))
        .collect::<Option<BTreeSet<_>>>()
        .filter(|names| !names.is_empty())
}

fn no_weights(directory: &Path, names: &BTreeSet<String>) -> Failure {
    let shown = directory.display();
    let is_pickle = |name: &String| name.ends_with(".bin") || name.ends_with(".pt");
    let is_known = |name: &String| name.starts_with("pytorch_model") && name.ends_with(".bin");
    Failure::runtime(if names.iter().any(is_known) {
        format!(
            "{shown} has only pickled weights (pytorch_model*.bin), which can run code when loaded. \
             Run `penstock convert {shown} OUT`, and serve OUT."
        )
    } else if names.iter().any(is_pickle) {
        format!(
            "{shown} has only pickled weights (*.bin, *.pt), which can run code when loaded. \
             `penstock convert` reads those named pytorch_model.bin, as transformers names them, or \
             take a model that has *.safetensors."
        )
    } else {
        format!(
            "{shown} has no *.safetensors files. Copy the model's weights there, or name another \
             directory with --model."
        )
    })
}

/// Returns the entries of a file's header; None if the file is damaged.
fn header(path: &Path) -> Option<Map<String, Value>> {
    let mut file = File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return None;
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn write(directory: &Path, name: &str, header: &Value) {
        let text = header.to_string();
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.bytes());
        std::fs::write(directory.join(name), bytes).unwrap();
    }

    #[test]
    fn sizes_follow_from_each_tensor() {
        let directory = tempfile::tempdir().unwrap();
        let first = json!({
            "__metadata__": {"format": "pt"},
            "model.embed_tokens.weight": {"dtype": "BF16", "shape": [5, 2], "data_offsets": [0, 20]},
            "a": {"dtype": "BF16", "shape": [10, 2], "data_offsets": [20, 60]},
            "b": {"dtype": "F32", "shape": [7], "data_offsets": [60, 88]},
            "c": {"dtype": "I8", "shape": [50], "data_offsets": [88, 138]},
        });
        let second = json!({
            "vision_tower.w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]},
            "model.audio_tower.w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]},
            "d": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [36, 40]},
            "mlp.gate.weight": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [40, 52]},
            "experts.down_proj": {"dtype": "BF16", "shape": [3, 2, 2], "data_offsets": [52, 76]},
        });
        write(directory.path(), "1.safetensors", &first);
        write(directory.path(), "2.safetensors", &second);
        write_index(directory.path(), INDEX, &["1.safetensors", "2.safetensors"]);
        let found = StoredWeights::read(directory.path()).unwrap();
        assert_eq!((found.floats, found.other_bytes), (30 + 7 + 18, 50 + 4));
        assert_eq!(found.linear, 20 + 12);
        assert_eq!(found.bytes(Dtype::Bfloat16, None), 55 * 2 + 54);
        assert_eq!(found.bytes(Dtype::Float32, None), 55 * 4 + 54);
        let eight_bits = found.bytes(Dtype::Bfloat16, Some(Quantize::Fp8));
        assert_eq!(eight_bits, 23 * 2 + 32 + 54);
    }

    #[test]
    fn a_damaged_file_counts_by_its_size() {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in [("short", vec![1; 5]), ("long", vec![255; 40])] {
            let path = directory.path().join(format!("{name}.safetensors"));
            std::fs::write(path, content).unwrap();
        }
        std::fs::write(directory.path().join(INDEX), "damaged").unwrap();
        let found = StoredWeights::read(directory.path()).unwrap();
        assert_eq!((found.floats, found.other_bytes), (0, 45));
    }

    fn write_index(directory: &Path, name: &str, files: &[&str]) {
        let tensors: Map<_, _> = files
            .iter()
            .map(|&file| (format!("of {file}"), json!(file)))
            .collect();
        let text = json!({"weight_map": tensors}).to_string();
        std::fs::write(directory.join(name), text).unwrap();
    }

    /// The names of the files that are found in a directory.
    fn found_in(directory: &Path) -> Result<Vec<String>, String> {
        let files = weight_files(directory).map_err(|error| error.to_string())?;
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        Ok(files.iter().map(name).collect())
    }

    #[test]
    fn files_have_other_names_in_quantized_checkpoints() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let old = "gptq_model-4bit-128g.safetensors";
        write(path, old, &json!({}));
        assert_eq!(found_in(path).unwrap(), [old]);
        write(path, "other.safetensors", &json!({}));
        let several = found_in(path).unwrap_err();
        assert!(several.contains("has 2 weight files (gptq_model-4bit-128g.safetensors, other"));
        write_index(path, "gptq_model-4bit-128g.safetensors.index.json", &[old]);
        assert_eq!(found_in(path).unwrap(), [old]);
        write(path, SINGLE, &json!({}));
        assert_eq!(found_in(path).unwrap(), [SINGLE]);
        write_index(path, INDEX, &["other.safetensors", old]);
        assert_eq!(found_in(path).unwrap(), [SINGLE]);
        std::fs::remove_file(path.join(SINGLE)).unwrap();
        assert_eq!(found_in(path).unwrap(), [old, "other.safetensors"]);
    }

    #[test]
    fn directories_without_safetensors_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let none = StoredWeights::read(directory.path()).unwrap_err();
        assert!(none.to_string().contains("has no *.safetensors files"));
        let path = directory.path().display().to_string();
        for (name, remedy) in [
            ("model.bin", "named pytorch_model.bin".to_owned()),
            (
                "pytorch_model-1-of-2.bin",
                format!("Run `penstock convert {path} OUT`"),
            ),
        ] {
            std::fs::write(directory.path().join(name), "x").unwrap();
            let pickled = StoredWeights::read(directory.path())
                .unwrap_err()
                .to_string();
            assert!(pickled.contains("only pickled weights"), "{pickled}");
            assert!(pickled.contains(&remedy), "{pickled}");
        }
    }
}
