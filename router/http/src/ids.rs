//! Ids of responses and tool calls.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use penstock_text::tool_parsers::OutputParserOptions;

/// Returns `prefix` and 32 random hexadecimal digits.
pub(super) fn unique(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random(0), random(1))
}

/// Returns `prefix` and 32 hexadecimal digits that cannot be guessed: the id alone grants access to
/// the object.
pub(super) fn unguessable(prefix: &str) -> String {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => format!("{prefix}{:032x}", u128::from_ne_bytes(bytes)),
        Err(error) => {
            tracing::warn!("the system gives no random numbers: {error}");
            unique(prefix)
        }
    }
}

/// Returns the tool-call id that the model wrote, or a new one: `call_` and 24 letters and digits,
/// or only nine where chat templates require that.
pub(super) fn call_id(written: Option<String>, parser_options: &OutputParserOptions) -> String {
    if let Some(id) = written {
        return id;
    }
    let short = parser_options
        .tools
        .as_ref()
        .is_some_and(|(format, _)| format.short_ids());
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut id = String::from(if short { "" } else { "call_" });
    for part in 0..if short { 1 } else { 3 } {
        let mut bits = random(part);
        for _ in 0..if short { 9 } else { 8 } {
            id.push(char::from(LETTERS[(bits % 36) as usize]));
            bits /= 36;
        }
    }
    id
}

/// Returns 64 random bits: a new hasher has new random keys.
fn random(part: u64) -> u64 {
    RandomState::new().hash_one(part)
}
