//! The outputs of a response and their names.

/// An output of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Text,
    FinishReason,
    CumulativeLogprob,
    NumInputTokens,
    NumOutputTokens,
    /// The tokens of the response; TurboMind's name.
    Ids,
    /// Their number; TurboMind's name.
    SequenceLength,
}

impl Output {
    pub(super) const ALL: [Self; 7] = [
        Self::Text,
        Self::FinishReason,
        Self::CumulativeLogprob,
        Self::NumInputTokens,
        Self::NumOutputTokens,
        Self::Ids,
        Self::SequenceLength,
    ];

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|output| output.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "text_output",
            Self::FinishReason => "finish_reason",
            Self::CumulativeLogprob => "cumulative_logprob",
            Self::NumInputTokens => "num_input_tokens",
            Self::NumOutputTokens => "num_output_tokens",
            Self::Ids => "output_ids",
            Self::SequenceLength => "sequence_length",
        }
    }

    pub(super) fn datatype(self) -> &'static str {
        match self {
            Self::Text | Self::FinishReason => "BYTES",
            Self::CumulativeLogprob => "FP32",
            _ => "UINT32",
        }
    }
}
