//! Chat templates: which file has the model's, and which one is for requests with tools.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ModelTextError;
use super::json_file::{JsonFile, read_optional};
use crate::chat::ChatTemplate;

/// A template and its file.
pub(super) type Found = (PathBuf, String);

pub(super) fn find_template(
    dir: &Path,
    config: &JsonFile,
) -> Result<Option<Found>, ModelTextError> {
    let jinja = dir.join("chat_template.jinja");
    if let Some(source) = read_optional(&jinja)? {
        return Ok(Some((jinja, source)));
    }
    let json = JsonFile::read(dir.join("chat_template.json"))?;
    Ok([&json, config].into_iter().find_map(template_of))
}

/// Returns the template of a model whose repository has code in its place.
pub(super) fn built_in_template(model: &JsonFile) -> Option<Found> {
    let source = match model.value["model_type"].as_str()? {
        "deepseek_v32" => include_str!("../chat/templates/deepseek_v32.jinja"),
        "deepseek_v4" => include_str!("../chat/templates/deepseek_v4.jinja"),
        _ => return None,
    };
    Some((model.path.clone(), source.to_owned()))
}

/// Returns the template named `tool_use`, which `transformers` uses for requests with tools.
pub(super) fn find_tool_template(
    dir: &Path,
    config: &JsonFile,
) -> Result<Option<Found>, ModelTextError> {
    let jinja = dir.join("additional_chat_templates").join("tool_use.jinja");
    if let Some(source) = read_optional(&jinja)? {
        return Ok(Some((jinja, source)));
    }
    let list = config.value["chat_template"].as_array();
    let named = list
        .into_iter()
        .flatten()
        .find(|entry| entry["name"] == "tool_use");
    let source = named.and_then(|entry| entry["template"].as_str());
    Ok(source.map(|source| (config.path.clone(), source.to_owned())))
}

/// Reads the template of a file that the operator named.
pub(super) fn read_template(path: &Path) -> Result<Found, ModelTextError> {
    let read = |error| ModelTextError::Read(path.to_owned(), error);
    let text = std::fs::read_to_string(path).map_err(read)?;
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok((path.to_owned(), text));
    }
    let file = JsonFile::read(path.to_owned())?;
    template_of(&file).ok_or_else(|| {
        ModelTextError::Format(path.to_owned(), "it has no `chat_template`".to_owned())
    })
}

pub(super) fn compile(
    (path, source): Found,
    special_tokens: &[(String, String)],
) -> Result<ChatTemplate, ModelTextError> {
    ChatTemplate::new(&source, special_tokens.to_vec())
        .map_err(|error| ModelTextError::Template(path, error.to_string()))
}

/// Returns the tokenizer's own template if it knows tools and the model's does not, as that of the image
/// processor of Qwen2.5-VL.
pub(super) fn own_tool_template(
    model: Option<&ChatTemplate>,
    config: &JsonFile,
    special_tokens: &[(String, String)],
) -> Option<ChatTemplate> {
    model.filter(|template| !template.knows_tools())?;
    let own = compile(template_of(config)?, special_tokens).ok()?;
    own.knows_tools().then_some(own)
}

/// Returns the template in a file, and the file.
fn template_of(file: &JsonFile) -> Option<Found> {
    let source = pick_template(&file.value["chat_template"])?;
    Some((file.path.clone(), source.to_owned()))
}

/// Returns the template. A list of named templates yields `default`, or its only entry.
fn pick_template(value: &Value) -> Option<&str> {
    if let Some(source) = value.as_str() {
        return Some(source);
    }
    let list = value.as_array()?;
    let default = list.iter().find(|entry| entry["name"] == "default");
    let only = list.first().filter(|_| list.len() == 1);
    default.or(only)?["template"].as_str()
}
