//! JSON of the token routes: TGI's `/chat_tokenize`, TGI's and vLLM's `/tokenize`, and vLLM's `/detokenize`,
//! `/tokenizer_info`, `/version` and `/load`.

use penstock_request::error::ApiError;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::native::wire::GenerateParameters;
use crate::neutral::{self, Neutral, Neutrals};
use crate::openai::wire::chat::{ChatRequest, Message};
use crate::openai::wire::tools::Tool;
use crate::strict::{self, JsonText, from_object};

from_object!(TokenizeRequest, DetokenizeRequest);

/// Maximum number of token ids in a request: more than a context holds.
pub(crate) const MOST_IDS: usize = 1 << 18;

/// Parameters that are not supported.
pub(crate) const NEUTRAL: Neutrals<1> = [("mm_processor_kwargs", Neutral::Null)];

/// Body of `/tokenize`. Exactly one of `inputs` (TGI), `prompt` and `messages` (vLLM) must be
/// given.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct TokenizeRequest {
    /// A text, not empty. The response is a list of tokens with their offsets.
    pub(crate) inputs: Option<String>,
    /// Only with `inputs`, so that a body for `/generate` is accepted. Has no effect on tokens.
    pub(crate) parameters: Option<GenerateParameters>,
    /// A text.
    pub(crate) prompt: Option<String>,
    /// A conversation, not empty; rendered with the chat template.
    #[serde(default, deserialize_with = "messages")]
    pub(crate) messages: Option<Vec<Message>>,
    /// A name of the served model. Not with `inputs`.
    #[schema(example = "brook")]
    pub(crate) model: Option<String>,
    /// Whether the tokenizer adds special tokens such as BOS. Default: true with `prompt`, false
    /// with `messages`, where the chat template writes them. Not with `inputs`, where they are
    /// always added.
    pub(crate) add_special_tokens: Option<bool>,
    /// Whether the response includes the tokens as the vocabulary spells them. Default false. Not
    /// with `inputs`.
    pub(crate) return_token_strs: Option<bool>,
    /// Only with `messages`: whether the prompt ends with the start of an assistant message.
    /// Default: true unless `continue_final_message` is true.
    pub(crate) add_generation_prompt: Option<bool>,
    /// Only with `messages`: whether the last message stays open. Default false.
    pub(crate) continue_final_message: Option<bool>,
    /// Only with `messages`: a chat template (Jinja) that replaces the model's, if the server
    /// allows it.
    pub(crate) chat_template: Option<String>,
    /// Only with `messages`: additional variables of the chat template.
    #[schema(value_type = Option<Object>)]
    pub(crate) chat_template_kwargs: Option<JsonText>,
    /// Only with `messages`: tools that the model may call.
    #[serde(default, deserialize_with = "crate::openai::wire::tools::tools")]
    pub(crate) tools: Option<Vec<Tool>>,
    /// Not supported.
    #[schema(value_type = Option<Object>)]
    pub(crate) mm_processor_kwargs: Option<JsonText>,
}

/// The input to tokenize.
pub(super) enum Subject {
    /// A text, from TGI's clients.
    Inputs(String),
    /// A text, from vLLM's clients.
    Prompt(String),
    /// A conversation, from vLLM's clients.
    Messages(Box<ChatRequest>),
}

/// Response of `/tokenize`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum TokenizeResponse {
    /// For `inputs`.
    Pieces(Vec<SimpleToken>),
    /// For `prompt` or `messages`.
    Count(TokenCount),
}

/// The tokens of a `prompt` or of `messages`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    /// Number of tokens.
    pub(crate) count: usize,
    /// Maximum number of tokens of prompt and output together.
    pub(crate) max_model_len: usize,
    /// Token ids.
    pub(crate) tokens: Vec<u32>,
    /// The tokens as the vocabulary spells them; null unless `return_token_strs` is true.
    pub(crate) token_strs: Option<Vec<String>>,
}

/// Body of `/detokenize`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a JSON object")]
pub(crate) struct DetokenizeRequest {
    /// A name of the served model.
    #[schema(example = "brook")]
    pub(crate) model: Option<String>,
    /// Token ids.
    #[serde(deserialize_with = "strict::list::<MOST_IDS, _, _>")]
    pub(crate) tokens: Vec<u32>,
}

/// Response of `/detokenize`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetokenizeResponse {
    /// The text of the tokens, special tokens included.
    pub(crate) prompt: String,
}

/// The model's tokenizer: its `tokenizer_config.json` without file names.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenizerInfo {
    /// The tokenizer's class in `transformers`.
    pub(crate) tokenizer_class: String,
    /// The chat template in use, in Jinja.
    pub(crate) chat_template: Option<String>,
    /// All other entries of the file, such as `bos_token`, `eos_token` and `added_tokens_decoder`.
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

/// The server's version.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Version {
    /// Penstock's version.
    pub(crate) version: &'static str,
}

/// The server's load.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Load {
    /// Requests that wait or run, of all routes.
    pub(crate) server_load: u64,
}

fn messages<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Message>>, D::Error> {
    strict::list_or_null::<{ crate::openai::wire::chat::MOST_MESSAGES }, _, _>(from)
}

impl TokenizeRequest {
    /// Returns the input to tokenize. Fails unless exactly one is given, or if a field does not
    /// apply to it.
    pub(super) fn into_subject(self) -> Result<Subject, ApiError> {
        neutral::check(&NEUTRAL, [&self.mm_processor_kwargs])?;
        let subjects = [
            ("inputs", self.inputs.is_some()),
            ("prompt", self.prompt.is_some()),
            ("messages", self.messages.is_some()),
        ];
        let mut given = subjects.iter().filter(|(_, given)| *given);
        let one = match (given.next(), given.next()) {
            (Some((one, _)), None) => *one,
            (first, _) => {
                let found = first.map_or("none", |_| "several");
                let rule = format!(
                    "exactly one of `inputs`, `prompt` and `messages` must be given. Given: {found}"
                );
                return Err(ApiError::validation("inputs", rule));
            }
        };
        self.check_beside(one)?;
        Ok(match (self.inputs, self.prompt, self.messages) {
            (Some(text), ..) => Subject::Inputs(text),
            (_, Some(text), _) => Subject::Prompt(text),
            (.., messages) => Subject::Messages(Box::new(ChatRequest {
                messages: messages.unwrap_or_default(),
                add_generation_prompt: self
                    .add_generation_prompt
                    .or(Some(self.continue_final_message != Some(true))),
                continue_final_message: self.continue_final_message.or(Some(false)),
                chat_template: self.chat_template,
                chat_template_kwargs: self.chat_template_kwargs,
                tools: self.tools,
                ..ChatRequest::default()
            })),
        })
    }

    /// Fails if a field does not apply to `subject`.
    fn check_beside(&self, subject: &str) -> Result<(), ApiError> {
        const CHAT: &[&str] = &["messages"];
        const COUNT: &[&str] = &["prompt", "messages"];
        let fields = [
            ("parameters", self.parameters.is_some(), &["inputs"][..]),
            ("model", self.model.is_some(), COUNT),
            (
                "add_special_tokens",
                self.add_special_tokens.is_some(),
                COUNT,
            ),
            ("return_token_strs", self.return_token_strs.is_some(), COUNT),
            (
                "add_generation_prompt",
                self.add_generation_prompt.is_some(),
                CHAT,
            ),
            (
                "continue_final_message",
                self.continue_final_message.is_some(),
                CHAT,
            ),
            ("chat_template", self.chat_template.is_some(), CHAT),
            (
                "chat_template_kwargs",
                self.chat_template_kwargs.is_some(),
                CHAT,
            ),
            ("tools", self.tools.is_some(), CHAT),
        ];
        let wrong = fields
            .iter()
            .find(|(_, given, beside)| *given && !beside.contains(&subject));
        match wrong {
            Some((name, _, beside)) => {
                let beside = beside.join("` or `");
                let rule = format!("`{name}` goes with `{beside}` only, not with `{subject}`");
                Err(ApiError::validation(name, rule))
            }
            None => Ok(()),
        }
    }
}

/// A token of a text, with its offsets.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SimpleToken {
    /// Token id.
    pub(crate) id: u32,
    /// The characters that the token covers.
    pub(crate) text: String,
    /// Offset of its first character.
    pub(crate) start: usize,
    /// Offset after its last character.
    pub(crate) stop: usize,
}

/// The prompt of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatTokens {
    /// The prompt's tokens.
    pub(crate) tokenize_response: Vec<SimpleToken>,
    /// The prompt's text, as rendered by the chat template.
    pub(crate) templated_text: String,
}

impl From<penstock_text::tokenize::TextPiece> for SimpleToken {
    fn from(piece: penstock_text::tokenize::TextPiece) -> Self {
        Self {
            id: piece.id,
            text: piece.text,
            start: piece.start,
            stop: piece.stop,
        }
    }
}
