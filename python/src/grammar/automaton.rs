//! Sequences that follow a regular language: a table over bytes, and how far each state is from a
//! whole text.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mask_cache::{Mask, MaskCache};
use super::vocabulary::Vocabulary;

/// More than any state costs.
const FAR: i32 = 1 << 30;

/// An automaton as `penstock.grammar.automaton` makes it. State 0 is the start.
pub(super) struct Automaton {
    vocabulary: Arc<Vocabulary>,
    masks: Arc<MaskCache>,
    /// [states][256]: the state after a byte, or -1.
    table: Vec<i16>,
    /// Of each state whether the text may end there.
    accepting: Vec<bool>,
    /// Of each state the tokens that complete the text.
    cost: Vec<i32>,
    /// Whether documents are steered to their end.
    complete: bool,
    number: u64,
}

impl Automaton {
    /// From the arrays one after the other: `table`, `whole`, `cost`. None if they do not fit.
    pub(super) fn new(
        vocabulary: Arc<Vocabulary>,
        masks: Arc<MaskCache>,
        states: usize,
        data: &[u8],
        complete: bool,
    ) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        if states == 0 || data.len() != states * (512 + 1 + 4) {
            return None;
        }
        let (table, rest) = data.split_at(states * 512);
        let (whole, cost) = rest.split_at(states);
        let (table, _) = table.as_chunks::<2>();
        let (cost, _) = cost.as_chunks::<4>();
        let table: Vec<i16> = table.iter().map(|&two| i16::from_ne_bytes(two)).collect();
        if table
            .iter()
            .any(|&next| usize::try_from(next).is_ok_and(|next| next >= states))
        {
            return None;
        }
        Some(Self {
            vocabulary,
            masks,
            table,
            accepting: whole.iter().map(|&byte| byte != 0).collect(),
            cost: cost.iter().map(|&four| i32::from_ne_bytes(four)).collect(),
            complete,
            number: COUNT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Tokens of the shortest text in bytes.
    pub(super) fn shortest(&self) -> usize {
        usize::try_from(self.cost[0]).unwrap_or(0)
    }

    /// Bytes in memory, about.
    pub(super) fn size(&self) -> usize {
        2 * self.table.len() + 5 * self.cost.len()
    }

    /// The state after a token; None if it cannot follow.
    pub(super) fn step(&self, state: usize, token: u32) -> Option<usize> {
        let text = self.vocabulary.text(token);
        self.after(state, text).filter(|_| !text.is_empty())
    }

    /// The state after a text; None if it cannot follow.
    pub(super) fn after(&self, state: usize, text: &[u8]) -> Option<usize> {
        text.iter()
            .try_fold(state, |state, &byte| self.next(state, byte))
    }

    fn next(&self, state: usize, byte: u8) -> Option<usize> {
        usize::try_from(self.table[state * 256 + usize::from(byte)]).ok()
    }

    /// Tokens that complete a text which has begun so; None if none does.
    pub(super) fn needed(&self, prefix: &[u8]) -> Option<usize> {
        usize::try_from(self.cost[self.after(0, prefix)?]).ok()
    }

    /// Whether the text may end in `state`.
    pub(super) fn is_accepting(&self, state: usize) -> bool {
        self.accepting[state]
    }

    /// Writes the mask of the next of `left` tokens, end tokens apart; whether fewer are allowed
    /// than the expression alone would allow.
    pub(super) fn fill(&self, state: usize, left: i64, row: &mut [u32]) -> bool {
        let mask = self.mask(state, FAR);
        let worst = mask.costs.last().copied().unwrap_or(0);
        let narrowed = self.complete && left > 0 && i64::from(worst) > left - 1;
        if narrowed {
            // One mask serves all numbers of tokens up to the next cost.
            let below = mask.costs.partition_point(|&cost| i64::from(cost) < left);
            let most = below.checked_sub(1).map_or(-1, |place| mask.costs[place]);
            write(&self.mask(state, most).bits, row);
        } else {
            write(&mask.bits, row);
        }
        narrowed
    }

    fn mask(&self, state: usize, most: i32) -> Arc<Mask> {
        self.masks.get((self.number, state, most), || {
            let mut bits = vec![0; self.vocabulary.size().div_ceil(32)];
            let mut costs = Vec::new();
            let mut known = vec![false; self.cost.len()];
            let next = |state, byte| self.next(state, byte);
            self.vocabulary.walk(next, state, |token, after| {
                if self.cost[after] <= most {
                    bits[token as usize / 32] |= 1 << (token % 32);
                    if !known[after] {
                        known[after] = true;
                        costs.push(self.cost[after]);
                    }
                }
            });
            costs.sort_unstable();
            costs.dedup();
            Mask { bits, costs }
        })
    }
}

/// Copies a mask into a row that may be longer, or shorter.
pub(super) fn write(bits: &[u32], row: &mut [u32]) {
    let count = bits.len().min(row.len());
    row[..count].copy_from_slice(&bits[..count]);
    row[count..].fill(0);
}
