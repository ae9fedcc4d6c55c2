//! How a model's answers are read: formats by the names that flags have for them.

use clap::ValueEnum;
use penstock_router::config::Format;
use penstock_router::tool_parsers::{ReasoningFormat, ToolFormat};

/// The format of a model's tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ToolParser {
    /// By the chat template.
    #[default]
    Auto,
    /// Calls stay text.
    Off,
    /// JSON between <tool_call> tags: Hermes, Qwen.
    Hermes,
    /// The same without blanks.
    Brook,
    /// One JSON object with name and parameters: Llama 3.
    Llama3Json,
    /// JSON after [TOOL_CALLS].
    Mistral,
    /// A list of Python calls: Llama 4.
    Pythonic,
}

/// The format of a model's thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReasoningParser {
    /// By the chat template.
    #[default]
    Auto,
    /// Thoughts stay text.
    Off,
    /// Between <think> tags.
    Think,
    /// Between [THINK] and [/THINK].
    Mistral,
}

impl ToolParser {
    /// What the router calls it.
    pub fn format(self) -> Format<ToolFormat> {
        match self {
            Self::Auto => Format::Auto,
            Self::Off => Format::Off,
            Self::Hermes => Format::Fixed(ToolFormat::Hermes),
            Self::Brook => Format::Fixed(ToolFormat::Brook),
            Self::Llama3Json => Format::Fixed(ToolFormat::Llama3Json),
            Self::Mistral => Format::Fixed(ToolFormat::Mistral),
            Self::Pythonic => Format::Fixed(ToolFormat::Pythonic),
        }
    }
}

impl ReasoningParser {
    /// What the router calls it.
    pub fn format(self) -> Format<ReasoningFormat> {
        match self {
            Self::Auto => Format::Auto,
            Self::Off => Format::Off,
            Self::Think => Format::Fixed(ReasoningFormat::Think),
            Self::Mistral => Format::Fixed(ReasoningFormat::Mistral),
        }
    }
}
