//! One live sequence, and the store of all of them.

use crate::accounts::AccountKey;
use crate::ids::{Micros, RequestId, SequenceId, SequenceKey, Slot, TokenId};
use crate::memory::{Contents, SequenceKv};
use crate::plan::{Chunk, Reach};
use crate::request::{Pipelining, Place, SchedulingClass};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::{Index, IndexMut};

/// Seniority: the policy's rank, then order of arrival. Smaller goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(crate) rank: u64,
    pub(crate) number: u64,
}

/// The state of a sequence in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The entry in the store is vacant.
    #[default]
    Vacant,
    /// Neither in a slot nor in the queue: it waits for `Scheduler::prepared` or
    /// `Scheduler::steer`.
    Preparing,
    /// In the queue: fresh or preempted.
    Queued,
    /// In a slot.
    Running(Slot),
}

/// Whether a queued sequence has run before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueClass {
    /// It was preempted, its worker was lost, or it forked from a running sequence: it goes first.
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
    /// A plan has reached its last known token: each further run is one token on the worker.
    Decode,
}

/// Capacity of a sequence's tail: the tokens that fill a cache line.
const TAIL: usize = 16;

/// The scheduler's record of a sequence. Token counts are positions: n tokens are 0..n.
///
/// `plan` touches the first cache line of every running sequence in every step, and `complete` the
/// first two. The rest is needed once per block or less. With a thousand sequences, most of the
/// speed comes from this order of fields.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) state: State,
    /// Distinguishes the sequences that used this entry of the store.
    pub(crate) generation: u32,
    /// Prompt and generated tokens known so far.
    pub(crate) length: u32,
    /// Prompt tokens and all tokens that it may generate.
    pub(crate) max_tokens: u32,
    /// Leading tokens whose KV is computed, as outcomes confirmed.
    pub(crate) computed: u32,
    /// Computed length from which its blocks must be settled: the next block becomes full, or a
    /// checkpoint is confirmed.
    pub(crate) boundary: u32,
    /// Tokens that its blocks hold, in the group where they hold the fewest.
    pub(crate) room: u32,
    /// Tokens up to which other sequences wait for its blocks instead of computing the same.
    pub(crate) claimed: u32,
    /// Bit t % 32 is set for every stop token t.
    pub(crate) stop_filter: u32,
    /// Runs whose outcome has not arrived.
    pub(crate) in_flight: u16,
    /// Runs in flight that yield tokens.
    pub(crate) yielding: u16,
    pub(crate) phase: Phase,
    pub(crate) pipelining: Pipelining,
    /// Number of tokens in `tail`.
    pub(crate) tail_length: u8,
    /// Whether it waits for `Scheduler::steer`: its last token is provisional.
    pub(crate) held: bool,
    /// The newest tokens of a running sequence. With a thousand sequences, appending each token to
    /// its own list on the heap would miss the caches each time.
    pub(crate) tail: [TokenId; TAIL],
    /// All known tokens except those in `tail`.
    pub(crate) tokens: Vec<TokenId>,
    /// Its blocks in all KV groups.
    pub(crate) kv: SequenceKv,
    /// Leading known tokens that plans have run or found in the cache; final once `phase` is
    /// Decode.
    pub(crate) planned: u32,
    /// Tokens of the prompt.
    pub(crate) prompt: u32,
    /// Forks to make once all known tokens but the last are computed.
    pub(crate) forks_to_make: u32,
    /// Length from which stop tokens count.
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
    /// The account that pays.
    pub(crate) account: AccountKey,
    /// Place in the account's line.
    pub(crate) place: Place,
    /// Whether it has been in a slot, or forked from a sequence that was.
    pub(crate) begun: bool,
    /// Leading tokens that the account paid for, or found in the cache.
    pub(crate) charged: u32,
}

impl Sequence {
    pub(crate) fn len(&self) -> u32 {
        self.length
    }

    pub(crate) fn has_tail_room(&self) -> bool {
        usize::from(self.tail_length) < TAIL
    }

    /// Appends a token; the tail must have room.
    pub(crate) fn push(&mut self, token: TokenId) {
        self.tail[usize::from(self.tail_length) % TAIL] = token;
        self.tail_length += 1;
        self.length += 1;
    }

    /// Moves the tail to `tokens`.
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

    /// Replaces the last token, which has not run.
    pub(crate) fn replace_last(&mut self, token: TokenId, block_tokens: u32) {
        self.flush();
        if let Some(last) = self.tokens.last_mut() {
            *last = token;
        }
        // The keys of blocks that contain the last token are outdated.
        self.kv.forget_keys((self.length - 1) / block_tokens);
    }

    /// Returns whether `length` and the two parts of the tokens agree; for `check`.
    pub(crate) fn lengths_agree(&self) -> bool {
        self.length as usize == self.tokens.len() + usize::from(self.tail_length)
    }

    /// Touches the ends of its lists, so that the cache misses of several sequences overlap.
    pub(crate) fn prefetch(&self) {
        black_box(self.tokens.last().copied());
        self.kv.prefetch();
    }

    /// Returns the known tokens that plans may still run: all, but without the last one while it
    /// has forks to make, since each fork runs that token.
    pub(crate) fn prefill_left(&self) -> u32 {
        self.len() - self.planned - u32::from(self.forks_to_make > 0)
    }

    /// Called before the computed tokens are forgotten. The logits after them are already known, so
    /// they may come from the cache when the sequence runs again; all tokens may, once the prompt's
    /// logits are known.
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

    /// Returns whether outcomes in flight bring it to its length limit, at one token each.
    pub(crate) fn will_end(&self) -> bool {
        self.len() + u32::from(self.yielding) >= self.max_tokens
    }

    /// Returns the tokens that ever need room: the last generated token is never attended to.
    pub(crate) fn max_room(&self) -> u32 {
        self.max_tokens - 1
    }

    /// Returns the tokens that need room if the next run yields up to `k` tokens.
    pub(crate) fn room_to_yield(&self, k: u32) -> u32 {
        (self.len() + u32::from(self.yielding) * k + k - 1).min(self.max_room())
    }

    /// Returns the tokens that need room if `chunk` runs from `position`, and yields up to `k`.
    pub(crate) fn room_to_run(&self, chunk: Chunk, position: u32, k: u32) -> u32 {
        match chunk.reach {
            Reach::Yields => self.room_to_yield(k),
            Reach::Part => position + chunk.tokens,
        }
    }

    pub(crate) fn stops_at(&self, token: TokenId) -> bool {
        self.stop_filter >> (token.0 % 32) & 1 == 1 && self.stops.contains(&token)
    }

    pub(crate) fn parts(&mut self) -> (&mut SequenceKv, Contents<'_>) {
        (
            &mut self.kv,
            Contents {
                salt: &self.salt,
                tokens: &self.tokens,
            },
        )
    }
}

/// Returns `Sequence::stop_filter` for the given stop tokens.
pub(crate) fn stop_filter(stops: &[TokenId]) -> u32 {
    stops
        .iter()
        .fold(0, |filter, token| filter | 1 << (token.0 % 32))
}

/// The sequences of one live request.
#[derive(Debug, Default)]
struct RequestSequences {
    /// Index of the next fork.
    next: u32,
    live: Vec<(u32, SequenceKey)>,
}

/// Live sequences, densely stored; vacant entries are reused.
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

    /// Returns the keys of a request's live sequences, in the order of creation.
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

    /// Stores `sequence` as the next one of `request` and sets its id and generation.
    pub(crate) fn insert(&mut self, request: RequestId, sequence: Sequence) -> SequenceKey {
        let sequences = self.requests.get(&request);
        let index = sequences.map_or(0, |sequences| sequences.next);
        self.insert_as(SequenceId { request, index }, sequence)
    }

    /// Stores `sequence` with this id, which no earlier one has, and sets its generation.
    pub(crate) fn insert_as(&mut self, id: SequenceId, mut sequence: Sequence) -> SequenceKey {
        let key = self
            .vacant
            .pop()
            .unwrap_or(self.entries.len() as SequenceKey);
        let sequences = self.requests.entry(id.request).or_default();
        sequence.id = id;
        sequences.live.push((id.index, key));
        sequences.next = sequences.next.max(id.index + 1);
        match self.entries.get_mut(key as usize) {
            Some(old) => {
                sequence.generation = old.generation;
                *old = sequence;
            }
            None => self.entries.push(sequence),
        }
        key
    }

    /// Vacates an entry. The sequence must have released its slot and blocks.
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

    /// Returns the live sequences with their keys.
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
