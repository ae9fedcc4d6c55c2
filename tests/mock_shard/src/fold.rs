//! The worker's state as a fold of the step requests, with every rule of the protocol checked.

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;

use std::collections::HashMap;

use penstock_engine::generated::v1::{self, request_error::Kind};

use crate::{
    Fault,
    config::{Check, MockConfig},
    kv::Kv,
    logprobs::{push_prompt_logprobs, push_top_logprobs, tidy},
    sequence::Sequence,
};

/// What a worker is after the steps so far.
#[derive(Debug)]
pub(crate) struct State {
    config: MockConfig,
    limits: v1::Loaded,
    kv: Kv,
    slots: HashMap<u32, Sequence>,
    epoch: u64,
    next_step: u64,
    /// Steps since the worker began.
    steps: u64,
}

impl State {
    pub(crate) fn new(config: MockConfig, limits: v1::Loaded) -> Self {
        let kv = Kv::new(&limits.kv_groups);
        let slots = HashMap::new();
        Self {
            config,
            limits,
            kv,
            slots,
            epoch: 0,
            next_step: 0,
            steps: 0,
        }
    }

    pub(crate) fn reset(&mut self, epoch: u64) -> Result<(), String> {
        if epoch <= self.epoch {
            let last = self.epoch;
            return Err(format!("epoch {epoch} does not follow {last}, the last"));
        }
        self.slots.clear();
        self.epoch = epoch;
        self.next_step = 0;
        Ok(())
    }

    /// Counts a step that will never be answered.
    pub(crate) fn skip(&mut self) {
        self.steps += 1;
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn sequences(&self) -> usize {
        self.slots.len()
    }

    /// Applies one step. An error names the rule that the request breaks; the state is unusable
    /// after it.
    pub(crate) fn apply(&mut self, request: v1::StepRequest) -> Result<v1::StepReply, String> {
        let (epoch, step) = (request.epoch, request.step);
        self.fold(request)
            .map_err(|rule| format!("step {step} of epoch {epoch}: {rule}"))
    }

    fn fold(&mut self, request: v1::StepRequest) -> Result<v1::StepReply, String> {
        self.check_order(request.epoch, request.step)?;
        for slot in request.finished {
            self.slots
                .remove(&slot)
                .ok_or_else(|| empty("finished", slot))?;
        }
        for new in request.new {
            self.enter(new)?;
        }
        for fork in request.forks {
            self.fork(fork)?;
        }
        for copies in &request.copies {
            self.check_group(copies.group)?;
            self.kv.check_copies(copies)?;
            for (from, to) in copies.sources.iter().zip(&copies.destinations) {
                self.kv.copy(copies.group as usize, *from, *to);
            }
        }
        self.steer(&request.steered_slots, &request.steered_tokens)?;
        for growth in &request.growth {
            self.grow(growth, &request.run_slots)?;
        }
        let mut reply = v1::StepReply {
            epoch: request.epoch,
            step: request.step,
            ..Default::default()
        };
        self.run(&request.run_slots, &request.run_tokens, &mut reply)?;
        self.steps += 1;
        self.next_step += 1;
        Ok(reply)
    }

    fn check_order(&self, epoch: u64, step: u64) -> Result<(), String> {
        if epoch != self.epoch {
            return Err(format!("the worker is in epoch {}", self.epoch));
        }
        if step != self.next_step {
            return Err(format!("step {} is due", self.next_step));
        }
        Ok(())
    }

    fn enter(&mut self, mut new: v1::NewSequence) -> Result<(), String> {
        let (slot, known) = (new.slot, new.token_ids.len());
        self.check_vacant("new", slot)?;
        if known == 0 || new.computed as usize >= known || new.generated as usize > known {
            let (computed, generated) = (new.computed, new.generated);
            return Err(format!(
                "slot {slot} is given {known} tokens, {computed} computed, {generated} generated: \
                 at least one must be left to run, and at most all be generated"
            ));
        }
        let vocab = self.config.geometry.vocab;
        if let Some(token) = new.token_ids.iter().find(|token| **token >= vocab) {
            return Err(format!(
                "token {token} in slot {slot} is outside the vocabulary {vocab}"
            ));
        }
        let computed = new.computed as usize;
        let tables = self.tables(slot, std::mem::take(&mut new.tables), computed)?;
        if self.kv.room(&tables) < computed {
            return Err(format!(
                "slot {slot} has more computed tokens than its blocks hold"
            ));
        }
        self.slots.insert(slot, Sequence::new(new, tables, vocab));
        Ok(())
    }

    fn fork(&mut self, fork: v1::SlotFork) -> Result<(), String> {
        self.check_vacant("fork", fork.destination)?;
        let source = self
            .slots
            .get(&fork.source)
            .ok_or_else(|| empty("fork", fork.source))?;
        let mut child = source.clone();
        child.tables = self.tables(fork.destination, fork.tables, child.computed)?;
        child.sampling.seed = fork.seed;
        child.borrowed = true;
        child.sampling.prompt_logprobs = None;
        self.slots.insert(fork.destination, child);
        Ok(())
    }

    fn steer(&mut self, slots: &[u32], tokens: &[u32]) -> Result<(), String> {
        if slots.len() != tokens.len() {
            let (slots, tokens) = (slots.len(), tokens.len());
            return Err(format!(
                "there are {slots} steered_slots, but {tokens} steered_tokens"
            ));
        }
        let vocab = self.config.geometry.vocab;
        for (slot, token) in slots.iter().zip(tokens) {
            let sequence = self
                .slots
                .get_mut(slot)
                .ok_or_else(|| empty("steered", *slot))?;
            if *token >= vocab || sequence.computed >= sequence.history.len() {
                return Err(format!(
                    "slot {slot} is steered to token {token}: it must be in the vocabulary {vocab}, \
                     and the one it replaces must not have run"
                ));
            }
            sequence.history.pop();
            sequence.learn(*token);
        }
        Ok(())
    }

    fn grow(&mut self, growth: &v1::BlockGrowth, runs: &[u32]) -> Result<(), String> {
        self.check_group(growth.group)?;
        let (counts, runs_len) = (growth.counts.len(), runs.len());
        if counts != runs_len {
            return Err(format!("growth has {counts} counts for {runs_len} runs"));
        }
        let sum: usize = growth.counts.iter().map(|count| *count as usize).sum();
        if sum != growth.blocks.len() {
            let blocks = growth.blocks.len();
            return Err(format!(
                "the counts of growth sum to {sum}, but it has {blocks} blocks"
            ));
        }
        let mut rest = growth.blocks.as_slice();
        for (slot, count) in runs.iter().zip(&growth.counts) {
            let (own, others) = rest.split_at(*count as usize);
            rest = others;
            let sequence = self
                .slots
                .get_mut(slot)
                .ok_or_else(|| empty("run", *slot))?;
            let doubled = |rule| format!("slot {slot}: {rule}");
            let group = growth.group as usize;
            let table = &mut sequence.tables[group];
            self.kv
                .check_blocks(group, table, own, sequence.computed)
                .map_err(doubled)?;
            table.extend_from_slice(own);
        }
        Ok(())
    }

    /// What a new sequence brings computed must be there before the step; then all write, then
    /// all read, as in the layers of a model.
    fn run(
        &mut self,
        slots: &[u32],
        tokens: &[u32],
        reply: &mut v1::StepReply,
    ) -> Result<(), String> {
        self.check_runs(slots, tokens)?;
        for slot in slots {
            self.check_borrowed(*slot)?;
        }
        for (slot, tokens) in slots.iter().zip(tokens) {
            let before = self.slots.get(slot).map_or(0, |own| own.computed);
            self.write(*slot, *tokens as usize)?;
            if let Some(sequence) = self.slots.get(slot) {
                push_prompt_logprobs(sequence, before, reply);
            }
        }
        let fault = self.slot_fault();
        let first = slots.first().filter(|_| fault.is_some());
        if let Some(sequence) = first.and_then(|slot| self.slots.get_mut(slot)) {
            sequence.failed = fault;
        }
        for slot in slots {
            let Some(sequence) = self.slots.get_mut(slot) else {
                continue;
            };
            check_history(&self.kv, sequence, self.config.check)
                .map_err(|rule| misread(*slot, &rule))?;
            match sequence.failed {
                Some(kind) => reply.errors.push(scripted_error(*slot, kind)),
                None => yield_tokens(*slot, sequence, &mut self.kv, &self.config, reply),
            }
        }
        tidy(reply);
        Ok(())
    }

    /// What is to happen to the first sequence of this step.
    fn slot_fault(&self) -> Option<Kind> {
        let now = |step: &u64| *step == self.steps;
        self.config.faults.iter().find_map(|fault| match fault {
            Fault::ErrorSlot(step) if now(step) => Some(Kind::Internal),
            Fault::DropPrepared(step) if now(step) => Some(Kind::Unprepared),
            _ => None,
        })
    }

    fn check_borrowed(&mut self, slot: u32) -> Result<(), String> {
        let Some(sequence) = self.slots.get_mut(&slot) else {
            return Ok(());
        };
        if std::mem::take(&mut sequence.borrowed) {
            check_all(&self.kv, sequence, sequence.computed)
                .map_err(|rule| misread(slot, &rule))?;
        }
        Ok(())
    }

    fn check_runs(&self, slots: &[u32], tokens: &[u32]) -> Result<(), String> {
        if slots.len() != tokens.len() {
            let (slots, tokens) = (slots.len(), tokens.len());
            return Err(format!(
                "there are {slots} run_slots, but {tokens} run_tokens"
            ));
        }
        let total: u64 = tokens.iter().map(|n| u64::from(*n)).sum();
        let limit = self.limits.max_step_tokens;
        if total > u64::from(limit) {
            return Err(format!(
                "{total} tokens run, but max_step_tokens is {limit}"
            ));
        }
        let mut seen = vec![false; self.limits.max_slots as usize];
        for slot in slots {
            match seen.get_mut(*slot as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(format!("slot {slot} runs twice or is out of range")),
            }
        }
        Ok(())
    }

    fn write(&mut self, slot: u32, tokens: usize) -> Result<(), String> {
        let sequence = self
            .slots
            .get_mut(&slot)
            .ok_or_else(|| empty("run", slot))?;
        if sequence.failed.is_some() {
            // Planned before the router knew: nothing to do but to say it again.
            return Ok(());
        }
        let (computed, known) = (sequence.computed, sequence.history.len());
        if tokens == 0 || computed + tokens > known {
            return Err(format!(
                "slot {slot} is to run {tokens} tokens, but {computed} of {known} are computed"
            ));
        }
        let room = self.kv.room(&sequence.tables);
        let several = self.config.geometry.tokens_per_run > 1;
        if several && tokens == 1 && computed == room && computed + 1 == known {
            // Planned before the outcome that ended the sequence was known: it yields nothing.
            return Ok(());
        }
        if computed + tokens > room {
            return Err(format!(
                "slot {slot} is to run up to token {}, but its blocks hold {room}",
                computed + tokens
            ));
        }
        for position in computed..computed + tokens {
            self.kv
                .write(&sequence.tables, position, sequence.history[position]);
        }
        sequence.computed += tokens;
        Ok(())
    }

    /// The tables of a sequence with `computed` tokens: one per KV group, in order.
    fn tables(
        &self,
        slot: u32,
        tables: Vec<v1::BlockTable>,
        computed: usize,
    ) -> Result<Vec<Vec<u32>>, String> {
        let groups: Vec<usize> = tables.iter().map(|table| table.group as usize).collect();
        let expected: Vec<usize> = (0..self.kv.groups()).collect();
        if groups != expected {
            return Err(format!(
                "slot {slot} has tables for groups {groups:?} instead of {expected:?}"
            ));
        }
        for (group, table) in tables.iter().enumerate() {
            let doubled = |rule| format!("slot {slot}: {rule}");
            self.kv
                .check_blocks(group, &[], &table.blocks, computed)
                .map_err(doubled)?;
        }
        Ok(tables.into_iter().map(|table| table.blocks).collect())
    }

    fn check_vacant(&self, part: &str, slot: u32) -> Result<(), String> {
        if slot >= self.limits.max_slots {
            return Err(format!(
                "{part} names slot {slot} of {}",
                self.limits.max_slots
            ));
        }
        match self.slots.contains_key(&slot) {
            true => Err(format!("{part} names slot {slot}, which is taken")),
            false => Ok(()),
        }
    }

    fn check_group(&self, group: u32) -> Result<(), String> {
        match (group as usize) < self.kv.groups() {
            true => Ok(()),
            false => Err(format!("there is no KV group {group}")),
        }
    }
}

/// Compares the KV that a run reads with the sequence's history.
fn check_history(kv: &Kv, sequence: &Sequence, check: Check) -> Result<(), String> {
    if sequence.failed.is_some() {
        return Ok(());
    }
    match check {
        Check::Full => check_all(kv, sequence, sequence.computed - 1),
        Check::Sampled => {
            let (history, computed) = (&sequence.history, sequence.computed);
            let reader = computed - 1;
            // Position 0 tells sequences of different prompts apart; the other one moves along.
            kv.check(&sequence.tables, 0, history[0], reader)?;
            let position = history[computed - 1] as usize % computed;
            kv.check(&sequence.tables, position, history[position], reader)
        }
    }
}

/// Compares all computed positions that the token at `reader` attends to.
fn check_all(kv: &Kv, sequence: &Sequence, reader: usize) -> Result<(), String> {
    let mut computed = sequence.history[..sequence.computed].iter().enumerate();
    computed.try_for_each(|(position, hash)| kv.check(&sequence.tables, position, *hash, reader))
}

fn misread(slot: u32, rule: &str) -> String {
    format!("slot {slot} would read wrongly: {rule}")
}

fn yield_tokens(
    slot: u32,
    sequence: &mut Sequence,
    kv: &mut Kv,
    config: &MockConfig,
    reply: &mut v1::StepReply,
) {
    if sequence.computed < sequence.history.len() {
        return;
    }
    // All but the last token that a run yields have their KV written: never beyond the blocks.
    let spare = kv.room(&sequence.tables) - sequence.computed;
    let most = (config.geometry.tokens_per_run as usize).min(spare + 1);
    let count = sequence.stride(most);
    for position in 0..count {
        let token = sequence.next_token(config.eos);
        if !config.faults.contains(&Fault::OmitLogprobs) {
            push_top_logprobs(sequence, token, config.eos, reply);
        }
        sequence.learn(token);
        sequence.generated += 1;
        reply.token_ids.push(token);
        reply.logprobs.push(sequence.logprob());
        if position + 1 < count {
            let at = sequence.computed;
            kv.write(&sequence.tables, at, sequence.history[at]);
            sequence.computed += 1;
        }
    }
    reply.slots.push(slot);
    reply.counts.push(u32::try_from(count).unwrap_or(u32::MAX));
}

fn scripted_error(slot: u32, kind: Kind) -> v1::SlotError {
    let error = v1::RequestError {
        kind: kind.into(),
        message: "scripted slot error".into(),
    };
    v1::SlotError {
        slot,
        error: Some(error),
    }
}

fn empty(part: &str, slot: u32) -> String {
    format!("{part} names slot {slot}, which is empty")
}
