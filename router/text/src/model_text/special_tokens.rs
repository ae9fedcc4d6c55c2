//! Special tokens by name, and the tokens that end an answer.

use std::collections::BTreeSet;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::ModelTextError;
use super::json_file::JsonFile;

/// Returns the special tokens by name (`bos_token`, ...): a string, or an object with `content`. The
/// first of `files` that names a token counts.
pub(super) fn special_tokens(files: [&JsonFile; 2]) -> Vec<(String, String)> {
    let members = files.map(|file| file.value.as_object().into_iter().flatten());
    let mut found: Vec<(String, String)> = Vec::new();
    for (name, value) in members.into_iter().flatten() {
        let content = value.as_str().or_else(|| value["content"].as_str());
        let known = found.iter().any(|(earlier, _)| earlier == name);
        if let Some(content) = content.filter(|_| name.ends_with("_token") && !known) {
            found.push((name.clone(), content.to_owned()));
        }
    }
    found
}

/// Returns `eos_token_id` of the first of `files` that has one, and the tokenizer's `eos_token`: fine-tuned
/// models often keep the file of their base model, which does not know the token that ends a turn.
pub(super) fn eos_ids(
    files: [&JsonFile; 2],
    tokenizer: &Tokenizer,
    special_tokens: &[(String, String)],
) -> Result<Vec<u32>, ModelTextError> {
    let mut ids = BTreeSet::new();
    for file in files {
        ids = token_ids(&file.value["eos_token_id"])
            .map_err(|problem| ModelTextError::Format(file.path.clone(), problem))?;
        if !ids.is_empty() {
            break;
        }
    }
    let eos = special_tokens.iter().find(|(name, _)| name == "eos_token");
    ids.extend(eos.and_then(|(_, token)| tokenizer.token_to_id(token)));
    Ok(ids.into_iter().collect())
}

/// Returns the tokens of an `eos_token_id`; null and negative ids are none.
fn token_ids(value: &Value) -> Result<BTreeSet<u32>, String> {
    let listed = match value {
        Value::Null => &[],
        Value::Array(ids) => ids.as_slice(),
        id => std::slice::from_ref(id),
    };
    let mut ids = BTreeSet::new();
    for id in listed {
        let id = id.as_i64().filter(|&id| id <= u32::MAX.into());
        let id = id.ok_or_else(|| {
            format!("`eos_token_id` must be a token id or a list of them, not {value}")
        })?;
        ids.extend(u32::try_from(id));
    }
    Ok(ids)
}
