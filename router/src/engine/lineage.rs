//! What the lines of a beam search are made of: tokens that lines share as long as they went together.
//!
//! Most tokens that ever went on lead nowhere soon. They are forgotten whenever there are twice as many
//! as were left the last time, so a search holds about what its lines and answers consist of.

use super::types::{Candidate, Token};

/// Fewer tokens are not worth looking through.
const LEAST: usize = 1024;

/// Tokens, and what might have been in their places; those before others have smaller places.
#[derive(Default)]
pub(super) struct Lineage {
    nodes: Vec<Node>,
    tops: Vec<Vec<Candidate>>,
    /// How many nodes the last look left.
    left: usize,
}

/// A token, and what is before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Place of the token before; none before the first.
    pub(super) before: Option<usize>,
    pub(super) token: Token,
    /// Place of its alternatives, if they are told.
    pub(super) tops: Option<usize>,
}

impl Lineage {
    /// Its place, until `forget_all_but`.
    pub(super) fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Their place, for the nodes that are added before `forget_all_but`.
    pub(super) fn add_tops(&mut self, tops: Vec<Candidate>) -> usize {
        self.tops.push(tops);
        self.tops.len() - 1
    }

    /// All tokens up to the one at `last`, and the alternatives of those that have any.
    pub(super) fn of(&self, last: usize) -> (Vec<Token>, Vec<Vec<Candidate>>) {
        let node = |place: usize| self.nodes[place];
        let before = |place: &usize| node(*place).before;
        let mut line: Vec<Node> = std::iter::successors(Some(last), before)
            .map(node)
            .collect();
        line.reverse();
        let tops = line.iter().filter_map(|node| node.tops);
        (
            line.iter().map(|node| node.token).collect(),
            tops.map(|place| self.tops[place].clone()).collect(),
        )
    }

    /// Forgets what leads to none of `lasts`, if that may be much, and renews those places.
    pub(super) fn forget_all_but<'a>(&mut self, lasts: impl Iterator<Item = &'a mut usize>) {
        if self.nodes.len() < LEAST.max(2 * self.left) {
            return;
        }
        let lasts: Vec<_> = lasts.collect();
        let mut kept = vec![false; self.nodes.len()];
        for last in &lasts {
            kept[**last] = true;
        }
        for (place, node) in self.nodes.iter().enumerate().rev() {
            if let Some(before) = node.before.filter(|_| kept[place]) {
                kept[before] = true;
            }
        }
        let places = self.keep(&kept);
        for last in lasts {
            *last = places[*last];
        }
        self.left = self.nodes.len();
    }

    /// Keeps some nodes and their alternatives; the new places of those.
    fn keep(&mut self, kept: &[bool]) -> Vec<usize> {
        let mut places = vec![0; self.nodes.len()];
        let mut tops_places = vec![None; self.tops.len()];
        let (mut nodes, mut tops) = (Vec::new(), Vec::new());
        for (place, node) in self.nodes.iter().enumerate().filter(|(at, _)| kept[*at]) {
            places[place] = nodes.len();
            let own = node.tops.map(|old| {
                *tops_places[old].get_or_insert_with(|| {
                    tops.push(std::mem::take(&mut self.tops[old]));
                    tops.len() - 1
                })
            });
            nodes.push(Node {
                before: node.before.map(|before| places[before]),
                token: node.token,
                tops: own,
            });
        }
        (self.nodes, self.tops) = (nodes, tops);
        places
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len().max(self.tops.len())
    }
}
