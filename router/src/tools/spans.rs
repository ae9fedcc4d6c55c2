//! Which parts of an answer are calls: stop strings are none of their business.

use super::{AnswerReader, Pieces, Reading};

/// Finds the calls in an answer, as far as it has been read.
#[derive(Debug)]
pub struct CallSpans {
    reader: AnswerReader,
    read: usize,
    /// From where to where: bytes of the answer, the last one perhaps open.
    spans: Vec<(usize, Option<usize>)>,
}

impl CallSpans {
    /// Of an answer that is read so; `None` if it can have no calls.
    pub fn of(reading: &Reading) -> Option<Box<Self>> {
        reading.tools.as_ref()?;
        Some(Box::new(Self {
            reader: reading.reader(),
            read: 0,
            spans: Vec::new(),
        }))
    }

    /// Whether the byte at `place` of `answer` is one of a call. `answer` has all that was given
    /// before, and more.
    pub fn holds(&mut self, answer: &str, place: usize) -> bool {
        for c in answer[self.read..].chars() {
            self.read += c.len_utf8();
            self.reader
                .feed(c.encode_utf8(&mut [0; 4]), &mut Pieces::default());
            let open = self.spans.last().is_some_and(|(_, end)| end.is_none());
            match self.spans.last_mut() {
                Some((_, end)) if open && !self.reader.is_in_call() => *end = Some(self.read),
                _ if !open && self.reader.is_in_call() => self.spans.push((self.read, None)),
                _ => {}
            }
        }
        let holds = |&(start, end): &(usize, Option<usize>)| {
            start <= place && end.is_none_or(|end| place < end)
        };
        self.spans.iter().any(holds)
    }
}
