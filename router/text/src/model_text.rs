//! Text files of a model's folder: tokenizer, chat template, special tokens, end tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_request::GenerationDefaults;
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use crate::chat::ChatTemplate;
use crate::detokenize::Vocabulary;
use crate::infill::Infill;
use crate::text_bound::TextBound;

/// The text side of a model. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ModelText {
    /// Converts text to ids; used by the tokenizer pool.
    pub tokenizer: Arc<Tokenizer>,
    /// Converts ids to text; used by every generation.
    pub vocabulary: Arc<Vocabulary>,
    /// Lower bound of a text's token count; used before a prompt is tokenized.
    pub bound: TextBound,
    /// Fill-in-the-middle tokens; `None` if the model has none.
    pub(crate) infill: Option<Infill>,
    /// Chat template; `None` if the model has none.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Chat template of requests with tools (`tool_use`); `None` if that is `chat_template`.
    pub tool_template: Option<Arc<ChatTemplate>>,
    /// Members of `tokenizer_config.json` except names of files; returned by `/tokenizer_info`.
    pub tokenizer_config: Arc<Map<String, Value>>,
    /// Default end tokens; sorted.
    pub eos_ids: Vec<u32>,
    /// Defaults of sampling parameters.
    pub defaults: Arc<GenerationDefaults>,
}

/// Files that replace those of a model's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextFiles {
    /// The chat template: Jinja, or JSON (`.json`) that holds it.
    pub chat_template: Option<PathBuf>,
    /// Where generation_config.json is.
    pub generation_config: GenerationConfig,
}

/// The source of default parameters and end tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GenerationConfig {
    /// generation_config.json in the model's folder, if it exists.
    #[default]
    Model,
    /// None.
    Off,
    /// generation_config.json in this folder.
    Folder(PathBuf),
}

/// Why a model's text files cannot be used. The message names the file and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum ModelTextError {
    /// There is no tokenizer.json.
    #[error(
        "{0} does not exist, and the folder has no tokenizer that Penstock converts: tekken.json, \
             qwen.tiktoken, hy.tiktoken, tiktoken.model, tokenizer.model, or vocab.json and merges.txt. If \
             transformers has the tokenizer's class, `AutoTokenizer.from_pretrained(FOLDER)\
             .save_pretrained(FOLDER)` writes tokenizer.json; of a tokenizer in custom code, find a \
             tokenizer.json made for this model; docs/checkpoints.md has a way for models without one"
    )]
    NoTokenizer(PathBuf),
    /// The file exists but cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// The file is malformed.
    #[error("{0} is damaged or of an unknown format: {1}")]
    Format(PathBuf, String),
    /// A member of the file has a value that is not allowed.
    #[error("{0}: {1}. --generation-config none ignores the file")]
    Value(PathBuf, String),
    /// The chat template does not compile.
    #[error("the chat template in {0} does not compile: {1}")]
    Template(PathBuf, String),
}

impl ModelText {
    /// Loads a model's folder: tokenizer.json, and if they exist tokenizer_config.json,
    /// chat_template.jinja or chat_template.json, generation_config.json and config.json. A few
    /// models without a template have a built-in one.
    pub fn load(dir: &Path) -> Result<Self, ModelTextError> {
        Self::load_with(dir, &TextFiles::default())
    }

    /// Like `load`, with other files in place of the folder's own.
    pub fn load_with(dir: &Path, files: &TextFiles) -> Result<Self, ModelTextError> {
        let tokenizer = load_tokenizer(&dir.join("tokenizer.json"))?;
        let config = Json::read(dir.join("tokenizer_config.json"))?;
        let special_tokens = special_tokens(&config.value);
        let model = Json::read(dir.join("config.json"))?;
        let (template, for_tools) = match &files.chat_template {
            Some(path) => (Some(read_template(path)?), None),
            None => (
                find_template(dir, &config)?.or_else(|| built_in_template(&model)),
                find_tool_template(dir, &config)?,
            ),
        };
        let compiled = |found: Option<Found>| found.map(|found| compile(found, &special_tokens));
        let template = compiled(template).transpose()?;
        let tool_template = compiled(for_tools).transpose()?.map(Arc::new);
        let generation = files.generation_config.read(dir)?;
        let eos_ids = eos_ids([&generation, &model], &tokenizer, &special_tokens)?;
        Ok(Self {
            defaults: Arc::new(generation.defaults()?),
            tokenizer_config: Arc::new(without_files(config.value)),
            tool_template,
            ..Self::new(tokenizer, template, eos_ids)
        })
    }

    /// Returns a lower bound of the tokens of `text`.
    pub fn least_tokens(&self, text: &str) -> usize {
        self.bound.least_tokens(text.len())
    }

    /// Returns the template of a conversation with or without tools.
    pub fn template(&self, tools: bool) -> Option<&ChatTemplate> {
        let own = self.tool_template.as_deref().filter(|_| tools);
        own.or(self.chat_template.as_deref())
    }

    /// Combines parts that were loaded elsewhere.
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>, eos_ids: Vec<u32>) -> Self {
        let bound = TextBound::from_tokenizer(&tokenizer);
        let infill = Infill::from_tokenizer(&tokenizer);
        let tokenizer = Arc::new(tokenizer);
        let vocabulary = Arc::new(Vocabulary::new(Arc::clone(&tokenizer)));
        Self {
            tokenizer,
            vocabulary,
            bound,
            infill,
            chat_template: template.map(Arc::new),
            tool_template: None,
            tokenizer_config: Arc::default(),
            eos_ids,
            defaults: Arc::default(),
        }
    }
}

impl GenerationConfig {
    /// Reads the defaults for the model in `dir`.
    ///
    /// # Errors
    /// A file that cannot be read or has a value that is not allowed, or a folder without the file.
    pub fn defaults(&self, dir: &Path) -> Result<GenerationDefaults, ModelTextError> {
        self.read(dir)?.defaults()
    }

    fn read(&self, dir: &Path) -> Result<Json, ModelTextError> {
        const NAME: &str = "generation_config.json";
        match self {
            Self::Model => Json::read(dir.join(NAME)),
            Self::Off => Ok(Json {
                path: PathBuf::new(),
                value: Value::Null,
            }),
            Self::Folder(folder) => {
                let path = folder.join(NAME);
                let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
                match Json::read(path)? {
                    Json {
                        path,
                        value: Value::Null,
                    } => Err(ModelTextError::Read(path, missing)),
                    file => Ok(file),
                }
            }
        }
    }
}

/// A JSON file that may be missing; then its value is null.
struct Json {
    path: PathBuf,
    value: Value,
}

impl Json {
    fn read(path: PathBuf) -> Result<Self, ModelTextError> {
        let Some(text) = read_optional(&path)? else {
            return Ok(Self {
                path,
                value: Value::Null,
            });
        };
        let value = serde_json::from_str(&text)
            .map_err(|e| ModelTextError::Format(path.clone(), e.to_string()))?;
        Ok(Self { path, value })
    }

    /// Reads the file as generation_config.json.
    fn defaults(&self) -> Result<GenerationDefaults, ModelTextError> {
        let Some(members) = self.value.as_object() else {
            return Ok(GenerationDefaults::default());
        };
        let defaults = GenerationDefaults::from_config(members);
        defaults.map_err(|why| ModelTextError::Value(self.path.clone(), why))
    }

    fn template(&self) -> Option<Found> {
        let source = pick_template(&self.value["chat_template"])?;
        Some((self.path.clone(), source.to_owned()))
    }
}

fn read_optional(path: &Path) -> Result<Option<String>, ModelTextError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ModelTextError::Read(path.to_owned(), error)),
    }
}

fn load_tokenizer(path: &Path) -> Result<Tokenizer, ModelTextError> {
    let text = read_optional(path)?.ok_or_else(|| ModelTextError::NoTokenizer(path.to_owned()))?;
    let format = |e: tokenizers::Error| ModelTextError::Format(path.to_owned(), e.to_string());
    let mut tokenizer = Tokenizer::from_bytes(text).map_err(format)?;
    // Files saved by a training script may set both; a prompt is never truncated or padded
    // silently.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(format)?;
    Ok(tokenizer)
}

/// Returns the members of a tokenizer's configuration that name no file or folder.
fn without_files(config: Value) -> Map<String, Value> {
    let Value::Object(mut members) = config else {
        return Map::new();
    };
    members.retain(|name, _| !name.ends_with("_file") && !name.ends_with("name_or_path"));
    members
}

/// Returns the special tokens by name (`bos_token`, ...): a string, or an object with `content`.
fn special_tokens(config: &Value) -> Vec<(String, String)> {
    let named = config
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.ends_with("_token"));
    named
        .filter_map(|(name, value)| {
            let content = value.as_str().or_else(|| value["content"].as_str())?;
            Some((name.clone(), content.to_owned()))
        })
        .collect()
}

/// A template and its file.
type Found = (PathBuf, String);

fn find_template(dir: &Path, config: &Json) -> Result<Option<Found>, ModelTextError> {
    let jinja = dir.join("chat_template.jinja");
    if let Some(source) = read_optional(&jinja)? {
        return Ok(Some((jinja, source)));
    }
    let json = Json::read(dir.join("chat_template.json"))?;
    Ok([&json, config].into_iter().find_map(Json::template))
}

/// Returns the template of a model whose repository has code in its place.
fn built_in_template(model: &Json) -> Option<Found> {
    let source = match model.value["model_type"].as_str()? {
        "deepseek_v32" => include_str!("chat/templates/deepseek_v32.jinja"),
        "deepseek_v4" => include_str!("chat/templates/deepseek_v4.jinja"),
        _ => return None,
    };
    Some((model.path.clone(), source.to_owned()))
}

/// Returns the template named `tool_use`, which `transformers` uses for requests with tools.
fn find_tool_template(dir: &Path, config: &Json) -> Result<Option<Found>, ModelTextError> {
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
fn read_template(path: &Path) -> Result<Found, ModelTextError> {
    let read = |error| ModelTextError::Read(path.to_owned(), error);
    let text = std::fs::read_to_string(path).map_err(read)?;
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok((path.to_owned(), text));
    }
    let file = Json::read(path.to_owned())?;
    file.template().ok_or_else(|| {
        ModelTextError::Format(path.to_owned(), "it has no `chat_template`".to_owned())
    })
}

fn compile(
    (path, source): Found,
    special_tokens: &[(String, String)],
) -> Result<ChatTemplate, ModelTextError> {
    ChatTemplate::new(&source, special_tokens.to_vec())
        .map_err(|error| ModelTextError::Template(path, error.to_string()))
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

/// Returns `eos_token_id` of the first of `files` that has one, else the tokenizer's `eos_token`.
fn eos_ids(
    files: [&Json; 2],
    tokenizer: &Tokenizer,
    special_tokens: &[(String, String)],
) -> Result<Vec<u32>, ModelTextError> {
    for file in files {
        let value = &file.value["eos_token_id"];
        let ids = match value {
            Value::Null => continue,
            Value::Array(ids) => ids.iter().map(token_id).collect::<Option<BTreeSet<_>>>(),
            id => token_id(id).map(|id| BTreeSet::from([id])),
        };
        let wrong = || format!("`eos_token_id` must be a token id or a list of them, not {value}");
        let ids = ids.ok_or_else(|| ModelTextError::Format(file.path.clone(), wrong()))?;
        return Ok(ids.into_iter().collect());
    }
    let eos = special_tokens.iter().find(|(name, _)| name == "eos_token");
    Ok(eos
        .and_then(|(_, token)| tokenizer.token_to_id(token))
        .into_iter()
        .collect())
}

fn token_id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_template_file_overrides_the_models_own() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
        let own = ModelText::load(&model).unwrap().chat_template.unwrap();
        let folder = std::env::temp_dir().join(format!("penstock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let named = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            let files = TextFiles {
                chat_template: Some(path),
                ..TextFiles::default()
            };
            ModelText::load_with(&model, &files)
        };
        for (name, text) in [
            ("other.jinja", "{{ messages }}"),
            (
                "tokenizer_config.json",
                r#"{"chat_template": "{{ messages }}"}"#,
            ),
        ] {
            let found = named(name, text).unwrap().chat_template.unwrap();
            assert_eq!(found.source(), "{{ messages }}");
            assert_ne!(found.source(), own.source());
        }
        let list = r#"{"chat_template": [{"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "with {{ tools }}"}]}"#;
        std::fs::copy(model.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
        std::fs::write(folder.join("tokenizer_config.json"), list).unwrap();
        let both = ModelText::load(&folder).unwrap();
        let sources = [false, true].map(|tools| both.template(tools).unwrap().source());
        assert_eq!(sources, ["plain", "with {{ tools }}"]);
        let none = named("none.json", "{}").unwrap_err().to_string();
        assert!(none.contains("no `chat_template`"), "{none}");
        let broken = named("broken.jinja", "{% if %}").unwrap_err().to_string();
        assert!(broken.contains("does not compile"), "{broken}");
        let nowhere = TextFiles {
            chat_template: Some(folder.join("nowhere")),
            ..TextFiles::default()
        };
        let missing = ModelText::load_with(&model, &nowhere);
        assert!(missing.unwrap_err().to_string().contains("cannot read"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_model_with_code_in_the_place_of_a_template_has_a_built_in_one() {
        let folder = std::env::temp_dir().join(format!("penstock-b-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
        std::fs::copy(model.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
        let template = |kind: &str| {
            let config = format!(r#"{{"model_type": "{kind}"}}"#);
            std::fs::write(folder.join("config.json"), config).unwrap();
            let found = ModelText::load(&folder).unwrap().chat_template;
            found.map(|template| template.source().to_owned())
        };
        assert_eq!(template("llama"), None);
        let built_in = ["deepseek_v32", "deepseek_v4"].map(template);
        let tag = |source: &Option<String>| source.as_ref().unwrap().contains("<｜User｜>");
        assert!(built_in.iter().all(tag));
        assert_ne!(built_in[0], built_in[1]);
        std::fs::write(folder.join("chat_template.jinja"), "own").unwrap();
        assert_eq!(template("deepseek_v4").as_deref(), Some("own"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn generation_config_gives_defaults_and_end_tokens_unless_it_is_off() {
        let folder = std::env::temp_dir().join(format!("penstock-g-{}", std::process::id()));
        let other = folder.join("other");
        std::fs::create_dir_all(&other).unwrap();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/penstock/brook");
        std::fs::copy(model.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
        let write = |path: PathBuf, text: &str| std::fs::write(path, text).unwrap();
        let name = "generation_config.json";
        write(
            folder.join(name),
            r#"{"temperature": 0.5, "eos_token_id": [2, 1]}"#,
        );
        write(folder.join("config.json"), r#"{"eos_token_id": 3}"#);
        write(other.join(name), r#"{"top_k": 7}"#);
        let load = |generation_config| {
            let files = TextFiles {
                generation_config,
                ..TextFiles::default()
            };
            ModelText::load_with(&folder, &files)
        };
        for (source, defaults, ends) in [
            (GenerationConfig::Model, "temperature 0.5", vec![1, 2]),
            (GenerationConfig::Off, "", vec![3]),
            (GenerationConfig::Folder(other), "top_k 7", vec![3]),
        ] {
            let text = load(source).unwrap();
            assert_eq!(
                (text.defaults.to_string().as_str(), text.eos_ids),
                (defaults, ends)
            );
        }
        let nowhere = load(GenerationConfig::Folder(folder.join("nowhere")));
        assert!(nowhere.unwrap_err().to_string().contains("cannot read"));
        write(folder.join(name), r#"{"top_p": 2}"#);
        let wrong = load(GenerationConfig::Model).unwrap_err().to_string();
        assert!(wrong.contains("top_p") && wrong.contains(name), "{wrong}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
