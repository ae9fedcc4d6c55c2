//! A parser of server-sent events: takes bytes and returns the data of complete events.

use std::collections::VecDeque;

/// Complete events and the beginning of the next one.
#[derive(Debug, Default)]
pub(super) struct Events {
    partial: Vec<u8>,
    data: String,
    ready: VecDeque<String>,
}

impl Events {
    /// Takes bytes from the network, split at any position.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.partial);
                self.line(String::from_utf8_lossy(&line).trim_end_matches('\r'));
            } else {
                self.partial.push(byte);
            }
        }
    }

    /// Returns the data of the oldest complete event.
    pub(super) fn pop(&mut self) -> Option<String> {
        self.ready.pop_front()
    }

    fn line(&mut self, line: &str) {
        if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        } else if line.is_empty() && !self.data.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_wherever_the_bytes_are_cut() {
        let text =
            "data: {\"a\":\"ä\"}\r\n\r\n: comment\n\ndata:one\ndata: two\n\ndata: [DONE]\n\n";
        for cut in 0..text.len() {
            let mut events = Events::default();
            events.feed(&text.as_bytes()[..cut]);
            events.feed(&text.as_bytes()[cut..]);
            let all: Vec<String> = std::iter::from_fn(|| events.pop()).collect();
            assert_eq!(all, ["{\"a\":\"ä\"}", "one\ntwo", "[DONE]"], "cut at {cut}");
        }
    }
}
