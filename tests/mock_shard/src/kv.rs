//! KV memory that remembers whose history was written where.

use penstock_engine::generated::v1;

/// The memory of one KV group: per position the hash of the history that ended there, 0 = never
/// written. What a real worker would read wrongly is found by comparing hashes.
#[derive(Debug)]
pub(crate) struct Kv {
    block_tokens: usize,
    positions: Vec<u64>,
}

impl Kv {
    pub(crate) fn new(blocks: u32, block_tokens: u32) -> Self {
        let block_tokens = block_tokens as usize;
        Self {
            block_tokens,
            positions: vec![0; blocks as usize * block_tokens],
        }
    }

    /// Tokens that a table has room for.
    pub(crate) fn room(&self, table: &[u32]) -> usize {
        table.len() * self.block_tokens
    }

    pub(crate) fn write(&mut self, table: &[u32], position: usize, hash: u64) {
        let at = self.at(table, position);
        self.positions[at] = hash;
    }

    /// Compares what a position holds with what the reader expects.
    pub(crate) fn check(&self, table: &[u32], position: usize, hash: u64) -> Result<(), String> {
        let found = self.positions[self.at(table, position)];
        if found == hash {
            return Ok(());
        }
        let block = table[position / self.block_tokens];
        let what = if found == 0 {
            "was never written"
        } else {
            "holds another history"
        };
        Err(format!("position {position} in block {block} {what}"))
    }

    pub(crate) fn copy(&mut self, source: u32, destination: u32) {
        let span = self.block_tokens;
        let from = source as usize * span;
        self.positions
            .copy_within(from..from + span, destination as usize * span);
    }

    /// Refuses blocks outside the pool, and a block twice in one table.
    pub(crate) fn check_blocks(&self, held: &[u32], added: &[u32]) -> Result<(), String> {
        let pool = self.positions.len() / self.block_tokens;
        for (at, block) in added.iter().enumerate() {
            if *block as usize >= pool {
                return Err(format!("block {block} is outside the pool of {pool}"));
            }
            if held.contains(block) || added[..at].contains(block) {
                return Err(format!("block {block} is twice in one table"));
            }
        }
        Ok(())
    }

    pub(crate) fn check_copies(&self, copies: &v1::BlockCopies) -> Result<(), String> {
        let (from, to) = (copies.sources.len(), copies.destinations.len());
        if from != to {
            return Err(format!("copies have {from} sources, but {to} destinations"));
        }
        self.check_blocks(&[], &copies.destinations)?;
        let pool = self.positions.len() / self.block_tokens;
        match copies.sources.iter().find(|block| **block as usize >= pool) {
            Some(block) => Err(format!("block {block} is outside the pool of {pool}")),
            None => Ok(()),
        }
    }

    fn at(&self, table: &[u32], position: usize) -> usize {
        let block = table[position / self.block_tokens] as usize;
        block * self.block_tokens + position % self.block_tokens
    }
}
