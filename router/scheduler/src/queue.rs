//! Sequences that wait for a slot, in the order in which admission tries them.

use crate::ids::{Micros, SequenceKey};
use crate::sequence::{Order, QueueClass, Sequence};
use std::collections::{BTreeMap, BTreeSet};

/// A position in the queue: resumed sequences first, then by seniority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) queue_class: QueueClass,
    pub(crate) order: Order,
}

impl Ticket {
    pub(crate) fn new(sequence: &Sequence) -> Self {
        Self {
            queue_class: sequence.queue_class,
            order: sequence.order,
        }
    }
}

/// The queue by ticket, and its fresh sequences by waiting time.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    by_ticket: BTreeMap<Ticket, SequenceKey>,
    by_time: BTreeSet<(Micros, Ticket)>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_ticket.is_empty()
    }

    pub(crate) fn insert(&mut self, ticket: Ticket, since: Micros, key: SequenceKey) {
        self.by_ticket.insert(ticket, key);
        if ticket.queue_class == QueueClass::Fresh {
            self.by_time.insert((since, ticket));
        }
    }

    pub(crate) fn remove(&mut self, ticket: Ticket, since: Micros) {
        self.by_ticket.remove(&ticket);
        self.by_time.remove(&(since, ticket));
    }

    /// Returns the first `limit` candidates: resumed sequences, then the fresh one that waits
    /// longest if it has waited since `aged`, then the others by ticket.
    pub(crate) fn candidates(&self, aged: Option<Micros>, limit: usize) -> Vec<SequenceKey> {
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
    pub(crate) fn is_consistent(&self, since: impl Fn(SequenceKey) -> Micros) -> bool {
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
