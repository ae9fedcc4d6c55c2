//! Matching of a regular language: a byte-level DFA with the distance of each state to acceptance.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mask_cache::{Mask, MaskCache};
use super::vocabulary::Vocabulary;

/// An upper bound of every state's cost.
const FAR: i32 = 1 << 30;

/// A DFA as made by `penstock.grammar.automaton`. State 0 is the start.
pub(super) struct Automaton {
    vocabulary: Arc<Vocabulary>,
    masks: Arc<MaskCache>,
    /// Transitions [states][256]: the state after a byte, or -1.
    table: Vec<i16>,
    /// Whether the text may end, per state.
    accepting: Vec<bool>,
    /// Tokens that complete the text, per state.
    cost: Vec<i32>,
    /// Whether texts are completed within the token budget.
    complete: bool,
    number: u64,
}

impl Automaton {
    /// Builds the DFA from the concatenated arrays `table`, `accepting`, `cost`. Returns None if
    /// they do not fit each other.
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

    /// Returns the tokens of the text that is shortest in bytes.
    pub(super) fn shortest(&self) -> usize {
        usize::try_from(self.cost[0]).unwrap_or(0)
    }

    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        2 * self.table.len() + 5 * self.cost.len()
    }

    /// Returns the state after a token; None if the token is not allowed.
    pub(super) fn step(&self, state: usize, token: u32) -> Option<usize> {
        let text = self.vocabulary.text(token);
        self.after(state, text).filter(|_| !text.is_empty())
    }

    /// Returns the state after a text; None if the text is not allowed.
    pub(super) fn after(&self, state: usize, text: &[u8]) -> Option<usize> {
        text.iter()
            .try_fold(state, |state, &byte| self.next(state, byte))
    }

    fn next(&self, state: usize, byte: u8) -> Option<usize> {
        usize::try_from(self.table[state * 256 + usize::from(byte)]).ok()
    }

    /// Returns the tokens that complete a text that begins with `prefix`; None if there is none.
    pub(super) fn needed(&self, prefix: &[u8]) -> Option<usize> {
        usize::try_from(self.cost[self.after(0, prefix)?]).ok()
    }

    /// Returns whether the text may end in `state`.
    pub(super) fn is_accepting(&self, state: usize) -> bool {
        self.accepting[state]
    }

    /// Writes the mask of the next token, without end tokens, if `left` tokens are left. Returns
    /// whether the budget forbids tokens that the expression allows.
    pub(super) fn fill(&self, state: usize, left: i64, row: &mut [u32]) -> bool {
        let mask = self.mask(state, FAR);
        let worst = mask.costs.last().copied().unwrap_or(0);
        let narrowed = self.complete && left > 0 && i64::from(worst) > left - 1;
        if narrowed {
            // One mask serves all budgets up to the next cost.
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

/// Copies a mask into a row of any length: truncates it or pads it with zeros.
pub(super) fn write(bits: &[u32], row: &mut [u32]) {
    let count = bits.len().min(row.len());
    row[..count].copy_from_slice(&bits[..count]);
    row[count..].fill(0);
}
