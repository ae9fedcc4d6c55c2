//! The filter `wordwrap`.

use minijinja::value::Value;
use minijinja::{Error, State};

use super::args::{Args, count, text};
use super::strings_parts::lines;

/// The options of `wordwrap`.
struct Wrap {
    width: usize,
    /// Whether words longer than a line are broken.
    long_words: bool,
    /// Whether a line may end after a hyphen.
    hyphens: bool,
}

#[allow(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn wrap(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let names = [
        "width",
        "break_long_words",
        "wrapstring",
        "break_on_hyphens",
    ];
    let [width, long, string, hyphens] = args.bind("wordwrap", names)?;
    let width = count(width.as_ref(), 79)?;
    let wrap = Wrap {
        width: usize::try_from(width).unwrap_or(0).max(1),
        long_words: long.is_none_or(|long| long.is_true()),
        hyphens: hyphens.is_none_or(|hyphens| hyphens.is_true()),
    };
    let string = string.filter(|string| !string.is_none());
    let string = string.map_or_else(|| "\n".to_owned(), |string| string.to_string());
    let wrapped = lines(text(&value)?, false).into_iter();
    let wrapped: Vec<String> = wrapped.map(|line| wrap.line(line).join(&string)).collect();
    Ok(Value::from(wrapped.join(&string)))
}

impl Wrap {
    fn line(&self, line: &str) -> Vec<String> {
        let mut chunks = self.chunks(line);
        chunks.reverse();
        let mut lines: Vec<String> = Vec::new();
        while let Some(first) = chunks.last() {
            if is_blank(first) && !lines.is_empty() {
                chunks.pop();
            }
            let mut current: Vec<Vec<char>> = Vec::new();
            let mut used = 0;
            while let Some(chunk) = chunks.pop_if(|chunk| used + chunk.len() <= self.width) {
                used += chunk.len();
                current.push(chunk);
            }
            if chunks.last().is_some_and(|chunk| chunk.len() > self.width) {
                self.long_word(&mut chunks, &mut current, self.width - used);
            }
            current.pop_if(|chunk| is_blank(chunk));
            if !current.is_empty() {
                lines.push(current.into_iter().flatten().collect());
            }
        }
        lines
    }

    /// Fills the current line with the beginning of a word that is longer than a line.
    fn long_word(&self, chunks: &mut Vec<Vec<char>>, current: &mut Vec<Vec<char>>, room: usize) {
        let Some(mut word) = chunks.pop() else {
            return;
        };
        if self.long_words {
            let hyphen = word[..room].iter().rposition(|c| *c == '-');
            let hyphen = hyphen.filter(|at| self.hyphens && word[..*at].iter().any(|c| *c != '-'));
            let rest = word.split_off(hyphen.map_or(room, |at| at + 1));
            current.push(word);
            chunks.push(rest);
        } else if current.is_empty() {
            current.push(word);
        } else {
            chunks.push(word);
        }
    }

    /// Splits a line into words and the whitespace between them. A hyphen between letters ends a
    /// chunk.
    fn chunks(&self, line: &str) -> Vec<Vec<char>> {
        let line: Vec<char> = line.chars().collect();
        let mut chunks: Vec<Vec<char>> = Vec::new();
        for (at, c) in line.iter().enumerate() {
            let breaks = at.checked_sub(1).is_none_or(|last| {
                is_space(line[last]) != is_space(*c) || (self.hyphens && breaks_behind(&line, last))
            });
            match chunks.last_mut() {
                Some(chunk) if !breaks => chunk.push(*c),
                _ => chunks.push(vec![*c]),
            }
        }
        chunks
    }
}

/// Whether a line may end after the hyphen at `at`: two letters precede it, and two letters, or a
/// letter, a hyphen and a letter, follow it.
fn breaks_behind(line: &[char], at: usize) -> bool {
    let letter = |index: Option<usize>| {
        index
            .and_then(|index| line.get(index))
            .is_some_and(|c| c.is_alphabetic() || *c == '_')
    };
    line[at] == '-'
        && letter(at.checked_sub(1))
        && letter(at.checked_sub(2))
        && letter(Some(at + 1))
        && (letter(Some(at + 2)) || (line.get(at + 2) == Some(&'-') && letter(Some(at + 3))))
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

fn is_blank(chunk: &[char]) -> bool {
    chunk.iter().all(|c| is_space(*c))
}
