//! The output formats of models, by their names on the command line.

use clap::ValueEnum;
use penstock_text::config::Format;
use penstock_text::tool_parsers::{ReasoningFormat, ToolFormat};

/// The format of a model's tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ToolParser {
    /// Detected in the chat template.
    #[default]
    Auto,
    /// Not parsed: calls stay text.
    Off,
    /// JSON between `<tool_call>` tags: Hermes, Qwen.
    Hermes,
    /// The same without whitespace.
    Brook,
    /// One JSON object with name and parameters: Llama 3.
    Llama3Json,
    /// JSON after `[TOOL_CALLS]`.
    Mistral,
    /// A list of Python calls: Llama 4.
    Pythonic,
}

/// The format of a model's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReasoningParser {
    /// Detected in the chat template.
    #[default]
    Auto,
    /// Not parsed: reasoning stays text.
    Off,
    /// Between `<think>` tags.
    Think,
    /// Between `[THINK]` and `[/THINK]`.
    Mistral,
}

impl ToolParser {
    /// Returns the router's value.
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
    /// Returns the router's value.
    pub fn format(self) -> Format<ReasoningFormat> {
        match self {
            Self::Auto => Format::Auto,
            Self::Off => Format::Off,
            Self::Think => Format::Fixed(ReasoningFormat::Think),
            Self::Mistral => Format::Fixed(ReasoningFormat::Mistral),
        }
    }
}
