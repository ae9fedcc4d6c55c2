//! What the lines of a beam search are made of: tokens that lines share as long as they went together.
//!
//! Most tokens that ever went on lead nowhere soon. They are forgotten whenever there are twice as many
//! as were left the last time, so a search holds about what its lines and answers consist of.

use super::types::{Candidate, Token};

/// Fewer tokens are not worth looking through.
const MIN_NODES_TO_PRUNE: usize = 1024;

/// Tokens, and what might have been in their places; those before others have smaller places.
#[derive(Default)]
pub(super) struct TokenTree {
    nodes: Vec<Node>,
    top_logprobs: Vec<Vec<Candidate>>,
    /// How many nodes the last look left.
    kept_nodes: usize,
}

/// A token, and what is before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Place of the token before; none before the first.
    pub(super) before: Option<usize>,
    pub(super) token: Token,
    /// Place of its alternatives, if they are told.
    pub(super) top_logprobs: Option<usize>,
}

impl TokenTree {
    /// Its place, until `prune_to`.
    pub(super) fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Their place, for the nodes that are added before `prune_to`.
    pub(super) fn add_top_logprobs(&mut self, top_logprobs: Vec<Candidate>) -> usize {
        self.top_logprobs.push(top_logprobs);
        self.top_logprobs.len() - 1
    }

    /// All tokens up to the one at `last`, and the alternatives of those that have any.
    pub(super) fn path_to(&self, last: usize) -> (Vec<Token>, Vec<Vec<Candidate>>) {
        let node = |index: usize| self.nodes[index];
        let before = |index: &usize| node(*index).before;
        let mut line: Vec<Node> = std::iter::successors(Some(last), before)
            .map(node)
            .collect();
        line.reverse();
        let top_logprobs = line.iter().filter_map(|node| node.top_logprobs);
        (
            line.iter().map(|node| node.token).collect(),
            top_logprobs
                .map(|index| self.top_logprobs[index].clone())
                .collect(),
        )
    }

    /// Forgets what leads to none of `lasts`, if that may be much, and renews those places.
    pub(super) fn prune_to<'a>(&mut self, lasts: impl Iterator<Item = &'a mut usize>) {
        if self.nodes.len() < MIN_NODES_TO_PRUNE.max(2 * self.kept_nodes) {
            return;
        }
        let lasts: Vec<_> = lasts.collect();
        let mut kept = vec![false; self.nodes.len()];
        for last in &lasts {
            kept[**last] = true;
        }
        for (index, node) in self.nodes.iter().enumerate().rev() {
            if let Some(before) = node.before.filter(|_| kept[index]) {
                kept[before] = true;
            }
        }
        let new_indices = self.compact(&kept);
        for last in lasts {
            *last = new_indices[*last];
        }
        self.kept_nodes = self.nodes.len();
    }

    /// Keeps some nodes and their alternatives; the new places of those.
    fn compact(&mut self, kept: &[bool]) -> Vec<usize> {
        let mut new_indices = vec![0; self.nodes.len()];
        let mut new_top_logprobs = vec![None; self.top_logprobs.len()];
        let (mut nodes, mut top_logprobs) = (Vec::new(), Vec::new());
        for (index, node) in self.nodes.iter().enumerate().filter(|(at, _)| kept[*at]) {
            new_indices[index] = nodes.len();
            let own = node.top_logprobs.map(|old| {
                *new_top_logprobs[old].get_or_insert_with(|| {
                    top_logprobs.push(std::mem::take(&mut self.top_logprobs[old]));
                    top_logprobs.len() - 1
                })
            });
            nodes.push(Node {
                before: node.before.map(|before| new_indices[before]),
                token: node.token,
                top_logprobs: own,
            });
        }
        (self.nodes, self.top_logprobs) = (nodes, top_logprobs);
        new_indices
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len().max(self.top_logprobs.len())
    }
}
