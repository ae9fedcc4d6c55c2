//! Matches tool results to calls where a message has no `tool_call_id`.

use std::collections::VecDeque;

use super::tools::MessageCall;

/// Calls of earlier messages.
#[derive(Default)]
pub(super) struct ToolCallIds {
    /// Id of the last legacy `function_call`, which has none. It is made from the message's index,
    /// since some chat templates require nine letters or digits for each call and its result.
    pub(super) older: Option<String>,
    /// Ids of the last message's calls that have no result yet.
    unanswered: VecDeque<Option<String>>,
}

impl ToolCallIds {
    /// Records the calls of a message.
    pub(super) fn add_calls(&mut self, calls: &[MessageCall]) {
        if !calls.is_empty() {
            self.unanswered = calls
                .iter()
                .map(|call| call.id().map(str::to_owned))
                .collect();
        }
    }

    /// Returns the id of the call whose result a message has: `named`, or the first call without a
    /// result (the client `text-generation` cannot send ids). `None` if there is no such call.
    pub(super) fn take_answered(&mut self, named: Option<String>) -> Option<Option<String>> {
        if named.is_none() {
            return self.unanswered.pop_front();
        }
        let found = self.unanswered.iter().position(|id| *id == named);
        found.map(|place| self.unanswered.remove(place));
        Some(named)
    }
}
