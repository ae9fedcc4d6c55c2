//! Kimi K2's calls: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{..}
//! <|tool_call_end|>` between `<|tool_calls_section_begin|>` and `<|tool_calls_section_end|>`.
//!
//! The model counts its calls in their ids, so clients get the ids that it wrote: the chat template
//! puts those of earlier messages into the prompt.

use super::deepseek::CallMarks;

pub(super) const BEGIN: &str = "<|tool_calls_section_begin|>";
pub(super) const END: &str = "<|tool_calls_section_end|>";
pub(super) const CALL: &str = "<|tool_call_begin|>";
pub(super) const CALL_END: &str = "<|tool_call_end|>";
pub(super) const SEPARATOR: &str = "<|tool_call_argument_begin|>";
/// What precedes a function's name in an id.
pub(super) const PREFIX: &str = "functions.";
/// All marks; each may be a special token.
pub(super) const MARKS: [&str; 5] = [BEGIN, END, CALL, CALL_END, SEPARATOR];

pub(super) static KIMI: CallMarks = CallMarks {
    open: &[BEGIN, CALL],
    separator: &[SEPARATOR],
    close: &["```", CALL_END, CALL, END],
    ids: true,
};

/// Returns the function's name in a call's id.
pub(super) fn function(id: &str) -> &str {
    let name = id.strip_prefix(PREFIX).unwrap_or(id);
    name.rsplit_once(':').map_or(name, |(name, _)| name)
}
