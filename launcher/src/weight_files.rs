//! What a model's weight files store, by the headers of its safetensors files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Failure, Outcome};
use crate::quantize::Quantize;
use crate::values::Dtype;

/// The format's own limit of a header in bytes.
const MAX_HEADER: u64 = 100_000_000;
/// Modules of checkpoints with images that a worker does not load.
const NOT_LOADED: [&str; 2] = ["vision_tower.", "multi_modal_projector."];
/// Parts of the names of matrices that no format converts.
const PLAIN: [&str; 4] = ["embed_tokens", "lm_head", ".gate.weight", ".router.weight"];

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
    /// Reads the headers of all safetensors files in `directory`.
    ///
    /// A file that is damaged counts by its size: the worker that loads it says what is wrong.
    ///
    /// # Errors
    /// If the directory cannot be listed or has no such file.
    pub fn read(directory: &Path) -> Outcome<Self> {
        let shown = directory.display();
        let entries = std::fs::read_dir(directory)
            .map_err(|error| Failure::runtime(format!("cannot list {shown}: {error}")))?;
        let (mut found, mut files, mut pickled) = (Self::default(), 0, false);
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".safetensors") {
                files += 1;
                found.add_file(&entry.path());
            }
            pickled |= name.ends_with(".bin") || name.ends_with(".pt");
        }
        match (files, pickled) {
            (0, true) => Err(Failure::runtime(format!(
                "{shown} has only pickled weights (*.bin, *.pt), which can run code when loaded. \
                 Convert them to safetensors, or take a model that has them."
            ))),
            (0, false) => Err(Failure::runtime(format!(
                "{shown} has no *.safetensors files. Copy the model's weights there, or name \
                 another directory with --model."
            ))),
            _ => Ok(found),
        }
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
            "d": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [36, 40]},
            "mlp.gate.weight": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [40, 52]},
            "experts.down_proj": {"dtype": "BF16", "shape": [3, 2, 2], "data_offsets": [52, 76]},
        });
        write(directory.path(), "1.safetensors", &first);
        write(directory.path(), "2.safetensors", &second);
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
        let found = StoredWeights::read(directory.path()).unwrap();
        assert_eq!((found.floats, found.other_bytes), (0, 45));
    }

    #[test]
    fn directories_without_safetensors_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let none = StoredWeights::read(directory.path()).unwrap_err();
        assert!(none.to_string().contains("has no *.safetensors files"));
        std::fs::write(directory.path().join("model.bin"), "x").unwrap();
        let pickled = StoredWeights::read(directory.path()).unwrap_err();
        assert!(pickled.to_string().contains("only pickled weights"));
    }
}
