//! Sequences without a slot: queued, or kept out of the queue until they are prepared or steered. The
//! queue has the resumed sequences, and a line of fresh ones per account.

use crate::accounts::{AccountKey, Accounts};
use crate::ids::{Micros, SequenceKey};
use crate::sequence::{Order, QueueClass, Sequence, State};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::iter::Peekable;

/// A position among the sequences of an account: by priority, deadline and seniority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    priority: i32,
    deadline: u64,
    order: Order,
}

/// A queued sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    key: SequenceKey,
    /// Its known tokens.
    tokens: u32,
}

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
    resumed: BTreeMap<Order, SequenceKey>,
    lines: BTreeMap<AccountKey, Line>,
    counts: WaitingCounts,
}

/// Fresh sequences of an account, by ticket and by waiting time.
#[derive(Debug, Default)]
struct Line {
    by_ticket: BTreeMap<Ticket, Entry>,
    by_time: BTreeSet<(Micros, Ticket)>,
    tokens: u64,
}

/// What an account has of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Its fresh sequences.
    pub(crate) own: u64,
    /// Their tokens.
    pub(crate) own_tokens: u64,
    /// Other accounts in line.
    others: u64,
}

/// The next entry of a line, with the service that its account would then have received. Ties go
/// to the account with fewer sequences that have begun.
type Claim = (u64, usize, AccountKey);

impl Ticket {
    fn new(sequence: &Sequence) -> Self {
        Self {
            priority: sequence.place.priority,
            deadline: sequence.place.deadline,
            order: sequence.order,
        }
    }
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
        self.resumed.is_empty() && self.lines.is_empty()
    }

    /// Puts a sequence without slot or blocks into the queue.
    pub(crate) fn enqueue(
        &mut self,
        key: SequenceKey,
        sequence: &mut Sequence,
        now: Micros,
        accounts: &mut Accounts,
    ) {
        sequence.state = State::Queued;
        sequence.since = now;
        self.insert(key, sequence, accounts);
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
            self.remove(sequence);
        }
        self.counts.uncount(sequence);
    }

    /// Counts tokens that a queued sequence gained from an outcome.
    pub(crate) fn add_tokens(&mut self, tokens: usize) {
        self.counts.tokens += tokens as u64;
    }

    /// Inserts a sequence. An account that had none in its line cannot use what it did not take.
    fn insert(&mut self, key: SequenceKey, sequence: &Sequence, accounts: &mut Accounts) {
        if sequence.queue_class == QueueClass::Resumed {
            self.resumed.insert(sequence.order, key);
            return;
        }
        let account = sequence.account;
        if !self.lines.contains_key(&account) {
            let waiting = self.lines.keys().map(|&other| accounts.served(other));
            accounts.lift(account, waiting.min());
        }
        let tokens = sequence.len();
        let entry = Entry { key, tokens };
        let line = self.lines.entry(account).or_default();
        line.insert(Ticket::new(sequence), sequence.since, entry);
    }

    fn remove(&mut self, sequence: &Sequence) {
        if sequence.queue_class == QueueClass::Resumed {
            self.resumed.remove(&sequence.order);
            return;
        }
        let Some(line) = self.lines.get_mut(&sequence.account) else {
            return;
        };
        line.remove(Ticket::new(sequence), sequence.since);
        if line.by_ticket.is_empty() {
            self.lines.remove(&sequence.account);
        }
    }

    /// Returns the first `limit` candidates: the first of each account for which nothing has begun,
    /// then resumed sequences, then the first of the account that was served least, again and
    /// again. The first of an account is the one that waits longest if it has waited since `aged`.
    pub(crate) fn candidates(
        &self,
        accounts: &Accounts,
        aged: Option<Micros>,
        limit: usize,
    ) -> Vec<SequenceKey> {
        let resumed = self.resumed.values().copied();
        let mut lines = self.lines.iter();
        if let (Some((&account, line)), None) = (lines.next(), lines.next())
            && (accounts.begun(account) > 0 || self.resumed.is_empty())
        {
            let fresh = line.entries(aged).map(|entry| entry.key);
            return resumed.chain(fresh).take(limit).collect();
        }
        let starved = self.starved(accounts).into_iter();
        let starved: Vec<_> = starved
            .filter_map(|account| Some(self.lines.get(&account)?.first(aged)?.key))
            .collect();
        let fresh = self.shared_out(accounts, aged, limit.saturating_sub(resumed.len()));
        let fresh = fresh.into_iter().filter(|key| !starved.contains(key));
        let ordered = starved.iter().copied().chain(resumed).chain(fresh);
        ordered.take(limit).collect()
    }

    /// Returns the accounts in line for which nothing has begun, the one served least first.
    pub(crate) fn starved(&self, accounts: &Accounts) -> Vec<AccountKey> {
        let keys = self.lines.keys().copied();
        let mut starved: Vec<_> = keys.filter(|&key| accounts.begun(key) == 0).collect();
        starved.sort_by_key(|&key| accounts.served(key));
        starved
    }

    /// Returns the least service that an account in line, other than `but`, will have received when
    /// the prompt of its first sequence is computed.
    pub(crate) fn least_after(&self, accounts: &Accounts, but: AccountKey) -> Option<u64> {
        let others = self.lines.iter().filter(|(account, _)| **account != but);
        let after = others.filter_map(|(&account, line)| {
            let first = line.first(None)?;
            Some(accounts.after(account, accounts.served(account), first.tokens))
        });
        after.min()
    }

    /// Returns what an account has of the queue, and how many share it.
    pub(crate) fn share(&self, account: Option<AccountKey>) -> Share {
        let line = account.and_then(|account| self.lines.get(&account));
        Share {
            own: line.map_or(0, |line| line.by_ticket.len() as u64),
            own_tokens: line.map_or(0, |line| line.tokens),
            others: (self.lines.len() - usize::from(line.is_some())) as u64,
        }
    }

    /// Returns fresh sequences as if each were charged when it is taken.
    fn shared_out(
        &self,
        accounts: &Accounts,
        aged: Option<Micros>,
        limit: usize,
    ) -> Vec<SequenceKey> {
        let mut lines: BTreeMap<AccountKey, Peekable<_>> = BTreeMap::new();
        let mut claims: BinaryHeap<Reverse<Claim>> = BinaryHeap::new();
        for (&account, line) in &self.lines {
            lines.insert(account, line.entries(aged).peekable());
            claims.push(Reverse((
                accounts.served(account),
                accounts.begun(account),
                account,
            )));
        }
        let mut keys = Vec::new();
        while keys.len() < limit {
            let Some(Reverse((served, begun, account))) = claims.pop() else {
                break;
            };
            let Some(line) = lines.get_mut(&account) else {
                continue;
            };
            if let Some(Entry { key, tokens }) = line.next() {
                keys.push(key);
                let served = accounts.after(account, served, tokens);
                claims.push(Reverse((served, begun + 1, account)));
            }
        }
        keys
    }

    /// Returns whether the queue holds the counted sequences, both orders of each line hold the same
    /// ones, and `since` is when each entered; for `check`.
    pub(crate) fn is_consistent(&self, since: impl Fn(SequenceKey) -> Micros) -> bool {
        let consistent = |line: &Line| {
            !line.by_ticket.is_empty()
                && line.by_time.len() == line.by_ticket.len()
                && line.by_time.iter().all(|(time, ticket)| {
                    let entry = line.by_ticket.get(ticket);
                    entry.is_some_and(|entry| since(entry.key) == *time)
                })
        };
        let fresh = self.lines.values().map(|line| line.by_ticket.len());
        self.counts.queued == self.resumed.len() + fresh.sum::<usize>()
            && self.lines.values().all(consistent)
    }
}

impl Share {
    /// Returns whether `own`, of a queue of `most`, is within the account's share beside others.
    pub(crate) fn allows(&self, own: u64, most: u64) -> bool {
        self.others > 0 && own < most / (self.others + 1)
    }
}

impl Line {
    fn insert(&mut self, ticket: Ticket, since: Micros, entry: Entry) {
        self.tokens += u64::from(entry.tokens);
        self.by_ticket.insert(ticket, entry);
        self.by_time.insert((since, ticket));
    }

    fn remove(&mut self, ticket: Ticket, since: Micros) {
        if let Some(entry) = self.by_ticket.remove(&ticket) {
            self.tokens -= u64::from(entry.tokens);
        }
        self.by_time.remove(&(since, ticket));
    }

    fn first(&self, aged: Option<Micros>) -> Option<Entry> {
        self.entries(aged).next()
    }

    /// Returns the entries: the one that waits longest if it has waited since `aged`, then the
    /// others by ticket.
    fn entries(&self, aged: Option<Micros>) -> impl Iterator<Item = Entry> + '_ {
        let oldest = self.by_time.first();
        let oldest = oldest.filter(|(since, _)| aged.is_some_and(|aged| *since <= aged));
        let oldest = oldest.and_then(|(_, ticket)| self.by_ticket.get(ticket).copied());
        let others = self.by_ticket.values().copied();
        let others = others.filter(move |&entry| Some(entry) != oldest);
        oldest.into_iter().chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiting sequences, and the accounts of their tenants.
    #[derive(Default)]
    struct Fixture {
        waiting: Waiting,
        accounts: Accounts,
        number: u64,
    }

    impl Fixture {
        /// Queues a sequence of `tenant` and returns it; its key is its number, counted from 1.
        fn add(&mut self, tenant: u64, change: impl FnOnce(&mut Sequence)) -> Sequence {
            self.number += 1;
            let mut sequence = Sequence {
                account: self.accounts.open(tenant, 1),
                length: 10,
                ..Sequence::default()
            };
            sequence.order.number = self.number;
            change(&mut sequence);
            let (key, since) = (self.number as SequenceKey, sequence.since);
            let accounts = &mut self.accounts;
            self.waiting.enqueue(key, &mut sequence, since, accounts);
            sequence
        }

        fn candidates(&self, aged: Option<u64>) -> Vec<SequenceKey> {
            self.waiting
                .candidates(&self.accounts, aged.map(Micros), 99)
        }
    }

    #[test]
    fn the_longest_waiting_goes_first_once_it_has_aged() {
        let mut fixture = Fixture::default();
        fixture.add(0, |sequence| sequence.since = Micros(50));
        fixture.add(0, |sequence| sequence.since = Micros(10));
        fixture.add(0, |sequence| sequence.queue_class = QueueClass::Resumed);
        fixture.accounts.begin(0);
        assert_eq!(fixture.candidates(None), [3, 1, 2]);
        assert_eq!(fixture.candidates(Some(9)), [3, 1, 2]);
        assert_eq!(fixture.candidates(Some(10)), [3, 2, 1]);
        let first = fixture.waiting.candidates(&fixture.accounts, None, 2);
        assert_eq!(first, [3, 1]);
    }

    #[test]
    fn ageing_goes_on_after_the_oldest_has_left() {
        let mut fixture = Fixture::default();
        let added =
            [30, 10, 20].map(|since| fixture.add(0, |sequence| sequence.since = Micros(since)));
        fixture.waiting.leave(&added[1]);
        assert_eq!(fixture.candidates(Some(40)), [3, 1]);
        let since = |key| Micros(if key == 1 { 30 } else { 20 });
        assert!(fixture.waiting.is_consistent(since));
        assert!(!fixture.waiting.is_consistent(|_| Micros(30)));
        assert_eq!(fixture.waiting.counts().queued, 2);
    }

    #[test]
    fn a_smaller_priority_goes_first_within_its_account_only() {
        let mut fixture = Fixture::default();
        fixture.add(1, |_| ());
        fixture.add(2, |sequence| sequence.place.deadline = u64::MAX);
        fixture.add(2, |sequence| sequence.place.priority = -5);
        fixture.add(2, |sequence| sequence.place.deadline = 7);
        fixture.add(2, |sequence| sequence.place.deadline = 6);
        fixture.accounts.begin(0);
        fixture.accounts.begin(1);
        assert_eq!(fixture.candidates(None), [1, 3, 5, 4, 2]);
    }

    #[test]
    fn accounts_take_turns_however_much_one_of_them_queues() {
        let mut fixture = Fixture::default();
        for _ in 0..4 {
            fixture.add(1, |_| ());
        }
        fixture.accounts.begin(0);
        fixture.accounts.charge_prompt(0, 15);
        fixture.add(2, |_| ());
        fixture.add(2, |_| ());
        fixture.accounts.begin(1);
        // Both have received as much: the second rose to the first when it came.
        assert_eq!(fixture.candidates(None), [1, 5, 2, 6, 3, 4]);
        fixture.accounts.charge_prompt(0, 15);
        assert_eq!(fixture.candidates(None), [5, 6, 1, 2, 3, 4]);
    }

    #[test]
    fn an_account_with_nothing_in_a_slot_goes_before_resumed_sequences() {
        let mut fixture = Fixture::default();
        fixture.add(1, |sequence| sequence.queue_class = QueueClass::Resumed);
        fixture.add(1, |_| ());
        fixture.accounts.begin(0);
        fixture.add(2, |_| ());
        fixture.add(2, |_| ());
        assert_eq!(fixture.waiting.starved(&fixture.accounts), [1]);
        assert_eq!(fixture.candidates(None)[..2], [3, 1]);
        fixture.accounts.begin(1);
        assert_eq!(fixture.candidates(None)[0], 1);
    }
}
