//! Groups of states: checkpoints at block boundaries.

use super::chain::{Checkpoint, SequenceKv};
use super::{KvMemory, PendingCopy};

impl KvMemory {
    /// Returns a shorter length for a chunk of `tokens` tokens from `position` in a sequence of
    /// `length` tokens, if it should end at a block boundary for a checkpoint: at the end of what the
    /// sequence shares with others, at the last boundary before its last token, or at the last one
    /// within the chunk.
    pub(crate) fn tokens_to_checkpoint(
        &self,
        kv: &SequenceKv,
        position: u32,
        tokens: u32,
        length: u32,
    ) -> Option<u32> {
        if !self.caches || self.states.is_empty() {
            return None;
        }
        let last = (length - 1) / self.block_tokens * self.block_tokens;
        let end = position + tokens;
        let mut aligned = end.min(last) / self.block_tokens * self.block_tokens;
        if position < kv.shared && kv.shared < aligned {
            aligned = kv.shared;
        }
        (position < aligned && aligned < end).then(|| aligned - position)
    }

    /// Plans a checkpoint of a sequence that runs on from `position`, if that is a block boundary
    /// with no checkpoint and every group of states has a block for it. Returns whether it does.
    pub(crate) fn plan_checkpoint(&mut self, kv: &mut SequenceKv, position: u32) -> bool {
        let aligned = position > kv.last_checkpoint && position.is_multiple_of(self.block_tokens);
        if !aligned || !self.caches || self.states.is_empty() || !self.has_state_blocks() {
            return false;
        }
        let mut checkpoint = Checkpoint {
            position,
            name: None,
            leases: Vec::new(),
        };
        for at in 0..self.states.len() {
            let group = self.states[at];
            let state = kv.chains[group].leases.first().map(|lease| lease.block());
            if let Some(state) = state
                && let Some(lease) = self.take(group)
            {
                let source = self.groups[group].pool.share(state);
                let destination = lease.block();
                checkpoint.leases.push(lease);
                self.copies.push(PendingCopy {
                    group,
                    source,
                    destination,
                });
            }
        }
        kv.last_checkpoint = position;
        kv.checkpoints.push(checkpoint);
        self.name_checkpoints(kv);
        true
    }

    /// Makes the checkpoints findable that an outcome has confirmed: the copy is made by the step
    /// that runs on from there.
    pub(super) fn settle_checkpoints(&mut self, kv: &mut SequenceKv, computed: u32) {
        if kv.checkpoints.is_empty() {
            return;
        }
        self.name_checkpoints(kv);
        let confirmed = kv.checkpoints.iter().take_while(|c| c.position < computed);
        let confirmed = confirmed.count();
        for checkpoint in kv.checkpoints.drain(..confirmed) {
            let name = checkpoint.name.filter(|&name| self.prefix.is_current(name));
            if let Some(name) = name {
                for (&group, lease) in self.states.iter().zip(&checkpoint.leases) {
                    self.groups[group].named.insert(name.block, lease.block());
                }
            }
            self.drop_checkpoint(checkpoint);
        }
    }

    /// Gives back a checkpoint's blocks; they stay cached if they can be found.
    pub(super) fn drop_checkpoint(&mut self, checkpoint: Checkpoint) {
        for (at, lease) in checkpoint.leases.into_iter().enumerate() {
            self.end_lease(self.states[at], lease);
        }
    }

    /// Names the checkpoint at the end of the indexed blocks.
    fn name_checkpoints(&self, kv: &mut SequenceKv) {
        let indexed = kv.cursor.indexed * self.block_tokens;
        for checkpoint in &mut kv.checkpoints {
            if checkpoint.position == indexed {
                checkpoint.name = Some(kv.cursor.name);
            }
        }
    }

    fn has_state_blocks(&self) -> bool {
        let available = |&group: &usize| self.groups[group].pool.available();
        self.states.iter().map(available).all(|blocks| blocks > 0)
    }
}
