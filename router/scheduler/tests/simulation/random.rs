//! A seeded generator (SplitMix64, Steele et al. 2014) and the hash of the model worker. The tests
//! of the pace use them too.

/// The random choices of one episode.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(hash(&[seed, 0x5eed]))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finalize(self.0)
    }

    /// Uniform in `low..=high`.
    pub(crate) fn within(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % u64::from(high - low + 1)) as u32
    }

    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.within(1, 100) <= percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(0, from.len() as u32 - 1) as usize]
    }
}

pub(crate) fn hash(words: &[u64]) -> u64 {
    words.iter().fold(0, |state, &word| {
        finalize(state ^ finalize(word.wrapping_add(0x9e37)))
    })
}

fn finalize(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
