//! API keys. Only their hashes are kept, and hashes are compared in constant time.

use std::fmt;
use std::hint::black_box;

use axum::http::{HeaderMap, header};
use ring::digest::{SHA256, digest};

/// Prefix of a key that is given by its hash.
const HASHED: &str = "sha256:";
const BYTES: usize = 32;

/// The SHA-256 hash of a key.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; BYTES]);

impl KeyHash {
    /// Hashes a key.
    pub fn of(key: &str) -> Self {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
        Self(bytes)
    }

    /// Parses a key: the key itself, or `sha256:` and the 64 hexadecimal digits of its hash.
    ///
    /// # Errors
    /// If the key is empty, a header cannot contain it, or the hash is malformed. The message does
    /// not contain the key.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(digits) = text.strip_prefix(HASHED) {
            return Self::from_hex(digits)
                .ok_or_else(|| format!("a hashed key is `{HASHED}` and 64 hexadecimal digits"));
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a key must have one or more visible ASCII characters, no spaces".into());
        }
        Ok(Self::of(text))
    }

    /// Returns whether both hashes are equal, in a time that does not depend on their bytes.
    pub fn equals(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(other.0);
        black_box(pairs.fold(0, |differing, (a, b)| differing | (a ^ b))) == 0
    }

    fn from_hex(digits: &str) -> Option<Self> {
        if digits.len() != 2 * BYTES || !digits.is_ascii() {
            return None;
        }
        let mut bytes = [0; BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Debug for KeyHash {
    /// Prints no part of the hash: short keys can be found from theirs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash")
    }
}

/// Returns the hashes of the keys that a request presents: as `Authorization: Bearer`, as all
/// clients of OpenAI's API do, and as `x-api-key`, as those of Anthropic's do.
pub(crate) fn presented(headers: &HeaderMap) -> impl Iterator<Item = KeyHash> {
    let bearer = headers.get(header::AUTHORIZATION);
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let plain = headers.get("x-api-key");
    let plain = plain.and_then(|value| value.to_str().ok()).map(str::trim);
    bearer.into_iter().chain(plain).map(KeyHash::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_hash_are_the_same() {
        // From `printf secret | sha256sum`.
        let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        let hashed = KeyHash::parse(&format!("sha256:{hash}")).unwrap();
        assert!(hashed.equals(&KeyHash::parse("secret").unwrap()));
        assert!(!hashed.equals(&KeyHash::of("secreT")));
        assert!(!hashed.equals(&KeyHash::of("secret ")));
    }

    #[test]
    fn malformed_keys_are_refused_and_not_repeated() {
        let long = format!("sha256:{}", "é".repeat(32));
        for wrong in ["", "a b", "a\n", "schlüssel", "sha256:2bb8", &long] {
            let why = KeyHash::parse(wrong).unwrap_err();
            assert!(wrong.is_empty() || !why.contains(wrong), "{why}");
        }
    }
}
