//! Rewrites a template's source tag by tag.

use minijinja::{Error, ErrorKind};

use super::names::TemplateNames;
use super::tag_parser::{Result, TagParser};
use super::tokens::tokenize;

/// Returns the source for minijinja and the names that the template uses.
pub(super) fn rewrite(source: &str) -> std::result::Result<(String, TemplateNames), Error> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut names = TemplateNames::default();
    let mut out = String::with_capacity(source.len() * 2);
    let mut at = 0;
    while let Some(start) = source[at..]
        .find("{{")
        .into_iter()
        .chain(source[at..].find("{%"))
        .chain(source[at..].find("{#"))
        .min()
    {
        let start = at + start;
        out.push_str(&source[at..start]);
        at = tag(&source, start, &mut names, &mut out).map_err(|message| {
            let line = source[..start].matches('\n').count() + 1;
            Error::new(ErrorKind::SyntaxError, format!("{message} (line {line})"))
        })?;
    }
    out.push_str(&source[at..]);
    Ok((out, names))
}

/// Writes the tag at `start` and returns its end.
fn tag(source: &str, start: usize, names: &mut TemplateNames, out: &mut String) -> Result<usize> {
    let rest = &source[start..];
    if rest.starts_with("{#") {
        let end = rest
            .find("#}")
            .ok_or("a comment is not closed: `#}` is missing")?
            + 2;
        out.push_str(&rest[..end]);
        return Ok(start + end);
    }
    if let Some(end) = raw(rest) {
        out.push_str(&rest[..end]);
        return Ok(start + end);
    }
    let end_mark = if rest.starts_with("{{") { "}}" } else { "%}" };
    let marked = rest[2..].starts_with(['-', '+']);
    let inner = start + 2 + usize::from(marked);
    let (tokens, end) = tokenize(source, inner, end_mark)?;
    let mut parser = TagParser::new(&tokens, names);
    let text = if end_mark == "}}" {
        parser.names.begin_expression();
        let text = parser.tuple(true)?;
        parser.done()?;
        text
    } else {
        let text = super::statements::statement(&mut parser)?;
        match text {
            Some(text) => text,
            None => source[inner..end].trim().to_owned(),
        }
    };
    let close = source[end..]
        .find(end_mark)
        .map_or(source.len(), |at| end + at + 2);
    let written = format!("{} {text} ", &source[start..inner]);
    // Keep the line breaks, because minijinja's errors contain line numbers.
    let lines = source[start..close].matches('\n').count();
    let missing = lines.saturating_sub(written.matches('\n').count());
    out.push_str(&written);
    out.push_str(&"\n".repeat(missing));
    out.push_str(&source[end..close]);
    Ok(close)
}

/// Returns the end of a raw block that begins here.
fn raw(rest: &str) -> Option<usize> {
    let opening = opening(rest, "raw")?;
    let mut at = opening;
    while let Some(found) = rest[at..].find("{%") {
        at += found;
        if let Some(end) = self::opening(&rest[at..], "endraw") {
            return Some(at + end);
        }
        at += 2;
    }
    None
}

/// Returns the end of a tag that begins here, if it contains only `name`.
fn opening(rest: &str, name: &str) -> Option<usize> {
    let end = rest.find("%}")? + 2;
    let inner = rest.get(2..end - 2)?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    (rest.starts_with("{%") && inner.trim() == name).then_some(end)
}
