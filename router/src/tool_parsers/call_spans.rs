//! Which parts of an answer are calls: stop strings are none of their business.

use super::{OutputDeltas, OutputParser, OutputParserOptions};

/// Finds the calls in an answer, as far as it has been read.
#[derive(Debug)]
pub struct CallSpans {
    parser: OutputParser,
    parsed: usize,
    /// From where to where: bytes of the answer, the last one perhaps open.
    spans: Vec<(usize, Option<usize>)>,
}

impl CallSpans {
    /// Of an answer that is read so; `None` if it can have no calls.
    pub fn for_options(parser_options: &OutputParserOptions) -> Option<Box<Self>> {
        parser_options.tools.as_ref()?;
        Some(Box::new(Self {
            parser: parser_options.parser(),
            parsed: 0,
            spans: Vec::new(),
        }))
    }

    /// Whether the byte at `position` of `answer` is one of a call. `answer` has all that was given
    /// before, and more.
    pub fn contains(&mut self, answer: &str, position: usize) -> bool {
        for c in answer[self.parsed..].chars() {
            self.parsed += c.len_utf8();
            self.parser
                .feed(c.encode_utf8(&mut [0; 4]), &mut OutputDeltas::default());
            let open = self.spans.last().is_some_and(|(_, end)| end.is_none());
            match self.spans.last_mut() {
                Some((_, end)) if open && !self.parser.is_in_call() => *end = Some(self.parsed),
                _ if !open && self.parser.is_in_call() => self.spans.push((self.parsed, None)),
                _ => {}
            }
        }
        let holds = |&(start, end): &(usize, Option<usize>)| {
            start <= position && end.is_none_or(|end| position < end)
        };
        self.spans.iter().any(holds)
    }
}
