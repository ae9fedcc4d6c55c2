//! A generation request, independent of the API, and what is held while its text is in memory.

use std::fmt;
use std::sync::Arc;

use penstock_request::error::ApiError;
use penstock_request::validate::{FieldNames, Parameters};

use crate::chat::Chat;
use crate::tokenize::SpecialTokens;

/// A generation request, independent of the API.
#[derive(Clone, Debug)]
pub struct GenerateInput {
    /// The prompt.
    pub prompt: Prompt,
    /// Parameters of the generation.
    pub parameters: Parameters,
    /// The client's names of these fields; used in error messages.
    pub names: FieldNames,
    /// The budget that holds the prompt's bytes until they are token ids; set by the HTTP routes.
    pub charge: Charge,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text, and whether special tokens are added around it.
    Text(String, SpecialTokens),
    /// Texts before and after the output, for models that fill in the middle.
    Infill {
        /// Text before the output.
        prefix: String,
        /// Text after the output.
        suffix: String,
        /// Whether special tokens are added before them.
        special: SpecialTokens,
    },
    /// Messages for the chat template.
    Chat(Box<Chat>),
    /// Token ids, used unchanged.
    Ids(Vec<u32>),
}

/// A resource that is held until a prompt's text has become token ids, such as a share of a memory
/// budget; released when the last clone is dropped. The default holds nothing.
#[derive(Clone, Debug, Default)]
pub struct Charge(#[expect(dead_code, reason = "it is held, not read")] Option<Arc<dyn Held>>);

/// Any value that threads may share.
trait Held: fmt::Debug + Send + Sync {}

impl Prompt {
    /// Returns the approximate size of its text in bytes: the cost of preparing it.
    pub fn size(&self) -> usize {
        match self {
            Self::Text(text, _) => text.len(),
            Self::Infill { prefix, suffix, .. } => prefix.len() + suffix.len(),
            Self::Chat(chat) => chat.size(),
            Self::Ids(_) => 0,
        }
    }

    /// Fails if the prompt is empty; `name` is the field's name.
    pub(crate) fn check(&self, name: &'static str) -> Result<(), ApiError> {
        let empty = match self {
            Self::Text(text, _) => text.is_empty(),
            // The suffix alone is enough.
            Self::Infill { .. } => false,
            Self::Chat(chat) => chat.messages.is_empty(),
            Self::Ids(ids) => ids.is_empty(),
        };
        if empty {
            let rule = format!("`{name}` cannot be empty");
            return Err(ApiError::validation(name, rule));
        }
        Ok(())
    }
}

impl<T: fmt::Debug + Send + Sync> Held for T {}

impl Charge {
    /// Holds `resource`.
    pub fn new(resource: impl fmt::Debug + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(resource)))
    }
}
