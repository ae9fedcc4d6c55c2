//! Rewrites statements such as `for`, `set` and `macro`.

use super::tag_parser::{Result, TagParser};
use super::tokens::Token;

/// Returns the statement's text; `None` if it has no expressions.
pub(super) fn statement(parser: &mut TagParser<'_, '_>) -> Result<Option<String>> {
    let Some(Token::Name(keyword)) = parser.peek().cloned() else {
        return Err(parser.unexpected("a statement"));
    };
    parser.next();
    parser.names.begin_expression();
    let text = match keyword {
        "for" => for_loop(parser)?,
        "if" | "elif" => format!("{keyword} {}", parser.tuple(false)?),
        "set" => set(parser)?,
        "macro" => {
            let name = parser.name()?;
            parser.expect_sign("(")?;
            let Parameters { text, names, later } = parameters(parser)?;
            parser.names.bind(&names);
            format!("macro {name}({text}){later}")
        }
        "call" => {
            let mut before = String::new();
            let mut names = Vec::new();
            if parser.skip_sign("(") {
                let parameters = parameters(parser)?;
                before = format!("({}) ", parameters.text);
                names = parameters.names;
            }
            let call = parser.expression()?.text;
            parser.names.bind(&names);
            format!("call {before}{call}")
        }
        "filter" => {
            let mut chain = parser.filter()?;
            while parser.skip_sign("|") {
                chain = format!("{chain}|{}", parser.filter()?);
            }
            format!("filter {chain}")
        }
        "with" => with(parser)?,
        "autoescape" | "do" => format!("{keyword} {}", parser.expression()?.text),
        // `transformers` marks training text with this block; its variables are local, as in
        // `with`.
        "generation" => "with".to_owned(),
        "endgeneration" => "endwith".to_owned(),
        "endfor" | "endmacro" | "endcall" => {
            parser.names.unbind();
            return Ok(None);
        }
        _ => return Ok(None),
    };
    parser.done()?;
    Ok(Some(text))
}

fn for_loop(parser: &mut TagParser<'_, '_>) -> Result<String> {
    let (targets, names) = targets(parser)?;
    if !parser.skip_name("in") {
        return Err(parser.unexpected("`in`"));
    }
    let iterated = parser.tuple(false)?;
    parser.names.record_loop();
    parser.names.bind(&names);
    let mut text = format!("for {targets} in ({iterated})|py_iter()");
    if parser.skip_name("if") {
        text = format!("{text} if {}", parser.expression()?.text);
    }
    if parser.skip_name("recursive") {
        text.push_str(" recursive");
    }
    Ok(text)
}

/// Parses assignment targets. Returns their text and the names alone.
fn targets<'s>(parser: &mut TagParser<'s, '_>) -> Result<(String, Vec<&'s str>)> {
    let mut text = String::new();
    let mut names = Vec::new();
    loop {
        match parser.peek() {
            Some(Token::Name("in")) | None | Some(Token::Sign("=" | "|")) => break,
            Some(Token::Sign(sign @ ("," | "(" | ")" | "."))) => text.push_str(sign),
            Some(Token::Name(name)) => {
                if !text.ends_with('.') {
                    names.push(*name);
                }
                text.push_str(name);
            }
            Some(_) => return Err(parser.unexpected("a name to assign to")),
        }
        parser.next();
    }
    if names.is_empty() {
        return Err(parser.unexpected("a name to assign to"));
    }
    Ok((text, names))
}

fn set(parser: &mut TagParser<'_, '_>) -> Result<String> {
    let (targets, names) = targets(parser)?;
    if parser.skip_sign("=") {
        let value = parser.tuple(true)?;
        parser.names.record_assignment(&names);
        return Ok(format!("set {targets} = {value}"));
    }
    let mut text = format!("set {targets}");
    while parser.skip_sign("|") {
        text = format!("{text}|{}", parser.filter()?);
    }
    Ok(text)
}

/// A macro's parameters.
struct Parameters<'s> {
    text: String,
    names: Vec<&'s str>,
    /// Tags that set the parameters whose defaults refer to other parameters, because minijinja
    /// does not evaluate defaults in order. The text ends inside a tag, as the macro's own text
    /// does.
    later: String,
}

/// Parses a macro's parameters up to the closing parenthesis.
fn parameters<'s>(parser: &mut TagParser<'s, '_>) -> Result<Parameters<'s>> {
    let mut written = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut later = String::new();
    while !parser.skip_sign(")") {
        if !names.is_empty() {
            parser.expect_sign(",")?;
            if parser.skip_sign(")") {
                break;
            }
        }
        let name = parser.name()?;
        written.push(if parser.skip_sign("=") {
            let from = parser.at;
            let default = parser.expression()?.text;
            let mut read = parser.tokens[from..parser.at].iter();
            if read.any(|token| matches!(token, Token::Name(name) if names.contains(name))) {
                later = format!(
                    "{later} %}}{{% if {name} is undefined() %}}{{% set {name} = {default} %}}{{% endif"
                );
                format!("{name}=\"\"|attr(\"undefined\")")
            } else {
                format!("{name}={default}")
            }
        } else {
            name.to_owned()
        });
        names.push(name);
    }
    Ok(Parameters {
        text: written.join(", "),
        names,
        later,
    })
}

fn with(parser: &mut TagParser<'_, '_>) -> Result<String> {
    let mut parts = Vec::new();
    while !parser.is_done() {
        if !parts.is_empty() {
            parser.expect_sign(",")?;
        }
        let (targets, names) = targets(parser)?;
        parser.expect_sign("=")?;
        parser.names.begin_expression();
        let value = parser.expression()?.text;
        parser.names.record_assignment(&names);
        parts.push(format!("{targets} = {value}"));
    }
    Ok(format!("with {}", parts.join(", ")))
}
