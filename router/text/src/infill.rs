//! Fill-in-the-middle prompts: prefix and suffix are joined by the special tokens that code models
//! are trained with.

use penstock_request::error::ApiError;
use tokenizers::Tokenizer;

use crate::tokenize::{SpecialTokens, encode};

/// How a model takes the prefix and the suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Infill {
    before_prefix: u32,
    before_suffix: u32,
    /// The last token of the prompt. `None` = the suffix comes first, and the output follows the
    /// prefix.
    before_middle: Option<u32>,
    /// Whether the suffix omits the leading space that the tokenizer adds to texts.
    unspaced: bool,
    /// Tokens that end the output, in addition to the model's own.
    ends: Vec<u32>,
}

/// The special tokens of a model family.
struct Family {
    prefix: &'static str,
    suffix: &'static str,
    middle: Option<&'static str>,
    unspaced: bool,
    ends: &'static [&'static str],
}

/// Encoded before the suffix, then stripped from the ids, so that the tokenizer adds no leading
/// space to the suffix. No tokenizer merges it with what follows.
const ANCHOR: &str = "\u{263A}";

const FAMILIES: [Family; 6] = [
    // Qwen2.5-Coder, CodeGemma.
    Family {
        prefix: "<|fim_prefix|>",
        suffix: "<|fim_suffix|>",
        middle: Some("<|fim_middle|>"),
        unspaced: false,
        ends: &[
            "<|endoftext|>",
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
            "<|file_separator|>",
        ],
    },
    // StarCoder, StarCoder2, Granite Code.
    Family {
        prefix: "<fim_prefix>",
        suffix: "<fim_suffix>",
        middle: Some("<fim_middle>"),
        unspaced: false,
        ends: &["<|endoftext|>", "<fim_pad>", "<file_sep>"],
    },
    // SantaCoder.
    Family {
        prefix: "<fim-prefix>",
        suffix: "<fim-suffix>",
        middle: Some("<fim-middle>"),
        unspaced: false,
        ends: &["<|endoftext|>", "<fim-pad>"],
    },
    // DeepSeek-Coder.
    Family {
        prefix: "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
        suffix: "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
        middle: Some("<\u{ff5c}fim\u{2581}end\u{ff5c}>"),
        unspaced: false,
        ends: &[],
    },
    // CodeLlama.
    Family {
        prefix: "\u{2581}<PRE>",
        suffix: "\u{2581}<SUF>",
        middle: Some("\u{2581}<MID>"),
        unspaced: true,
        ends: &["\u{2581}<EOT>"],
    },
    // Codestral: the suffix first.
    Family {
        prefix: "[PREFIX]",
        suffix: "[SUFFIX]",
        middle: None,
        unspaced: true,
        ends: &[],
    },
];

impl Infill {
    /// Detects the tokens of a tokenizer's model family; `None` if it has none.
    pub(crate) fn from_tokenizer(tokenizer: &Tokenizer) -> Option<Self> {
        FAMILIES.iter().find_map(|family| family.infill(tokenizer))
    }

    /// Returns the tokens that end the output, in addition to the model's own.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Builds the prompt for a text between `prefix` and `suffix`. With `special`, the tokens that
    /// the tokenizer adds before a text come first.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        (prefix, suffix): (&str, &str),
        special: SpecialTokens,
    ) -> Result<Vec<u32>, ApiError> {
        let before = encode(tokenizer, prefix, SpecialTokens::AsIs)?;
        let mut ids = encode(tokenizer, prefix, special)?;
        // Keep only what was added before the text: an added end token would end the prompt.
        let found = ids
            .windows(before.len().max(1))
            .position(|part| part == before);
        let start = if before.is_empty() {
            Some(ids.len())
        } else {
            found
        };
        ids.truncate(start.unwrap_or(0));
        let after = self.suffix_ids(tokenizer, suffix)?;
        match self.before_middle {
            Some(middle) => {
                ids.push(self.before_prefix);
                ids.extend(before);
                ids.push(self.before_suffix);
                ids.extend(after);
                ids.push(middle);
            }
            None => {
                ids.push(self.before_suffix);
                ids.extend(after);
                ids.push(self.before_prefix);
                ids.extend(before);
            }
        }
        Ok(ids)
    }

    fn suffix_ids(&self, tokenizer: &Tokenizer, suffix: &str) -> Result<Vec<u32>, ApiError> {
        if self.unspaced {
            let anchor = encode(tokenizer, ANCHOR, SpecialTokens::AsIs)?;
            let anchored = format!("{ANCHOR}{suffix}");
            let ids = encode(tokenizer, &anchored, SpecialTokens::AsIs)?;
            if let Some(rest) = ids.strip_prefix(anchor.as_slice()) {
                return Ok(rest.to_vec());
            }
        }
        encode(tokenizer, suffix, SpecialTokens::AsIs)
    }
}

impl Family {
    fn infill(&self, tokenizer: &Tokenizer) -> Option<Infill> {
        let id = |token: &str| tokenizer.token_to_id(token);
        Some(Infill {
            before_prefix: id(self.prefix)?,
            before_suffix: id(self.suffix)?,
            before_middle: match self.middle {
                Some(middle) => Some(id(middle)?),
                None => None,
            },
            unspaced: self.unspaced,
            ends: self.ends.iter().filter_map(|end| id(end)).collect(),
        })
    }
}
