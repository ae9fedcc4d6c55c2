//! Which call a tool's turn answers, where it does not say so.

use std::collections::VecDeque;

use super::tools::MessageCall;

/// Calls of earlier turns.
#[derive(Default)]
pub(super) struct ToolCallIds {
    /// The id of the last call by the older name, which has none: some templates insist on nine letters or
    /// digits for each call and its result, so it gets one from its place.
    pub(super) older: Option<String>,
    /// Ids of the last turn's calls that no turn has answered yet.
    unanswered: VecDeque<Option<String>>,
}

impl ToolCallIds {
    /// A turn made these calls.
    pub(super) fn add_calls(&mut self, calls: &[MessageCall]) {
        if !calls.is_empty() {
            self.unanswered = calls
                .iter()
                .map(|call| call.id().map(str::to_owned))
                .collect();
        }
    }

    /// The id of the call that a tool's turn answers: the one it names, else the first that is not answered
    /// yet (the client `text-generation` cannot name one). `None` if there is no such call.
    pub(super) fn take_answered(&mut self, named: Option<String>) -> Option<Option<String>> {
        if named.is_none() {
            return self.unanswered.pop_front();
        }
        let found = self.unanswered.iter().position(|id| *id == named);
        found.map(|place| self.unanswered.remove(place));
        Some(named)
    }
}
