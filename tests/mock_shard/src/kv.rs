//! KV memory that remembers whose history was written where.

use penstock_engine::generated::v1;

/// The memory of all KV groups. What a real worker would read wrongly is found by comparing hashes.
#[derive(Debug)]
pub(crate) struct Kv {
    block_tokens: usize,
    groups: Vec<Group>,
}

/// One group: per position the hash of the history that ended there, 0 = never written.
#[derive(Debug)]
struct Group {
    /// Tokens that a token attends to; 0 = all.
    window: usize,
    positions: Vec<u64>,
}

impl Kv {
    pub(crate) fn new(groups: &[v1::KvGroup]) -> Self {
        let group = |group: &v1::KvGroup| Group {
            window: group.window as usize,
            positions: vec![0; group.blocks as usize * group.block_tokens as usize],
        };
        Self {
            block_tokens: groups
                .first()
                .map_or(1, |group| group.block_tokens as usize),
            groups: groups.iter().map(group).collect(),
        }
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Tokens that the tables of a sequence have room for.
    pub(crate) fn room(&self, tables: &[Vec<u32>]) -> usize {
        let rooms = tables.iter().map(|table| table.len() * self.block_tokens);
        rooms.min().unwrap_or(0)
    }

    /// Writes one position of a sequence in every group.
    pub(crate) fn write(&mut self, tables: &[Vec<u32>], position: usize, hash: u64) {
        for (group, table) in tables.iter().enumerate() {
            let at = self.at(table, position);
            self.groups[group].positions[at] = hash;
        }
    }

    /// Compares what a position holds with what the token at `reader` expects, in every group whose
    /// window reaches the position.
    pub(crate) fn check(
        &self,
        tables: &[Vec<u32>],
        position: usize,
        hash: u64,
        reader: usize,
    ) -> Result<(), String> {
        for (index, (group, table)) in self.groups.iter().zip(tables).enumerate() {
            let reached = group.window == 0 || position + group.window > reader;
            let found = group.positions[self.at(table, position)];
            if found == hash || !reached {
                continue;
            }
            let block = table[position / self.block_tokens];
            let what = if found == 0 {
                "was never written"
            } else {
                "holds another history"
            };
            let of = if index == 0 {
                String::new()
            } else {
                format!(" of group {index}")
            };
            return Err(format!("position {position} in block {block}{of} {what}"));
        }
        Ok(())
    }

    pub(crate) fn copy(&mut self, group: usize, source: u32, destination: u32) {
        let span = self.block_tokens;
        let from = source as usize * span;
        self.groups[group]
            .positions
            .copy_within(from..from + span, destination as usize * span);
    }

    /// Refuses blocks outside the pool, and a block twice in one table. `table` has the blocks of a
    /// sequence with `computed` tokens, and gains `added`. Blocks behind the window may be any.
    pub(crate) fn check_blocks(
        &self,
        group: usize,
        table: &[u32],
        added: &[u32],
        computed: usize,
    ) -> Result<(), String> {
        let pool = self.pool(group);
        let blocks: Vec<u32> = table.iter().chain(added).copied().collect();
        let behind = match self.groups[group].window {
            0 => 0,
            window => (computed + 1).saturating_sub(window) / self.block_tokens,
        };
        for (at, block) in blocks.iter().enumerate() {
            if *block as usize >= pool {
                return Err(format!("block {block} is outside the pool of {pool}"));
            }
            if at > behind && blocks[behind..at].contains(block) {
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
        let group = copies.group as usize;
        self.check_blocks(group, &[], &copies.destinations, 0)?;
        let pool = self.pool(group);
        match copies.sources.iter().find(|block| **block as usize >= pool) {
            Some(block) => Err(format!("block {block} is outside the pool of {pool}")),
            None => Ok(()),
        }
    }

    fn pool(&self, group: usize) -> usize {
        self.groups[group].positions.len() / self.block_tokens
    }

    fn at(&self, table: &[u32], position: usize) -> usize {
        let block = table[position / self.block_tokens] as usize;
        block * self.block_tokens + position % self.block_tokens
    }
}
