//! Shares of accounts: places in the queue, charges, and who makes way for whom.
//!
//! `waiting` decides which account's sequence is tried next. That is not enough for an account that
//! has nothing in a slot while another holds all of them, or whose prompts are long: then the other
//! gives up a sequence, or lets the first chunk go first.

use super::Scheduler;
use crate::accounts::AccountKey;
use crate::ids::{Micros, SequenceKey};
use crate::plan_builder::PlanBuilder;
use crate::request::{AddError, Pipelining, SchedulingClass};
use crate::sequence::{Phase, Sequence};
use std::collections::BTreeMap;

impl Scheduler {
    /// Fails if the queue has no place for a request of `tokens` that leaves `free` places free.
    /// Where others fill the queue, a tenant may still have its share of it.
    pub(super) fn check_place(
        &self,
        class: &SchedulingClass,
        tokens: u64,
        free: usize,
    ) -> Result<(), AddError> {
        let account = self.accounts.find(self.policy.place(class).tenant);
        let (config, counts) = (&self.config, self.waiting.counts());
        let share = self.waiting.share(account);
        let (places, taken) = (config.max_waiting as u64, (counts.fresh + free) as u64);
        let places_left = taken < places || share.allows(share.own, places) && taken < 2 * places;
        if !places_left {
            return Err(AddError::QueueFull);
        }
        let (queued, most) = (counts.fresh_tokens, config.max_waiting_tokens);
        let free_tokens = most / places.max(1) * free as u64;
        let taken = queued.saturating_add(tokens + free_tokens);
        let tokens_left = queued == 0
            || taken <= most
            || share.allows(share.own_tokens + tokens, most) && taken <= 2 * most;
        if !tokens_left {
            return Err(AddError::TokensFull);
        }
        Ok(())
    }

    /// Charges the tokens that a decoding sequence generated since the last charge.
    pub(super) fn charge_output(&mut self, key: SequenceKey) {
        let sequence = &mut self.store[key];
        if sequence.phase == Phase::Decode {
            let tokens = sequence.len().saturating_sub(sequence.charged);
            sequence.charged += tokens;
            self.accounts.charge_output(sequence.account, tokens);
        }
    }

    /// Counts that a sequence has begun.
    pub(super) fn count_begun(&mut self, key: SequenceKey) {
        let sequence = &mut self.store[key];
        if !sequence.begun {
            sequence.begun = true;
            self.accounts.begin(sequence.account);
        }
    }

    /// Preempts a sequence of the account that received the most, if all slots are taken, or blocks
    /// are scarce, and another account has nothing in a slot.
    pub(super) fn make_way(&mut self, now: Micros) {
        let needs_blocks = std::mem::take(&mut self.needs_blocks);
        if self.running.free_slots() > 0 && !needs_blocks {
            return;
        }
        let starved = self.waiting.starved(&self.accounts);
        let victim = starved.first().and_then(|&account| self.giver(account));
        if let Some(key) = victim {
            self.counters.preemptions += 1;
            self.preempt(key, now);
        }
    }

    /// Called where blocks are scarce. If an account waits that has nothing in a slot, and others can
    /// make way for it, the next plan does that. Returns whether it will.
    pub(super) fn request_blocks(&mut self) -> bool {
        let starved = self.waiting.starved(&self.accounts);
        let giver = starved.first().and_then(|&account| self.giver(account));
        self.needs_blocks |= giver.is_some();
        giver.is_some()
    }

    /// Returns whether nothing of a queued sequence's account has begun.
    pub(super) fn is_starved(&self, key: SequenceKey) -> bool {
        self.accounts.begun(self.store[key].account) == 0
    }

    /// Returns the youngest running sequence of the account that received the most, and more than
    /// `account`. Nobody gives up its only one.
    fn giver(&self, account: AccountKey) -> Option<SequenceKey> {
        let mut running = BTreeMap::new();
        for &key in self.running.keys() {
            *running.entry(self.store[key].account).or_insert(0) += 1;
        }
        let served = |key: &SequenceKey| self.accounts.served(self.store[*key].account);
        let gives = |key: &&SequenceKey| {
            let sequence = &self.store[**key];
            let several = running
                .get(&sequence.account)
                .is_some_and(|&count| count > 1);
            several && !sequence.held && sequence.pipelining != Pipelining::Steered
        };
        let keys = self.running.keys().iter().filter(gives).copied();
        let most = keys.max_by_key(served)?;
        (served(&most) >= self.accounts.served(account)).then_some(most)
    }

    /// Returns whether a prompt lets those of another account go first: one that will have received
    /// less when its prompt is computed. Then `prefill_yielded` plans its chunk.
    pub(super) fn yields_to_tenant(&self, key: SequenceKey, builder: &mut PlanBuilder) -> bool {
        let own = self.store[key].account;
        let others = self.prefills().filter(|other| other.account != own);
        let running = others.map(|other| self.service_after(other)).min();
        let queued = match self.running.free_slots() {
            0 => None,
            _ => self.waiting.least_after(&self.accounts, own),
        };
        let least = running.into_iter().chain(queued).min();
        let yields = least.is_some_and(|least| least < self.service_after(&self.store[key]));
        if yields {
            builder.yielded.push(key);
        }
        yields
    }

    /// Plans chunks of the prompts that let others go first.
    pub(super) fn prefill_yielded(&mut self, builder: &mut PlanBuilder) {
        let mut yielded = std::mem::take(&mut builder.yielded);
        yielded.sort_by_key(|&key| self.service_after(&self.store[key]));
        for key in yielded {
            let nobody_after = self.running.len();
            self.prefill(key, nobody_after, builder);
        }
    }

    /// Returns the service of a sequence's account once its prompt is computed.
    fn service_after(&self, sequence: &Sequence) -> u64 {
        let account = sequence.account;
        let left = sequence.len() - sequence.planned;
        let served = self.accounts.served(account);
        self.accounts.after(account, served, left)
    }
}
