//! Rewrites expressions. Python's operators become filters (`a % b` becomes `a|py_mod(b)`), which
//! implement Python's semantics. minijinja parses and runs the result.

use super::tag_parser::{Result, TagParser};
use super::tokens::Token;

/// The precedence of a rewritten expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precedence {
    /// Needs parentheses before anything is applied to it.
    Loose,
    /// A filter may follow.
    Filtered,
    /// An attribute, an item or a call may follow.
    Tight,
}

/// A rewritten expression.
#[derive(Clone, Debug)]
pub(super) struct Expression {
    pub(super) text: String,
    pub(super) precedence: Precedence,
}

impl Expression {
    pub(super) fn new(text: String, precedence: Precedence) -> Self {
        Self { text, precedence }
    }

    pub(super) fn at_least(self, precedence: Precedence) -> String {
        if self.precedence >= precedence {
            self.text
        } else {
            format!("({})", self.text)
        }
    }

    /// Applies the filter `name`.
    pub(super) fn filtered(self, name: &str, args: &str) -> Self {
        let text = format!("{}|{name}({args})", self.at_least(Precedence::Filtered));
        Self::new(text, Precedence::Filtered)
    }
}

/// The maximum size in bytes of an operand between two comparisons, as in `a < b < c`: it is
/// written twice.
const MAX_REPEATED_BYTES: usize = 1 << 10;

/// Writes `left sign right`.
fn write_comparison(left: Expression, sign: &str, right: &Expression) -> Expression {
    let filter = match sign {
        "<" => "py_lt",
        ">" => "py_gt",
        "<=" => "py_le",
        ">=" => "py_ge",
        "in" => "py_in",
        "not in" => {
            let text = format!("not {}", left.filtered("py_in", &right.text).text);
            return Expression::new(text, Precedence::Loose);
        }
        sign => {
            let right = match right.precedence {
                Precedence::Loose => format!("({})", right.text),
                _ => right.text.clone(),
            };
            let text = format!("{} {sign} {right}", left.at_least(Precedence::Filtered));
            return Expression::new(text, Precedence::Loose);
        }
    };
    left.filtered(filter, &right.text)
}

/// The maximum nesting of expressions. Each level uses stack here and in minijinja.
const MAX_DEPTH: usize = 100;

impl TagParser<'_, '_> {
    /// Parses an expression, or a tuple of several separated by commas.
    pub(super) fn tuple(&mut self, conditional: bool) -> Result<String> {
        let first = self.item(conditional)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_sign(",") {
            if self.is_done()
                || self.is_sign(")")
                || self.is_name("if")
                || self.is_name("recursive")
            {
                break;
            }
            items.push(self.item(conditional)?);
        }
        let comma = if items.len() == 1 { "," } else { "" };
        Ok(format!("({}{comma})", items.join(", ")))
    }

    fn item(&mut self, conditional: bool) -> Result<String> {
        let item = if conditional {
            self.expression()?
        } else {
            self.or()?
        };
        Ok(item.text)
    }

    pub(super) fn expression(&mut self) -> Result<Expression> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!(
                "expressions are nested more than {MAX_DEPTH} levels deep"
            ));
        }
        let mut written = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?.text;
            let mut text = format!("{} if {test}", written.at_least(Precedence::Filtered));
            if self.skip_name("else") {
                text = format!("{text} else {}", self.expression()?.text);
            }
            written = Expression::new(text, Precedence::Loose);
        }
        self.depth -= 1;
        Ok(written)
    }

    fn or(&mut self) -> Result<Expression> {
        let mut written = self.and()?;
        while self.skip_name("or") {
            let text = format!("{} or {}", written.text, self.and()?.text);
            written = Expression::new(text, Precedence::Loose);
        }
        Ok(written)
    }

    fn and(&mut self) -> Result<Expression> {
        let mut written = self.not()?;
        while self.skip_name("and") {
            let text = format!("{} and {}", written.text, self.not()?.text);
            written = Expression::new(text, Precedence::Loose);
        }
        Ok(written)
    }

    fn not(&mut self) -> Result<Expression> {
        let mut count = 0;
        while self.skip_name("not") {
            count += 1;
        }
        let written = self.compare()?;
        if count == 0 {
            return Ok(written);
        }
        let nots = if count % 2 == 1 { "not" } else { "not not" };
        Ok(Expression::new(
            format!("{nots} {}", written.text),
            Precedence::Loose,
        ))
    }

    fn comparison(&mut self) -> Option<&'static str> {
        if let Some(Token::Sign(sign @ ("==" | "!=" | "<" | ">" | "<=" | ">="))) = self.peek() {
            let sign = *sign;
            self.at += 1;
            return Some(sign);
        }
        if self.skip_name("in") {
            return Some("in");
        }
        let ahead = self.tokens.get(self.at + 1);
        if self.is_name("not") && ahead == Some(&Token::Name("in")) {
            self.at += 2;
            return Some("not in");
        }
        None
    }

    fn compare(&mut self) -> Result<Expression> {
        let mut left = self.sum()?;
        let mut written: Option<Expression> = None;
        while let Some(sign) = self.comparison() {
            let right = self.sum()?;
            if written.is_some() && left.text.len() > MAX_REPEATED_BYTES {
                return Err("an operand in a chain of comparisons is too long".to_owned());
            }
            let next = write_comparison(left.clone(), sign, &right);
            left = right;
            written = Some(match written {
                None => next,
                Some(before) => Expression::new(
                    format!("{} and {}", before.text, next.text),
                    Precedence::Loose,
                ),
            });
        }
        Ok(written.unwrap_or(left))
    }

    /// Parses the operators of one precedence level, each with the filter that replaces it.
    fn binary(
        &mut self,
        operators: &[(&str, &str)],
        inner: fn(&mut Self) -> Result<Expression>,
    ) -> Result<Expression> {
        let mut written = inner(self)?;
        loop {
            let mut operators = operators.iter();
            let Some((_, filter)) = operators.find(|(sign, _)| self.is_sign(sign)) else {
                return Ok(written);
            };
            self.at += 1;
            let other = inner(self)?;
            written = written.filtered(filter, &other.text);
        }
    }

    fn sum(&mut self) -> Result<Expression> {
        self.binary(&[("+", "py_add"), ("-", "py_sub")], Self::concat)
    }

    fn concat(&mut self) -> Result<Expression> {
        self.binary(&[("~", "py_concat")], Self::product)
    }

    fn product(&mut self) -> Result<Expression> {
        let operators = [
            ("*", "py_mul"),
            ("/", "py_div"),
            ("//", "py_floordiv"),
            ("%", "py_mod"),
        ];
        self.binary(&operators, Self::power)
    }

    fn power(&mut self) -> Result<Expression> {
        self.binary(&[("**", "py_pow")], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expression> {
        let filter = match self.peek() {
            Some(Token::Sign("-")) => Some("py_neg"),
            Some(Token::Sign("+")) => Some("py_pos"),
            _ => None,
        };
        let mut written = match filter {
            Some(filter) => {
                self.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(format!("more than {MAX_DEPTH} signs in a row"));
                }
                let operand = self.unary(false)?;
                self.depth -= 1;
                operand.filtered(filter, "")
            }
            None => self.primary()?,
        };
        written = self.postfix(written)?;
        if with_filters {
            written = self.filters(written)?;
        }
        Ok(written)
    }

    pub(super) fn primary(&mut self) -> Result<Expression> {
        let wanted = self.unexpected("an expression");
        let text = match self.next().ok_or_else(|| wanted.clone())? {
            Token::Name(name) => {
                self.names.record_variable(name);
                match name {
                    "True" | "False" | "None" => name.to_lowercase(),
                    name => name.to_owned(),
                }
            }
            Token::Text(mut text) => {
                while let Some(Token::Text(more)) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                self.names.record_mention(&text);
                literal(&text)
            }
            Token::Integer(digits) => {
                if digits.parse::<i128>().is_err() {
                    let text = format!("\"{digits}\"|py_int()");
                    return Ok(Expression::new(text, Precedence::Filtered));
                }
                digits
            }
            Token::Float(text) => text.into_owned(),
            Token::Sign("(") => {
                let inner = if self.is_sign(")") {
                    String::new()
                } else {
                    self.tuple(true)?
                };
                self.expect_sign(")")?;
                format!("({inner})")
            }
            Token::Sign("[") => format!("[{}]", self.list("]")?),
            Token::Sign("{") => format!("{{{} }}", self.dict()?),
            Token::Sign(_) => return Err(wanted),
        };
        Ok(Expression::new(text, Precedence::Tight))
    }

    fn list(&mut self, close: &str) -> Result<String> {
        let mut items = Vec::new();
        while !self.skip_sign(close) {
            if !items.is_empty() {
                self.expect_sign(",")?;
                if self.skip_sign(close) {
                    break;
                }
            }
            items.push(self.expression()?.text);
        }
        Ok(items.join(", "))
    }

    fn dict(&mut self) -> Result<String> {
        let mut entries = Vec::new();
        while !self.skip_sign("}") {
            if !entries.is_empty() {
                self.expect_sign(",")?;
                if self.skip_sign("}") {
                    break;
                }
            }
            let is_literal = matches!(self.peek(), Some(Token::Text(_) | Token::Integer(_)));
            let key = self.expression()?;
            let key = if is_literal {
                key.text
            } else {
                key.filtered("py_key", "").text
            };
            self.expect_sign(":")?;
            entries.push(format!("{key}: {}", self.expression()?.text));
        }
        Ok(entries.join(", "))
    }
}

/// Returns a minijinja string literal for `text`.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\x00"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
