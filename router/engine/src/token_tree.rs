//! The token histories of a beam search, as a tree: hypotheses share their common prefix.
//!
//! Most nodes soon lead to no hypothesis. They are pruned whenever the tree has twice the nodes
//! that the last pruning left, so a search holds little more than its running and finished
//! hypotheses.

use penstock_request::types::{Candidate, Token};

/// Smaller trees are not worth pruning.
const MIN_NODES_TO_PRUNE: usize = 1024;

/// Tokens and their top logprobs. A node's parent has a smaller index.
#[derive(Default)]
pub(super) struct TokenTree {
    nodes: Vec<Node>,
    top_logprobs: Vec<Vec<Candidate>>,
    /// Number of nodes after the last pruning.
    kept_nodes: usize,
}

/// A token and its parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Index of the parent; `None` for the first token.
    pub(super) before: Option<usize>,
    pub(super) token: Token,
    /// Index of its top logprobs, if requested.
    pub(super) top_logprobs: Option<usize>,
}

impl TokenTree {
    /// Adds a node and returns its index, valid until `prune_to`.
    pub(super) fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds top logprobs and returns their index, for nodes that are added before `prune_to`.
    pub(super) fn add_top_logprobs(&mut self, top_logprobs: Vec<Candidate>) -> usize {
        self.top_logprobs.push(top_logprobs);
        self.top_logprobs.len() - 1
    }

    /// Returns all tokens up to the one at `last`, and the top logprobs of those that have any.
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

    /// Removes nodes that lead to none of `lasts`, if the tree has grown enough, and updates those
    /// indices.
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

    /// Keeps the marked nodes and their top logprobs; returns the new indices.
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
