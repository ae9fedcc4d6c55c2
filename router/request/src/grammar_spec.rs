//! Constraints on the output: as a client sends them, and with all fields that the workers need.

use crate::error::ApiError;
use crate::sampling_params::{SamplingParams, THINKING_TOKEN_BUDGET};

/// A constraint on the output text, as a request states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputConstraint {
    /// The format of `text`.
    pub kind: GrammarFormat,
    /// The client's field that holds it; named in error messages.
    pub field: &'static str,
    /// A JSON schema, a regular expression or a grammar, as the client sent it; or tool calls.
    pub text: String,
    /// Whether the output is forced to complete before its tokens run out.
    pub complete: bool,
}

/// The format of a constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarFormat {
    /// A JSON schema; the output is a document that matches it.
    JsonSchema,
    /// A regular expression that matches the whole output.
    Regex,
    /// A grammar in Lark's syntax, or in EBNF with `root ::=`.
    Ebnf,
    /// Tool calls, as proto/README.md describes them.
    ToolCalls,
    /// Any text.
    Text,
}

impl GrammarFormat {
    /// Maximum bytes of a text that the workers compile. A waiting request holds its grammar in
    /// memory.
    #[must_use]
    pub const fn max_bytes(self) -> usize {
        match self {
            Self::JsonSchema | Self::Ebnf => 256 << 10,
            Self::Regex => 64 << 10,
            Self::ToolCalls => 1 << 20,
            Self::Text => 0,
        }
    }

    /// Returns the name of a document's format in a grammar of tool calls; `None` if it is no
    /// document.
    #[must_use]
    pub const fn document_name(self) -> Option<&'static str> {
        match self {
            Self::JsonSchema => Some("json_schema"),
            Self::Regex => Some("regex"),
            Self::Ebnf => Some("grammar"),
            Self::ToolCalls | Self::Text => None,
        }
    }
}

/// The grammar of a request: complete, and never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarSpec {
    /// What the text must match.
    pub constraint: OutputConstraint,
    /// The model's end tokens, allowed where the text is complete.
    pub end_token_ids: Vec<u32>,
    /// Markers of the reasoning that may precede the text.
    pub reasoning: Option<ReasoningMarkers>,
}

/// The markers around a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// Opening and closing marker: text, or a special token.
    pub marks: [&'static str; 2],
    /// Whether the prompt ends inside the reasoning.
    pub started: bool,
    /// What must follow the closing marker, before the constrained text: the header of the answer's
    /// message.
    pub header: &'static str,
}

/// The reasoning that an output may begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpectedReasoning {
    /// Nothing is known of it: the model has no reasoning format, or the prompt is no chat.
    #[default]
    Unknown,
    /// None: the prompt has closed it.
    Closed,
    /// Reasoning between these markers.
    Between(ReasoningMarkers),
}

impl GrammarSpec {
    /// Makes the grammar of a request once its prompt is known; `None` if nothing constrains the
    /// output.
    ///
    /// # Errors
    /// Sampling parameters that forbid tokens: the grammar may need one. A limit of reasoning where
    /// none can be recognized.
    pub(crate) fn new(
        constraint: Option<OutputConstraint>,
        sampling: &SamplingParams,
        reasoning: ExpectedReasoning,
        end_token_ids: Vec<u32>,
    ) -> Result<Option<Box<Self>>, ApiError> {
        let limited = sampling.thinking_token_budget.is_some();
        if limited && reasoning == ExpectedReasoning::Unknown {
            return Err(no_reasoning());
        }
        let begins = matches!(reasoning, ExpectedReasoning::Between(_));
        let text = (limited && begins).then(OutputConstraint::any_text);
        let Some(constraint) = constraint.or(text) else {
            return Ok(None);
        };
        check_tokens(sampling, constraint.field)?;
        let reasoning = match reasoning {
            ExpectedReasoning::Between(markers) => Some(markers),
            ExpectedReasoning::Unknown | ExpectedReasoning::Closed => None,
        };
        Ok(Some(Box::new(Self {
            constraint,
            end_token_ids,
            reasoning,
        })))
    }
}

impl OutputConstraint {
    /// Returns the constraint of a free text whose reasoning is limited.
    fn any_text() -> Self {
        Self {
            kind: GrammarFormat::Text,
            field: THINKING_TOKEN_BUDGET.name,
            text: String::new(),
            complete: false,
        }
    }
}

fn no_reasoning() -> ApiError {
    let name = THINKING_TOKEN_BUDGET.name;
    let rule = format!(
        "`{name}` needs a conversation with a model that reasons: this model has no reasoning \
         format (--reasoning-parser), or the request is no chat"
    );
    ApiError::validation(name, rule)
}

/// Refuses parameters that forbid tokens beside the constraint in `field`.
fn check_tokens(sampling: &SamplingParams, field: &'static str) -> Result<(), ApiError> {
    let words = sampling.banned_token_ids.is_empty() && sampling.bad_words.is_empty();
    let name = match sampling.allowed_token_ids {
        Some(_) => "allowed_token_ids",
        None if !words => "bad_words_ids",
        None => return Ok(()),
    };
    let rule = format!("`{name}` cannot go with `{field}`: the grammar may need a forbidden token");
    Err(ApiError::validation(name, rule))
}
