//! JSON files of a model's folder.

use std::path::{Path, PathBuf};

use penstock_request::GenerationDefaults;
use serde_json::Value;

use super::ModelTextError;
use crate::python_json;

/// A JSON file that may be missing; then its value is null.
pub(super) struct JsonFile {
    pub(super) path: PathBuf,
    pub(super) value: Value,
}

impl JsonFile {
    pub(super) fn read(path: PathBuf) -> Result<Self, ModelTextError> {
        let Some(text) = read_optional(&path)? else {
            return Ok(Self {
                path,
                value: Value::Null,
            });
        };
        let value = python_json::parse(&text)
            .map_err(|e| ModelTextError::Format(path.clone(), e.to_string()))?;
        Ok(Self { path, value })
    }

    /// Reads the file as generation_config.json.
    pub(super) fn defaults(&self) -> Result<GenerationDefaults, ModelTextError> {
        let Some(members) = self.value.as_object() else {
            return Ok(GenerationDefaults::default());
        };
        let defaults = GenerationDefaults::from_config(members);
        defaults.map_err(|why| ModelTextError::Value(self.path.clone(), why))
    }
}

pub(super) fn read_optional(path: &Path) -> Result<Option<String>, ModelTextError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ModelTextError::Read(path.to_owned(), error)),
    }
}
