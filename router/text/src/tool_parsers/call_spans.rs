//! The byte ranges of an output that belong to tool calls; stop strings are ignored there.

use super::{OutputDeltas, OutputParser, OutputParserOptions};

/// The calls in the output parsed so far.
#[derive(Debug)]
pub struct CallSpans {
    parser: OutputParser,
    parsed: usize,
    /// (start, end) byte offsets in the output. The end of the last span is `None` while it is
    /// open.
    spans: Vec<(usize, Option<usize>)>,
}

impl CallSpans {
    /// Creates one for an output with these options; `None` if it cannot contain calls.
    pub fn for_options(parser_options: &OutputParserOptions) -> Option<Box<Self>> {
        parser_options.tools.as_ref()?;
        Some(Box::new(Self {
            parser: parser_options.parser(),
            parsed: 0,
            spans: Vec::new(),
        }))
    }

    /// Returns whether the byte at `position` of `answer` belongs to a call. `answer` must extend
    /// the text of the previous call.
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
