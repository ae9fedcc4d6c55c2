//! What a request asks of logits before a token is chosen from them. The formulas and their order
//! are the worker's: `proto/README.md`, Sampling.

/// Everything asked; the default asks nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitsProcessors {
    /// Keep tokens with at least this share of the largest probability; 0 = off.
    pub min_p: f32,
    /// Keep the tokens nearest to the entropy that have this probability together; 1 = off.
    pub typical_p: f32,
    /// For tokens that were there before.
    pub penalties: Penalties,
    /// Added to the logits of these tokens; each is there once.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only possible tokens; `None` = all.
    pub allowed: Option<Vec<u32>>,
    /// Impossible tokens.
    pub banned: Vec<u32>,
    /// Tokens, two or more, that never follow one another in this order.
    pub bad_words: Vec<Vec<u32>>,
    /// For those who look for it in the answer.
    pub watermark: Option<Watermark>,
}

/// What tokens lose by having been there before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides positive logits and multiplies others, of tokens of prompt and answer; 1 = off.
    pub repetition: f32,
    /// Taken off for each time that the token was generated; 0 = off.
    pub frequency: f32,
    /// Taken off if the token was generated; 0 = off.
    pub presence: f32,
}

/// "A Watermark for Large Language Models": which tokens are green, and what they gain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watermark {
    /// Share of green tokens, between 0 and 1.
    pub gamma: f64,
    /// Added to their logits.
    pub delta: f32,
    /// Of the hash of the token before.
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
    /// Takes a word that the answer may not have; it has a token at least.
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
    /// TGI's numbers.
    fn default() -> Self {
        Self {
            gamma: 0.5,
            delta: 2.0,
            key: 15_485_863,
        }
    }
}
