//! Sequences that wait for a slot, in the order in which they are tried.

use crate::ids::Micros;
use crate::sequence::{Order, Place, Sequence, Standing};
use std::collections::{BTreeMap, BTreeSet};

/// Position in the queue: resumed sequences first, then seniority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub(crate) standing: Standing,
    pub(crate) order: Order,
}

impl Ticket {
    pub(crate) fn of(sequence: &Sequence) -> Self {
        Self {
            standing: sequence.standing,
            order: sequence.order,
        }
    }
}

/// The queue in order of trial, and its fresh sequences in order of waiting time.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    by_ticket: BTreeMap<Ticket, Place>,
    by_time: BTreeSet<(Micros, Ticket)>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_ticket.is_empty()
    }

    pub(crate) fn insert(&mut self, ticket: Ticket, since: Micros, place: Place) {
        self.by_ticket.insert(ticket, place);
        if ticket.standing == Standing::Fresh {
            self.by_time.insert((since, ticket));
        }
    }

    pub(crate) fn remove(&mut self, ticket: Ticket, since: Micros) {
        self.by_ticket.remove(&ticket);
        self.by_time.remove(&(since, ticket));
    }

    /// The first `limit` to try: the resumed, then whoever of the others waits longest if that is
    /// since before `aged`, then by ticket.
    pub(crate) fn candidates(&self, aged: Option<Micros>, limit: usize) -> Vec<Place> {
        let oldest = self.by_time.first();
        let oldest = oldest.filter(|(since, _)| aged.is_some_and(|aged| *since <= aged));
        let oldest = oldest.and_then(|(_, ticket)| self.by_ticket.get(ticket).copied());
        let begin = Ticket {
            standing: Standing::Fresh,
            order: Order::default(),
        };
        let resumed = self.by_ticket.range(..begin).map(|(_, &place)| place);
        let fresh = self.by_ticket.range(begin..).map(|(_, &place)| place);
        let fresh = fresh.filter(|&place| Some(place) != oldest);
        resumed.chain(oldest).chain(fresh).take(limit).collect()
    }
}
