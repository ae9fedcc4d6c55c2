//! One live sequence, and the store of all of them.

use crate::blocks::BlockLease;
use crate::ids::{Micros, RequestId, SequenceId, Slot, TokenId};
use crate::memory::{Chain, Contents};
use crate::request::{Pipelining, SchedulingClass};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::{Index, IndexMut};

/// Seniority: the policy's rank, then order of arrival. Smaller goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(crate) rank: u64,
    pub(crate) number: u64,
}

/// Where a sequence is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The place in the store is free.
    #[default]
    Vacant,
    /// Neither in a slot nor in the queue: `Scheduler::prepared` has not been called for its
    /// request, or it waits to be steered.
    Preparing,
    /// In the queue: not begun, or preempted.
    Queued,
    /// In a slot.
    Running(Slot),
}

/// Whether a queued sequence has run before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueClass {
    /// It was preempted, its worker was lost, or it is a fork of one that runs: it goes first.
    Resumed,
    /// It has not run.
    #[default]
    Fresh,
}

/// What a running sequence does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has known tokens that no plan has run yet.
    #[default]
    Prefill,
    /// A plan has reached its last known token: from here each run is one token on the worker.
    Decode,
}

/// Tokens that wait to be appended to the others: as many as fill a cache line.
const TAIL: usize = 16;

/// All that the scheduler knows about a sequence. Token counts are positions: of n tokens, 0..n.
///
/// `plan` touches the first cache line of every running sequence in every step, and `complete` the
/// first two; the rest is for what happens once per block or more seldom. With a thousand sequences,
/// this order is most of their speed.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) state: State,
    /// Distinguishes the sequences that used this place in the store.
    pub(crate) generation: u32,
    /// Prompt and generated tokens known so far.
    pub(crate) length: u32,
    /// Prompt and all tokens that it may generate.
    pub(crate) max_tokens: u32,
    /// Leading tokens whose KV is computed, as confirmed by outcomes.
    pub(crate) computed: u32,
    /// Computed length at which the next block becomes full, in the group where that is least.
    pub(crate) boundary: u32,
    /// Tokens that its blocks hold, in the group where that is least.
    pub(crate) room: u32,
    /// Tokens up to which others wait for its blocks instead of computing the same.
    pub(crate) claimed: u32,
    /// Bit t % 32 is set for every stop token t.
    pub(crate) stop_filter: u32,
    /// Runs whose outcome has not come.
    pub(crate) in_flight: u16,
    /// How many of them yield tokens.
    pub(crate) yielding: u16,
    pub(crate) phase: Phase,
    pub(crate) pipelining: Pipelining,
    /// How many tokens are in `tail`.
    pub(crate) tail_length: u8,
    /// Whether it waits to be steered: its last token is provisional.
    pub(crate) held: bool,
    /// The newest tokens of a running sequence: with a thousand sequences, appending each token to
    /// its own list on the heap would miss the caches each time.
    pub(crate) tail: [TokenId; TAIL],
    /// All known tokens but those in `tail`.
    pub(crate) tokens: Vec<TokenId>,
    /// One per KV group.
    pub(crate) chains: Vec<Chain>,
    /// Leading known tokens that plans have run or found; final once `phase` is Decode.
    pub(crate) planned: u32,
    /// Tokens of the prompt.
    pub(crate) prompt: u32,
    /// Forks that it makes once all its known tokens but the last are computed.
    pub(crate) forks_to_make: u32,
    /// Stop tokens count from this length on.
    pub(crate) min_tokens: u32,
    pub(crate) queue_class: QueueClass,
    pub(crate) order: Order,
    /// When it entered the queue.
    pub(crate) since: Micros,
    pub(crate) stops: Vec<TokenId>,
    pub(crate) salt: Vec<u64>,
    /// Leading tokens that may come from the prefix cache.
    pub(crate) max_cached_tokens: u32,
    pub(crate) class: SchedulingClass,
}

impl Sequence {
    pub(crate) fn len(&self) -> u32 {
        self.length
    }

    pub(crate) fn has_tail_room(&self) -> bool {
        usize::from(self.tail_length) < TAIL
    }

    /// Appends a token; there must be room in the tail.
    pub(crate) fn push(&mut self, token: TokenId) {
        self.tail[usize::from(self.tail_length) % TAIL] = token;
        self.tail_length += 1;
        self.length += 1;
    }

    /// Moves the tail to the other tokens.
    pub(crate) fn flush(&mut self) {
        let tail_length = std::mem::take(&mut self.tail_length);
        self.tokens
            .extend_from_slice(&self.tail[..usize::from(tail_length)]);
    }

    pub(crate) fn extend(&mut self, tokens: &[TokenId]) {
        self.flush();
        self.tokens.extend_from_slice(tokens);
        self.length += tokens.len() as u32;
    }

    /// Puts another token in the place of the last one, which has not run.
    pub(crate) fn replace_last(&mut self, token: TokenId, block_tokens: &[u32]) {
        self.flush();
        if let Some(last) = self.tokens.last_mut() {
            *last = token;
        }
        // Keys of blocks that the last token is in were made with the old one.
        let before = self.length - 1;
        for (chain, size) in self.chains.iter_mut().zip(block_tokens) {
            chain.forget_keys((before / size) as usize);
        }
    }

    /// Whether `length` and the two parts of the tokens agree; for `check`.
    pub(crate) fn lengths_agree(&self) -> bool {
        self.length as usize == self.tokens.len() + usize::from(self.tail_length)
    }

    /// Reads where its lists end, so that the cache misses of several sequences overlap.
    pub(crate) fn prefetch(&self) {
        black_box(self.tokens.last().copied());
        for chain in &self.chains {
            black_box(chain.leases.last().map(BlockLease::block));
        }
    }

    /// Known tokens that plans may still run: all, but while its forks are unborn not the last one,
    /// which each of them runs for itself.
    pub(crate) fn prefill_left(&self) -> u32 {
        self.len() - self.planned - u32::from(self.forks_to_make > 0)
    }

    /// Before it forgets what is computed: the logits after these tokens are known, so that they
    /// may come from the cache when it runs again; all may, once those of the prompt are.
    pub(crate) fn raise_cached_limit(&mut self) {
        self.max_cached_tokens = match self.computed >= self.prompt {
            true => u32::MAX,
            false => self.max_cached_tokens.max(self.computed),
        };
    }

    pub(crate) fn generated(&self) -> u32 {
        self.len() - self.prompt
    }

    pub(crate) fn slot(&self) -> Option<Slot> {
        match self.state {
            State::Running(slot) => Some(slot),
            State::Vacant | State::Preparing | State::Queued => None,
        }
    }

    /// Whether outcomes in flight bring it to its length limit, one token each.
    pub(crate) fn will_end(&self) -> bool {
        self.len() + u32::from(self.yielding) >= self.max_tokens
    }

    /// The last generated token is never read again: its KV needs no room.
    pub(crate) fn max_room(&self) -> u32 {
        self.max_tokens - 1
    }

    /// Tokens that need room once a run that yields up to `k` tokens is planned next.
    pub(crate) fn room_to_yield(&self, k: u32) -> u32 {
        (self.len() + u32::from(self.yielding) * k + k - 1).min(self.max_room())
    }

    pub(crate) fn stops_at(&self, token: TokenId) -> bool {
        self.stop_filter >> (token.0 % 32) & 1 == 1 && self.stops.contains(&token)
    }

    pub(crate) fn parts(&mut self) -> (&mut [Chain], Contents<'_>) {
        (
            &mut self.chains,
            Contents {
                salt: &self.salt,
                tokens: &self.tokens,
            },
        )
    }
}

/// `Sequence::stop_filter` of some stop tokens.
pub(crate) fn stop_filter(stops: &[TokenId]) -> u32 {
    stops
        .iter()
        .fold(0, |filter, token| filter | 1 << (token.0 % 32))
}

/// A sequence's place in the store.
pub(crate) type SequenceKey = u32;

/// The branches of one live request.
#[derive(Debug, Default)]
struct RequestSequences {
    /// Number of the next fork.
    next: u32,
    live: Vec<(u32, SequenceKey)>,
}

/// Live sequences, densely stored; places are reused.
#[derive(Debug, Default)]
pub(crate) struct Store {
    entries: Vec<Sequence>,
    vacant: Vec<SequenceKey>,
    requests: BTreeMap<RequestId, RequestSequences>,
}

impl Store {
    pub(crate) fn contains(&self, request: RequestId) -> bool {
        self.requests.contains_key(&request)
    }

    pub(crate) fn live(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.requests.keys().copied()
    }

    /// Places of a request's live branches, in the order of their birth.
    pub(crate) fn sequences(&self, request: RequestId) -> Vec<SequenceKey> {
        let sequences = self.requests.get(&request);
        sequences.map_or_else(Vec::new, |b| b.live.iter().map(|&(_, key)| key).collect())
    }

    pub(crate) fn find(&self, id: SequenceId) -> Option<SequenceKey> {
        let live = &self.requests.get(&id.request)?.live;
        live.iter()
            .find(|&&(index, _)| index == id.index)
            .map(|&(_, key)| key)
    }

    /// Stores `sequence` as the next branch of `request` and sets its id and generation.
    pub(crate) fn insert(&mut self, request: RequestId, mut sequence: Sequence) -> SequenceKey {
        let key = self
            .vacant
            .pop()
            .unwrap_or(self.entries.len() as SequenceKey);
        let sequences = self.requests.entry(request).or_default();
        sequence.id = SequenceId {
            request,
            index: sequences.next,
        };
        sequences.live.push((sequences.next, key));
        sequences.next += 1;
        match self.entries.get_mut(key as usize) {
            Some(old) => {
                sequence.generation = old.generation;
                *old = sequence;
            }
            None => self.entries.push(sequence),
        }
        key
    }

    /// Empties a place. The sequence must have given back its slot and blocks.
    pub(crate) fn remove(&mut self, key: SequenceKey) {
        let SequenceId { request, index } = self[key].id;
        let generation = self[key].generation.wrapping_add(1);
        self[key] = Sequence {
            generation,
            ..Sequence::default()
        };
        self.vacant.push(key);
        if let Some(sequences) = self.requests.get_mut(&request) {
            sequences.live.retain(|&(live, _)| live != index);
            if sequences.live.is_empty() {
                self.requests.remove(&request);
            }
        }
    }

    /// Live sequences with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SequenceKey, &Sequence)> + '_ {
        let entries = self.entries.iter().enumerate();
        entries
            .filter(|(_, s)| s.state != State::Vacant)
            .map(|(key, s)| (key as SequenceKey, s))
    }
}

impl Index<SequenceKey> for Store {
    type Output = Sequence;
    fn index(&self, key: SequenceKey) -> &Sequence {
        &self.entries[key as usize]
    }
}

impl IndexMut<SequenceKey> for Store {
    fn index_mut(&mut self, key: SequenceKey) -> &mut Sequence {
        &mut self.entries[key as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn hot_fields_are_on_two_cache_lines() {
        assert!(offset_of!(Sequence, tail) <= 64);
        assert!(offset_of!(Sequence, tokens) <= 128);
    }
}
