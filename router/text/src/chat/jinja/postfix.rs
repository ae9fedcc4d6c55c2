//! Postfix expressions: attributes, items, calls, filters and tests.

use super::expressions::{Expression, Precedence};
use super::methods;
use super::tag_parser::{Result, TagParser};
use super::tokens::Token;

impl TagParser<'_, '_> {
    pub(super) fn postfix(&mut self, mut written: Expression) -> Result<Expression> {
        loop {
            if self.skip_sign(".") {
                written = self.attribute(written)?;
            } else if self.skip_sign("[") {
                written = self.subscript(written)?;
            } else if self.skip_sign("(") {
                written = self.call(written)?;
            } else {
                return Ok(written);
            }
        }
    }

    fn attribute(&mut self, written: Expression) -> Result<Expression> {
        let base = written.at_least(Precedence::Tight);
        let text = match self.next() {
            Some(Token::Name(name)) => {
                self.names.record_mention(name);
                if methods::is_known(name) && !self.is_sign("(") {
                    let text = format!("({base}|py_attr(\"{name}\"))");
                    return Ok(Expression::new(text, Precedence::Tight));
                }
                format!("{base}.{name}")
            }
            Some(Token::Integer(index)) => format!("{base}[{index}]"),
            // `a.0.1`
            Some(Token::Float(path)) => path
                .split('.')
                .fold(base, |base, index| format!("{base}[{index}]")),
            _ => return Err("an attribute needs a name after its `.`".to_owned()),
        };
        Ok(Expression::new(text, Precedence::Tight))
    }

    fn subscript(&mut self, written: Expression) -> Result<Expression> {
        let mut parts: Vec<Option<String>> = vec![None];
        while !self.skip_sign("]") {
            if self.skip_sign(":") {
                parts.push(None);
                continue;
            }
            match parts.last_mut() {
                Some(part @ None) => *part = Some(self.expression()?.text),
                _ => return Err(self.unexpected("`]`")),
            }
        }
        if let [Some(index)] = parts.as_slice() {
            let text = format!("{}[{index}]", written.at_least(Precedence::Tight));
            return Ok(Expression::new(text, Precedence::Tight));
        }
        if parts.len() == 1 || parts.len() > 3 {
            return Err("a subscript must be an index or a slice".to_owned());
        }
        parts.resize(3, None);
        let parts = parts
            .into_iter()
            .map(|part| part.unwrap_or_else(|| "none".to_owned()));
        let args = parts.collect::<Vec<_>>().join(", ");
        Ok(written.filtered("py_slice", &args))
    }

    /// Parses a call's arguments up to the closing parenthesis.
    pub(super) fn arguments(&mut self) -> Result<String> {
        let mut args: Vec<String> = Vec::new();
        while !self.skip_sign(")") {
            if !args.is_empty() {
                self.expect_sign(",")?;
                if self.skip_sign(")") {
                    break;
                }
            }
            let named = self.tokens.get(self.at + 1);
            let arg = if self.skip_sign("**") {
                format!("**{}", self.expression()?.at_least(Precedence::Tight))
            } else if self.skip_sign("*") {
                format!("*{}", self.expression()?.at_least(Precedence::Tight))
            } else if let (Some(Token::Name(name)), Some(Token::Sign("="))) = (self.peek(), named) {
                let name = *name;
                self.at += 2;
                format!("{name}={}", self.expression()?.text)
            } else {
                self.expression()?.text
            };
            args.push(arg);
        }
        Ok(args.join(", "))
    }

    fn dotted(&mut self) -> Result<String> {
        let mut name = self.name()?.to_owned();
        while self.skip_sign(".") {
            name = format!("{name}.{}", self.name()?);
        }
        Ok(name)
    }

    /// Parses a call of `written` after its opening parenthesis.
    fn call(&mut self, written: Expression) -> Result<Expression> {
        let args = self.arguments()?;
        let text = format!("{}({args})", written.at_least(Precedence::Tight));
        Ok(Expression::new(text, Precedence::Tight))
    }

    pub(super) fn filters(&mut self, mut written: Expression) -> Result<Expression> {
        loop {
            if self.skip_sign("|") {
                let text = format!(
                    "{}|{}",
                    written.at_least(Precedence::Filtered),
                    self.filter()?
                );
                written = Expression::new(text, Precedence::Filtered);
            } else if self.skip_name("is") {
                written = self.test(written)?;
            } else if self.skip_sign("(") {
                written = self.call(written)?;
            } else {
                return Ok(written);
            }
        }
    }

    /// Parses a filter's name and arguments.
    pub(super) fn filter(&mut self) -> Result<String> {
        let name = self.dotted()?;
        let args = if self.skip_sign("(") {
            self.arguments()?
        } else {
            String::new()
        };
        Ok(format!("{name}({args})"))
    }

    fn test(&mut self, written: Expression) -> Result<Expression> {
        let not = if self.skip_name("not") { "not " } else { "" };
        let name = self.dotted()?;
        self.names.record_test(&name);
        let args = if self.skip_sign("(") {
            self.arguments()?
        } else if self.begins_argument() {
            let argument = self.primary()?;
            self.postfix(argument)?.text
        } else {
            String::new()
        };
        let base = written.at_least(Precedence::Filtered);
        Ok(Expression::new(
            format!("{base} is {not}{name}({args})"),
            Precedence::Loose,
        ))
    }

    fn begins_argument(&self) -> bool {
        match self.peek() {
            Some(Token::Name(name)) => {
                !["else", "or", "and", "is", "if", "not", "in"].contains(name)
            }
            Some(Token::Text(_) | Token::Integer(_) | Token::Float(_)) => true,
            Some(Token::Sign(sign)) => ["[", "{"].contains(sign),
            None => false,
        }
    }
}
