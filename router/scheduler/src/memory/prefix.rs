//! The prefix index: which computed block of the naming group holds which tokens after which
//! prefix.
//!
//! A block's key is a hash chained over the salt and all blocks before it. The key only finds
//! candidates. A hit also compares the tokens, the parent entry and, for first blocks, the salt.
//! Entry numbers are never reused, so equality holds by induction from the first block on, and a
//! hash collision costs time but never correctness.

use crate::ids::{BlockId, TokenId};
use std::collections::BTreeMap;
use std::hint::black_box;

/// The part of a key that the table stores; its low bits are also the start of the search.
const TAG: u64 = !0 << 32;

/// Bucket of a block that is not in the index.
const ABSENT: u32 = u32::MAX;

/// Number of an index entry, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Node(u64);

impl Node {
    /// Parent of all first blocks.
    pub(super) const ROOT: Self = Self(0);
}

/// A found prefix: the block of the naming group that ends it, and its entry. The node shows
/// whether the block still has the contents of this prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name {
    pub(super) block: BlockId,
    pub(super) node: Node,
}

/// The search for one block: the entries before it and its expected contents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    pub(super) key: u64,
    pub(super) parent: Node,
    pub(super) salt: &'a [u64],
    pub(super) tokens: &'a [TokenId],
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: u64,
    node: Node,
    parent: Node,
}

/// Dense storage by block, found through an open-addressed table (linear probing, at most half
/// full). A bucket is 0, or a key's upper half beside a block's number + 1.
#[derive(Debug)]
pub(super) struct Prefix {
    table: Vec<u64>,
    /// The bucket of each block; `ABSENT` if it is not indexed.
    buckets: Vec<u32>,
    entries: Vec<Entry>,
    tokens: Vec<TokenId>,
    /// Salts of first blocks; those without an entry have the empty salt.
    salts: BTreeMap<BlockId, Box<[u64]>>,
    block_tokens: usize,
    last_node: u64,
}

/// The end of a search of the table.
enum Lookup {
    Found(Name),
    Empty(usize),
}

impl Prefix {
    pub(super) fn new(blocks: u32, block_tokens: u32) -> Self {
        Self {
            table: vec![0; 2 * (blocks as usize).next_power_of_two()],
            buckets: vec![ABSENT; blocks as usize],
            entries: vec![Entry::default(); blocks as usize],
            tokens: vec![TokenId(0); blocks as usize * block_tokens as usize],
            salts: BTreeMap::new(),
            block_tokens: block_tokens as usize,
            last_node: 0,
        }
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.buckets[block.0 as usize] != ABSENT
    }

    pub(super) fn find(&self, link: &Link<'_>) -> Option<Name> {
        match self.search(link) {
            Lookup::Found(name) => Some(name),
            Lookup::Empty(_) => None,
        }
    }

    /// Returns whether the block of a name found earlier still has the same prefix.
    pub(super) fn is_current(&self, name: Name) -> bool {
        self.contains(name.block) && self.entries[name.block.0 as usize].node == name.node
    }

    /// Makes a computed block findable and returns its name. If another block has the same
    /// contents, that one stays and its name is returned.
    pub(super) fn insert(&mut self, block: BlockId, link: &Link<'_>) -> Name {
        let bucket = match self.search(link) {
            Lookup::Found(name) => return name,
            Lookup::Empty(bucket) => bucket,
        };
        self.put(bucket, (link.key & TAG) | u64::from(block.0 + 1));
        self.last_node += 1;
        let node = Node(self.last_node);
        self.entries[block.0 as usize] = Entry {
            key: link.key,
            node,
            parent: link.parent,
        };
        if link.parent == Node::ROOT && !link.salt.is_empty() {
            self.salts.insert(block, link.salt.into());
        }
        let start = block.0 as usize * self.block_tokens;
        self.tokens[start..start + self.block_tokens].copy_from_slice(link.tokens);
        Name { block, node }
    }

    /// Touches the buckets where searches for `keys` begin, so that their cache misses overlap.
    pub(super) fn prefetch(&self, keys: impl Iterator<Item = u64>) {
        black_box(keys.fold(0, |sum, key| sum ^ self.table[self.home(key)]));
    }

    /// Touches the memory that removing `blocks` will read.
    pub(super) fn prefetch_removal(&self, blocks: impl Iterator<Item = BlockId>) {
        let buckets = blocks.map(|block| self.buckets[block.0 as usize] as usize);
        let found = buckets.map(|bucket| self.table.get(bucket).copied().unwrap_or(0));
        black_box(found.fold(0, |sum, word| sum ^ word));
    }

    pub(super) fn remove(&mut self, block: BlockId) {
        let bucket = std::mem::replace(&mut self.buckets[block.0 as usize], ABSENT);
        if bucket == ABSENT {
            return;
        }
        if !self.salts.is_empty() {
            self.salts.remove(&block);
        }
        // Later members of the run move up, except past their home bucket.
        let mut hole = bucket as usize;
        let mut next = self.after(hole);
        while self.table[next] != 0 {
            let distance = next.wrapping_sub(self.home(self.table[next])) & (self.table.len() - 1);
            if distance >= next.wrapping_sub(hole) & (self.table.len() - 1) {
                self.put(hole, self.table[next]);
                hole = next;
            }
            next = self.after(next);
        }
        self.table[hole] = 0;
    }

    /// Returns whether a search for the contents of an indexed block finds it.
    pub(super) fn finds(&self, block: BlockId) -> bool {
        let Entry { key, parent, .. } = self.entries[block.0 as usize];
        let start = block.0 as usize * self.block_tokens;
        let link = Link {
            key,
            parent,
            salt: self.salts.get(&block).map_or(&[], |salt| &salt[..]),
            tokens: &self.tokens[start..start + self.block_tokens],
        };
        self.find(&link).is_some_and(|found| found.block == block)
    }

    fn put(&mut self, bucket: usize, word: u64) {
        self.table[bucket] = word;
        self.buckets[word as u32 as usize - 1] = bucket as u32;
    }

    fn search(&self, link: &Link<'_>) -> Lookup {
        let mut bucket = self.home(link.key);
        loop {
            let found = self.table[bucket];
            if found == 0 {
                return Lookup::Empty(bucket);
            }
            let block = found as u32;
            if (found ^ link.key) & TAG == 0 && self.holds(block - 1, link) {
                let block = BlockId(block - 1);
                let node = self.entries[block.0 as usize].node;
                return Lookup::Found(Name { block, node });
            }
            bucket = self.after(bucket);
        }
    }

    fn home(&self, key: u64) -> usize {
        (key >> 32) as usize & (self.table.len() - 1)
    }

    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.table.len() - 1)
    }

    fn holds(&self, block: u32, link: &Link<'_>) -> bool {
        let entry = &self.entries[block as usize];
        let start = block as usize * self.block_tokens;
        let salt = || {
            self.salts
                .get(&BlockId(block))
                .map_or(&[][..], |salt| &salt[..])
        };
        entry.key == link.key
            && entry.parent == link.parent
            && (link.parent != Node::ROOT || salt() == link.salt)
            && self.tokens[start..start + self.block_tokens] == *link.tokens
    }
}

/// Returns the key before the first block.
pub(super) fn root_key(salt: &[u64]) -> u64 {
    salt.iter()
        .fold(salt.len() as u64, |key, &word| mix(key, word))
}

/// Returns the key of a full block; hashes two tokens at a time.
pub(super) fn block_key(parent: u64, tokens: &[TokenId]) -> u64 {
    let words = tokens.chunks(2).map(|pair| {
        let [first, second] = [pair.first(), pair.get(1)].map(|t| t.map_or(0, |t| t.0));
        u64::from(first) | u64::from(second) << 32
    });
    words.fold(parent, mix)
}

/// One round of a multiply-and-fold hash; the constants are the golden ratio and an odd prime.
fn mix(key: u64, word: u64) -> u64 {
    let a = key ^ 0x9e37_79b9_7f4a_7c15;
    let b = word.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ 0xc2b2_ae3d_27d4_eb4f;
    let product = u128::from(a) * u128::from(b);
    let folded = (product as u64) ^ ((product >> 64) as u64);
    folded.rotate_left(23) ^ b
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a first block whose search begins at `home`, in a table of 16 buckets.
    fn link(home: u64, tokens: &[TokenId; 1]) -> Link<'_> {
        Link {
            key: (home | u64::from(tokens[0].0) << 8) << 32,
            parent: Node::ROOT,
            salt: &[],
            tokens,
        }
    }

    /// Removes four of six blocks with colliding searches in all orders, also at the table's end.
    #[test]
    fn blocks_whose_searches_collide_are_found_after_any_deletion() {
        let tokens: Vec<_> = (0..6).map(|token| [TokenId(token)]).collect();
        for first in [0, 3, 14] {
            let homes = [first, first, first + 1, first, first + 2, first + 1];
            let links: Vec<_> = std::iter::zip(homes, &tokens)
                .map(|(home, tokens)| link(home % 16, tokens))
                .collect();
            for order in 0..6_u32.pow(4) {
                let mut prefix = Prefix::new(8, 1);
                for (block, link) in (0..).map(BlockId).zip(&links) {
                    let _ = prefix.insert(block, link);
                }
                for step in 0..4 {
                    prefix.remove(BlockId(order / 6_u32.pow(step) % 6));
                    for (block, link) in (0..).map(BlockId).zip(&links) {
                        let found = prefix.find(link).map(|name| name.block);
                        assert_eq!(found, prefix.contains(block).then_some(block));
                    }
                }
            }
        }
    }

    #[test]
    fn equal_keys_are_distinguished_by_tokens_and_salt() {
        let (tokens, others) = ([TokenId(1)], [TokenId(2)]);
        let plain = link(5, &tokens);
        let salted = Link {
            salt: &[7],
            ..plain
        };
        let different = Link {
            tokens: &others,
            ..plain
        };
        let mut prefix = Prefix::new(4, 1);
        for (block, link) in (0..).map(BlockId).zip([&plain, &salted, &different]) {
            let _ = prefix.insert(block, link);
        }
        for (block, link) in (0..).map(BlockId).zip([&plain, &salted, &different]) {
            assert_eq!(prefix.find(link).map(|name| name.block), Some(block));
            assert!(prefix.finds(block));
        }
    }

    /// Searches of a full index touch few buckets: keys differ for blocks that differ in one token,
    /// in its position, in the parent or in the salt.
    #[test]
    fn keys_of_similar_blocks_spread() {
        let mut keys = Vec::new();
        for salt in 0..16 {
            let root = root_key(&vec![salt % 4; salt as usize / 4]);
            for at in 0..16 {
                for token in 0..64 {
                    let mut tokens = [TokenId(1); 16];
                    tokens[at] = TokenId(token + 2);
                    keys.push(block_key(root, &tokens));
                    keys.push(block_key(block_key(root, &tokens), &[TokenId(1); 16]));
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        // All empty salts are the same salt.
        assert_eq!(keys.len(), 13 * 16 * 64 * 2);
        let prefix = Prefix::new(keys.len() as u32, 1);
        let mut homes = vec![0_u32; prefix.table.len()];
        for &key in &keys {
            homes[prefix.home(key)] += 1;
        }
        // A random function gives some 6,000 of the 64 Ki homes two or more keys, and none nine.
        let most = homes.iter().max();
        assert!(most < Some(&9), "{most:?} keys have the same home");
    }
}
