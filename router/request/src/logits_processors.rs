//! Logits processors of a request: applied to the logits before sampling. The worker defines the
//! formulas and their order: `proto/README.md`, Sampling.

/// All logits processors of a request; the default applies none.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitsProcessors {
    /// Keeps tokens with at least this share of the largest probability; 0 = off.
    pub min_p: f32,
    /// Keeps the tokens nearest to the entropy that have this probability together; 1 = off.
    pub typical_p: f32,
    /// Penalties for tokens that already occurred.
    pub penalties: Penalties,
    /// Values added to the logits of these tokens; no duplicates.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only allowed tokens; `None` = all.
    pub allowed: Option<Vec<u32>>,
    /// Tokens that are never generated.
    pub banned: Vec<u32>,
    /// Sequences of two or more tokens that are never generated.
    pub bad_words: Vec<Vec<u32>>,
    /// Watermark to embed.
    pub watermark: Option<Watermark>,
}

/// Penalties for tokens that already occurred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides positive logits and multiplies others, for tokens of prompt and output; 1 = off.
    pub repetition: f32,
    /// Subtracted once per generated occurrence of the token; 0 = off.
    pub frequency: f32,
    /// Subtracted if the token was generated; 0 = off.
    pub presence: f32,
}

/// The watermark of "A Watermark for Large Language Models": a share of tokens is green and gets a
/// bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watermark {
    /// Share of green tokens, between 0 and 1.
    pub gamma: f64,
    /// Bias added to the logits of green tokens.
    pub delta: f32,
    /// Key of the hash of the preceding token.
    pub key: u64,
}

impl Default for LogitsProcessors {
    fn default() -> Self {
        Self {
            min_p: 0.0,
            typical_p: 1.0,
            penalties: Penalties::default(),
            logit_bias: Vec::new(),
            allowed: None,
            banned: Vec::new(),
            bad_words: Vec::new(),
            watermark: None,
        }
    }
}

impl LogitsProcessors {
    /// Adds a forbidden word of one or more tokens.
    pub fn forbid(&mut self, word: Vec<u32>) {
        match *word {
            [id] => self.banned.push(id),
            _ => self.bad_words.push(word),
        }
    }
}

impl Default for Penalties {
    fn default() -> Self {
        Self {
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
        }
    }
}

impl Default for Watermark {
    /// TGI's values.
    fn default() -> Self {
        Self {
            gamma: 0.5,
            delta: 2.0,
            key: 15_485_863,
        }
    }
}
