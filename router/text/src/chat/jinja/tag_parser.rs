//! A parser of one tag's tokens.

use super::names::TemplateNames;
use super::tokens::Token;

/// A result whose error describes what is wrong with the tag.
pub(super) type Result<T> = std::result::Result<T, String>;

/// The tokens of one tag and the position in them.
pub(super) struct TagParser<'s, 'n> {
    pub(super) tokens: &'n [Token<'s>],
    pub(super) at: usize,
    pub(super) names: &'n mut TemplateNames,
    /// The nesting of the current expression.
    pub(super) depth: usize,
}

impl<'s, 'n> TagParser<'s, 'n> {
    pub(super) fn new(tokens: &'n [Token<'s>], names: &'n mut TemplateNames) -> Self {
        Self {
            tokens,
            at: 0,
            names,
            depth: 0,
        }
    }

    pub(super) fn peek(&self) -> Option<&Token<'s>> {
        self.tokens.get(self.at)
    }

    pub(super) fn next(&mut self) -> Option<Token<'s>> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    pub(super) fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(found)) if *found == sign)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if *found == name)
    }

    pub(super) fn skip_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_sign(&mut self, sign: &str) -> Result<()> {
        if self.skip_sign(sign) {
            return Ok(());
        }
        Err(self.unexpected(&format!("`{sign}`")))
    }

    pub(super) fn name(&mut self) -> Result<&'s str> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = *name;
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn unexpected(&self, wanted: &str) -> String {
        match self.peek() {
            None => format!("expected {wanted}, found the end of the tag"),
            Some(Token::Name(found)) => format!("expected {wanted}, found `{found}`"),
            Some(Token::Sign(found)) => format!("expected {wanted}, found `{found}`"),
            Some(_) => format!("expected {wanted}, found a literal"),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(super) fn done(&self) -> Result<()> {
        if self.is_done() {
            Ok(())
        } else {
            Err(self.unexpected("the end of the tag"))
        }
    }
}
