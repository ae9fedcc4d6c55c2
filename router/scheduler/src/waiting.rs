//! Sequences without a slot: queued, or kept out of the queue until they are prepared or steered.

use crate::ids::{Micros, SequenceKey};
use crate::sequence::{Order, QueueClass, Sequence, State};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of waiting sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitingCounts {
    /// Sequences in the queue.
    pub(crate) queued: usize,
    /// Sequences outside the queue.
    pub(crate) preparing: usize,
    /// Known tokens of all of them.
    pub(crate) tokens: u64,
    /// Those that have not begun, and their tokens; `add` bounds them. Sequences that have begun are
    /// bounded by the slots and by their requests' sequences, whether they were preempted or forked
    /// beyond the slots.
    pub(crate) fresh: usize,
    pub(crate) fresh_tokens: u64,
}

/// Owns the queue and the counts of waiting sequences, and sets their state.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queue: Queue,
    counts: WaitingCounts,
}

/// A position in the queue: resumed sequences first, then by seniority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    queue_class: QueueClass,
    order: Order,
}

impl WaitingCounts {
    pub(crate) fn sequences(&self) -> usize {
        self.queued + self.preparing
    }

    /// Counts a waiting sequence.
    pub(crate) fn count(&mut self, sequence: &Sequence) {
        let tokens = u64::from(sequence.len());
        self.tokens += tokens;
        if sequence.queue_class == QueueClass::Fresh {
            self.fresh += 1;
            self.fresh_tokens += tokens;
        }
        match sequence.state {
            State::Queued => self.queued += 1,
            State::Preparing => self.preparing += 1,
            State::Running(_) | State::Vacant => {}
        }
    }

    fn uncount(&mut self, sequence: &Sequence) {
        let tokens = u64::from(sequence.len());
        self.tokens -= tokens;
        if sequence.queue_class == QueueClass::Fresh {
            self.fresh -= 1;
            self.fresh_tokens -= tokens;
        }
        match sequence.state {
            State::Queued => self.queued -= 1,
            State::Preparing => self.preparing -= 1,
            State::Running(_) | State::Vacant => {}
        }
    }
}

impl Waiting {
    pub(crate) fn counts(&self) -> WaitingCounts {
        self.counts
    }

    /// Returns whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the first `limit` queued sequences in the order of admission; see `Queue`.
    pub(crate) fn candidates(&self, aged: Option<Micros>, limit: usize) -> Vec<SequenceKey> {
        self.queue.candidates(aged, limit)
    }

    /// Puts a sequence without slot or blocks into the queue.
    pub(crate) fn enqueue(&mut self, key: SequenceKey, sequence: &mut Sequence, now: Micros) {
        sequence.state = State::Queued;
        sequence.since = now;
        self.queue.insert(Ticket::new(sequence), now, key);
        self.counts.count(sequence);
    }

    /// Keeps a sequence without slot and blocks out of the queue.
    pub(crate) fn park(&mut self, sequence: &mut Sequence) {
        sequence.state = State::Preparing;
        self.counts.count(sequence);
    }

    /// Ends the waiting of a queued or parked sequence; the caller sets its state.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        if sequence.state == State::Queued {
            self.queue.remove(Ticket::new(sequence), sequence.since);
        }
        self.counts.uncount(sequence);
    }

    /// Counts tokens that a queued sequence gained from an outcome.
    pub(crate) fn add_tokens(&mut self, tokens: usize) {
        self.counts.tokens += tokens as u64;
    }

    /// Returns whether the queue holds the counted sequences, each at its time; for `check`.
    pub(crate) fn is_consistent(&self, since: impl Fn(SequenceKey) -> Micros) -> bool {
        self.queue.len() == self.counts.queued && self.queue.is_consistent(since)
    }
}

impl Ticket {
    fn new(sequence: &Sequence) -> Self {
        Self {
            queue_class: sequence.queue_class,
            order: sequence.order,
        }
    }
}

/// The queue by ticket, which is the order in which admission tries them, and its fresh sequences by
/// waiting time.
#[derive(Debug, Default)]
struct Queue {
    by_ticket: BTreeMap<Ticket, SequenceKey>,
    by_time: BTreeSet<(Micros, Ticket)>,
}

impl Queue {
    fn len(&self) -> usize {
        self.by_ticket.len()
    }

    fn is_empty(&self) -> bool {
        self.by_ticket.is_empty()
    }

    fn insert(&mut self, ticket: Ticket, since: Micros, key: SequenceKey) {
        self.by_ticket.insert(ticket, key);
        if ticket.queue_class == QueueClass::Fresh {
            self.by_time.insert((since, ticket));
        }
    }

    fn remove(&mut self, ticket: Ticket, since: Micros) {
        self.by_ticket.remove(&ticket);
        self.by_time.remove(&(since, ticket));
    }

    /// Returns the first `limit` candidates: resumed sequences, then the fresh one that waits
    /// longest if it has waited since `aged`, then the others by ticket.
    fn candidates(&self, aged: Option<Micros>, limit: usize) -> Vec<SequenceKey> {
        let oldest = self.by_time.first();
        let oldest = oldest.filter(|(since, _)| aged.is_some_and(|aged| *since <= aged));
        let oldest = oldest.and_then(|(_, ticket)| self.by_ticket.get(ticket).copied());
        let begin = Ticket {
            queue_class: QueueClass::Fresh,
            order: Order::default(),
        };
        let resumed = self.by_ticket.range(..begin).map(|(_, &key)| key);
        let fresh = self.by_ticket.range(begin..).map(|(_, &key)| key);
        let fresh = fresh.filter(|&key| Some(key) != oldest);
        resumed.chain(oldest).chain(fresh).take(limit).collect()
    }

    /// Returns whether both orders hold the same fresh sequences and `since` is when each entered.
    fn is_consistent(&self, since: impl Fn(SequenceKey) -> Micros) -> bool {
        let fresh = |ticket: &Ticket| ticket.queue_class == QueueClass::Fresh;
        self.by_time.len() == self.by_ticket.keys().filter(|ticket| fresh(ticket)).count()
            && self.by_time.iter().all(|(time, ticket)| {
                let key = self.by_ticket.get(ticket);
                fresh(ticket) && key.is_some_and(|&key| since(key) == *time)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(queue_class: QueueClass, order: u64) -> Ticket {
        let order = Order {
            number: order,
            ..Order::default()
        };
        Ticket { queue_class, order }
    }

    #[test]
    fn the_longest_waiting_goes_first_once_it_has_aged() {
        let mut queue = Queue::default();
        queue.insert(ticket(QueueClass::Fresh, 1), Micros(50), 1);
        queue.insert(ticket(QueueClass::Fresh, 2), Micros(10), 2);
        queue.insert(ticket(QueueClass::Resumed, 3), Micros(0), 3);
        assert_eq!(queue.candidates(None, 9), [3, 1, 2]);
        assert_eq!(queue.candidates(Some(Micros(9)), 9), [3, 1, 2]);
        assert_eq!(queue.candidates(Some(Micros(10)), 9), [3, 2, 1]);
        assert_eq!(queue.candidates(Some(Micros(10)), 2), [3, 2]);
    }

    #[test]
    fn ageing_goes_on_after_the_oldest_has_left() {
        let mut queue = Queue::default();
        for (order, since) in [(1, 30), (2, 10), (3, 20)] {
            queue.insert(
                ticket(QueueClass::Fresh, order),
                Micros(since),
                order as SequenceKey,
            );
        }
        queue.remove(ticket(QueueClass::Fresh, 2), Micros(10));
        assert_eq!(queue.candidates(Some(Micros(40)), 9), [3, 1]);
        assert!(queue.is_consistent(|key| Micros(if key == 1 { 30 } else { 20 })));
        queue.remove(ticket(QueueClass::Fresh, 3), Micros(0));
        assert!(!queue.is_consistent(|_| Micros(30)));
    }
}
