//! Statements: `for`, `set`, `macro` and their kin, with their expressions rewritten.

use super::reader::{Reader, Result};
use super::tokens::Token;

/// The statement's text; none for one that has no expressions.
pub(super) fn statement(reader: &mut Reader<'_, '_>) -> Result<Option<String>> {
    let Some(Token::Name(keyword)) = reader.peek().cloned() else {
        return Err(reader.unexpected("a statement"));
    };
    reader.next();
    reader.names.begin();
    let text = match keyword {
        "for" => for_loop(reader)?,
        "if" | "elif" => format!("{keyword} {}", reader.tuple(false)?),
        "set" => set(reader)?,
        "macro" => {
            let name = reader.name()?;
            reader.expect_sign("(")?;
            let Parameters { text, names, later } = parameters(reader)?;
            reader.names.bind(&names);
            format!("macro {name}({text}){later}")
        }
        "call" => {
            let mut before = String::new();
            let mut names = Vec::new();
            if reader.skip_sign("(") {
                let parameters = parameters(reader)?;
                before = format!("({}) ", parameters.text);
                names = parameters.names;
            }
            let call = reader.expression()?.text;
            reader.names.bind(&names);
            format!("call {before}{call}")
        }
        "filter" => {
            let mut chain = reader.filter()?;
            while reader.skip_sign("|") {
                chain = format!("{chain}|{}", reader.filter()?);
            }
            format!("filter {chain}")
        }
        "with" => with(reader)?,
        "autoescape" | "do" => format!("{keyword} {}", reader.expression()?.text),
        // What a model is trained on: a block with variables of its own.
        "generation" => "with".to_owned(),
        "endgeneration" => "endwith".to_owned(),
        "endfor" | "endmacro" | "endcall" => {
            reader.names.unbind();
            return Ok(None);
        }
        _ => return Ok(None),
    };
    reader.done()?;
    Ok(Some(text))
}

fn for_loop(reader: &mut Reader<'_, '_>) -> Result<String> {
    let (targets, names) = targets(reader)?;
    if !reader.skip_name("in") {
        return Err(reader.unexpected("`in`"));
    }
    let iterated = reader.tuple(false)?;
    reader.names.looped();
    reader.names.bind(&names);
    let mut text = format!("for {targets} in ({iterated})|py_iter()");
    if reader.skip_name("if") {
        text = format!("{text} if {}", reader.expression()?.text);
    }
    if reader.skip_name("recursive") {
        text.push_str(" recursive");
    }
    Ok(text)
}

/// Names to assign to, with the names alone.
fn targets<'s>(reader: &mut Reader<'s, '_>) -> Result<(String, Vec<&'s str>)> {
    let mut text = String::new();
    let mut names = Vec::new();
    loop {
        match reader.peek() {
            Some(Token::Name("in")) | None | Some(Token::Sign("=" | "|")) => break,
            Some(Token::Sign(sign @ ("," | "(" | ")" | "."))) => text.push_str(sign),
            Some(Token::Name(name)) => {
                if !text.ends_with('.') {
                    names.push(*name);
                }
                text.push_str(name);
            }
            Some(_) => return Err(reader.unexpected("a name to assign to")),
        }
        reader.next();
    }
    if names.is_empty() {
        return Err(reader.unexpected("a name to assign to"));
    }
    Ok((text, names))
}

fn set(reader: &mut Reader<'_, '_>) -> Result<String> {
    let (targets, names) = targets(reader)?;
    if reader.skip_sign("=") {
        let value = reader.tuple(true)?;
        reader.names.set(&names);
        return Ok(format!("set {targets} = {value}"));
    }
    let mut text = format!("set {targets}");
    while reader.skip_sign("|") {
        text = format!("{text}|{}", reader.filter()?);
    }
    Ok(text)
}

/// A macro's parameters.
struct Parameters<'s> {
    text: String,
    names: Vec<&'s str>,
    /// Tags that set the parameters whose defaults speak of others: the engine knows no order of
    /// parameters. Such a text ends inside a tag, as the macro's own does.
    later: String,
}

/// A macro's parameters up to the closing parenthesis.
fn parameters<'s>(reader: &mut Reader<'s, '_>) -> Result<Parameters<'s>> {
    let mut written = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut later = String::new();
    while !reader.skip_sign(")") {
        if !names.is_empty() {
            reader.expect_sign(",")?;
            if reader.skip_sign(")") {
                break;
            }
        }
        let name = reader.name()?;
        written.push(if reader.skip_sign("=") {
            let from = reader.at;
            let default = reader.expression()?.text;
            let mut read = reader.tokens[from..reader.at].iter();
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

fn with(reader: &mut Reader<'_, '_>) -> Result<String> {
    let mut parts = Vec::new();
    while !reader.is_done() {
        if !parts.is_empty() {
            reader.expect_sign(",")?;
        }
        let (targets, names) = targets(reader)?;
        reader.expect_sign("=")?;
        reader.names.begin();
        let value = reader.expression()?.text;
        reader.names.set(&names);
        parts.push(format!("{targets} = {value}"));
    }
    Ok(format!("with {}", parts.join(", ")))
}
