//! Text files of a model's folder: tokenizer, chat template, special tokens, end tokens.

mod added_tokens;
mod json_file;
mod special_tokens;
mod templates;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use added_tokens::add_listed;
use json_file::{JsonFile, read_optional};
use penstock_request::GenerationDefaults;
use serde_json::{Map, Value};
use special_tokens::{eos_ids, special_tokens};
use templates::{
    Found, built_in_template, compile, find_template, find_tool_template, own_tool_template,
    read_template,
};
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
        let mut tokenizer = load_tokenizer(&dir.join("tokenizer.json"))?;
        let config = JsonFile::read(dir.join("tokenizer_config.json"))?;
        add_listed(&mut tokenizer, &config.value);
        let named = JsonFile::read(dir.join("special_tokens_map.json"))?;
        let special_tokens = special_tokens([&config, &named]);
        let model = JsonFile::read(dir.join("config.json"))?;
        let (template, for_tools) = match &files.chat_template {
            Some(path) => (Some(read_template(path)?), None),
            None => (
                find_template(dir, &config)?.or_else(|| built_in_template(&model)),
                find_tool_template(dir, &config)?,
            ),
        };
        let compiled = |found: Option<Found>| found.map(|found| compile(found, &special_tokens));
        let template = compiled(template).transpose()?;
        let tool_template = match (compiled(for_tools).transpose()?, &files.chat_template) {
            (None, None) => own_tool_template(template.as_ref(), &config, &special_tokens),
            (found, _) => found,
        };
        let generation = files.generation_config.read(dir)?;
        let eos_ids = eos_ids([&generation, &model], &tokenizer, &special_tokens)?;
        Ok(Self {
            defaults: Arc::new(generation.defaults()?),
            tokenizer_config: Arc::new(without_files(config.value)),
            tool_template: tool_template.map(Arc::new),
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

    fn read(&self, dir: &Path) -> Result<JsonFile, ModelTextError> {
        const NAME: &str = "generation_config.json";
        match self {
            Self::Model => JsonFile::read(dir.join(NAME)),
            Self::Off => Ok(JsonFile {
                path: PathBuf::new(),
                value: Value::Null,
            }),
            Self::Folder(folder) => {
                let path = folder.join(NAME);
                let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
                match JsonFile::read(path)? {
                    JsonFile {
                        path,
                        value: Value::Null,
                    } => Err(ModelTextError::Read(path, missing)),
                    file => Ok(file),
                }
            }
        }
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
