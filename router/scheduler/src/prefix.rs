//! The prefix index of one KV group: which computed block holds which tokens after which prefix.
//!
//! A block's key is a hash chained over all blocks before it and the salt. The key only finds
//! candidates: a hit also needs the same tokens, the same parent entry and, for first blocks, the
//! same salt. Entries are numbered and never renumbered, so equality holds by induction from the
//! first block on and a collision costs time, never correctness.

use crate::ids::{BlockId, TokenId};

const NONE: u32 = u32::MAX;

/// Number of an entry of the index, unique over its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node(u64);

impl Node {
    /// Parent of all first blocks.
    pub(crate) const ROOT: Self = Self(0);
}

/// Where to look in the index: the chain so far, and what must follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link<'a> {
    pub(crate) key: u64,
    pub(crate) parent: Node,
    pub(crate) salt: &'a [u64],
    pub(crate) tokens: &'a [TokenId],
}

#[derive(Clone, Debug)]
struct Entry {
    key: u64,
    node: Node,
    parent: Node,
    next: u32,
    salt: Box<[u64]>,
}

/// Dense storage by block; hash chains run through the entries.
#[derive(Debug)]
pub(crate) struct Prefix {
    heads: Vec<u32>,
    entries: Vec<Entry>,
    tokens: Vec<TokenId>,
    block_tokens: usize,
    last_node: u64,
}

impl Prefix {
    pub(crate) fn new(blocks: u32, block_tokens: u32) -> Self {
        let vacant = Entry {
            key: 0,
            node: Node::ROOT,
            parent: Node::ROOT,
            next: NONE,
            salt: Box::default(),
        };
        Self {
            heads: vec![NONE; (blocks as usize).next_power_of_two()],
            entries: vec![vacant; blocks as usize],
            tokens: vec![TokenId(0); blocks as usize * block_tokens as usize],
            block_tokens: block_tokens as usize,
            last_node: 0,
        }
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.entries[block.0 as usize].node != Node::ROOT
    }

    pub(crate) fn find(&self, link: &Link<'_>) -> Option<(BlockId, Node)> {
        let mut block = self.heads[self.bucket(link.key)];
        while block != NONE {
            let entry = &self.entries[block as usize];
            if entry.key == link.key && self.holds(block, link) {
                return Some((BlockId(block), entry.node));
            }
            block = entry.next;
        }
        None
    }

    /// Makes a computed block findable. If another block holds the same already, that one stays,
    /// and its node continues the chain.
    pub(crate) fn insert(&mut self, block: BlockId, link: &Link<'_>) -> Node {
        if let Some((_, node)) = self.find(link) {
            return node;
        }
        self.last_node += 1;
        let bucket = self.bucket(link.key);
        let first = link.parent == Node::ROOT;
        self.entries[block.0 as usize] = Entry {
            key: link.key,
            node: Node(self.last_node),
            parent: link.parent,
            next: self.heads[bucket],
            salt: if first {
                link.salt.into()
            } else {
                Box::default()
            },
        };
        self.heads[bucket] = block.0;
        let start = block.0 as usize * self.block_tokens;
        self.tokens[start..start + self.block_tokens].copy_from_slice(link.tokens);
        Node(self.last_node)
    }

    pub(crate) fn remove(&mut self, block: BlockId) {
        if !self.contains(block) {
            return;
        }
        let (key, next) = {
            let entry = &self.entries[block.0 as usize];
            (entry.key, entry.next)
        };
        let bucket = self.bucket(key);
        if self.heads[bucket] == block.0 {
            self.heads[bucket] = next;
        } else {
            let mut before = self.heads[bucket];
            while self.entries[before as usize].next != block.0 {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
        }
        self.entries[block.0 as usize].node = Node::ROOT;
    }

    fn bucket(&self, key: u64) -> usize {
        key as usize & (self.heads.len() - 1)
    }

    fn holds(&self, block: u32, link: &Link<'_>) -> bool {
        let entry = &self.entries[block as usize];
        let start = block as usize * self.block_tokens;
        entry.parent == link.parent
            && (link.parent != Node::ROOT || *entry.salt == *link.salt)
            && self.tokens[start..start + self.block_tokens] == *link.tokens
    }
}

/// Appends the keys of all full blocks of `tokens` that `keys` lacks.
pub(crate) fn extend_keys(
    keys: &mut Vec<u64>,
    salt: &[u64],
    tokens: &[TokenId],
    block_tokens: u32,
) {
    for block in tokens.chunks_exact(block_tokens as usize).skip(keys.len()) {
        let parent = match keys.last() {
            Some(&key) => key,
            None => salt
                .iter()
                .fold(salt.len() as u64, |key, &word| mix(key, word)),
        };
        keys.push(
            block
                .iter()
                .fold(parent, |key, token| mix(key, u64::from(token.0))),
        );
    }
}

/// One round of a multiply-and-fold hash; the constants are the golden ratio and an odd prime.
fn mix(key: u64, word: u64) -> u64 {
    let a = key ^ 0x9e37_79b9_7f4a_7c15;
    let b = word.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ 0xc2b2_ae3d_27d4_eb4f;
    let product = u128::from(a) * u128::from(b);
    let folded = (product as u64) ^ ((product >> 64) as u64);
    folded.rotate_left(23) ^ b
}
