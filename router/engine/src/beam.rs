//! Beam search: chooses which hypotheses of a request continue, and with which tokens.
//!
//! Produces the results of `transformers`' `generate(num_beams=width)`, with its rules: scores are
//! sums of float32 logprobs. Among the best `width` continuations, those that end become finished
//! hypotheses, ranked by score / length^length_penalty. The best `width` that do not end continue.

use penstock_scheduler::ids::{SequenceId, TokenId};

use super::token_tree::{Node, TokenTree};
use penstock_request::types::{
    BeamParameters, Candidate, EarlyStopping, End, EngineRequest, Stopping, Token,
};

/// The beam search of one request.
pub(super) struct BeamSearch {
    beam: BeamParameters,
    /// Top logprobs per token that the client gets.
    top_logprobs: u32,
    stopping: Stopping,
    /// Tokens of all hypotheses.
    token_tree: TokenTree,
    /// Running hypotheses, all of the same length.
    hypotheses: Vec<Hypothesis>,
    /// Tokens of each running hypothesis.
    length: u32,
    /// Finished hypotheses, at most `width`, best first.
    answers: Vec<FinishedHypothesis>,
    /// Whether `take` is under way: after a panic, the search is half changed.
    taking: bool,
}

/// A running hypothesis.
struct Hypothesis {
    sequence: SequenceId,
    /// Index of its last token; `None` before the first.
    last: Option<usize>,
    /// Sum of its tokens' logprobs.
    score: f32,
    /// Candidates for its next token, once its step has returned them.
    next: Option<Vec<Candidate>>,
    /// Index of its recorded top logprobs.
    top_logprobs: Option<usize>,
}

/// A finished hypothesis.
struct FinishedHypothesis {
    /// Index of its last token.
    last: usize,
    end: End,
    /// Its length-penalised score.
    rating: f32,
}

/// A finished hypothesis with its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BeamOutput {
    pub(super) tokens: Vec<Token>,
    /// Top logprobs of each token; empty if not requested.
    pub(super) top_logprobs: Vec<Vec<Candidate>>,
    pub(super) end: End,
}

/// A hypothesis extended by one token.
#[derive(Clone, Copy, Debug)]
struct Continuation {
    line: usize,
    token: Token,
    score: f32,
}

impl BeamSearch {
    /// Creates the search of a request whose first sequence is `sequence`; `None` without beam
    /// search.
    pub(super) fn new(request: &EngineRequest, sequence: SequenceId) -> Option<Self> {
        let first = Hypothesis {
            sequence,
            last: None,
            score: 0.0,
            next: None,
            top_logprobs: None,
        };
        Some(Self {
            beam: request.beam?,
            top_logprobs: request.sampling.top_logprobs,
            stopping: request.stopping.clone(),
            token_tree: TokenTree::default(),
            hypotheses: vec![first],
            length: 0,
            answers: Vec::new(),
            taking: false,
        })
    }

    /// Returns the sequences of the running hypotheses with their tokens, for a scheduler that does
    /// not know them. Their next tokens are computed again. `None` if the search is half changed.
    pub(super) fn restart(&mut self) -> Option<Vec<(SequenceId, Vec<u32>)>> {
        if self.taking {
            return None;
        }
        let (tree, hypotheses) = (&self.token_tree, &mut self.hypotheses);
        let sequences = hypotheses.iter_mut().map(|line| {
            line.next = None;
            let tokens = line.last.map_or_else(Vec::new, |last| tree.path_to(last).0);
            (line.sequence, tokens.iter().map(|token| token.id).collect())
        });
        Some(sequences.collect())
    }

    /// Takes the candidates for a sequence's next token. Once all sequences have theirs, calls
    /// `steer` for each with the tokens with which it continues. `steer` returns the ids of the
    /// forks, which take the second and later tokens. Returns the results once the search is over.
    pub(super) fn take(
        &mut self,
        sequence: SequenceId,
        next: Vec<Candidate>,
        steer: impl FnMut(SequenceId, &[TokenId]) -> Vec<SequenceId>,
    ) -> Option<Vec<BeamOutput>> {
        if let Some(line) = self.hypotheses.iter_mut().find(|l| l.sequence == sequence) {
            line.next = Some(next);
        }
        if self.hypotheses.iter().any(|line| line.next.is_none()) {
            return None;
        }
        self.taking = true;
        self.length += 1;
        self.record_top_logprobs();
        let best = self.best();
        let going = self.select(&best);
        if self.is_over(&going) {
            return Some(self.answers.iter().map(|a| self.found(a)).collect());
        }
        self.advance(&going, steer);
        self.taking = false;
        None
    }

    /// Records the top logprobs of this step.
    fn record_top_logprobs(&mut self) {
        let count = self.top_logprobs as usize;
        for line in self.hypotheses.iter_mut().filter(|_| count > 0) {
            let next = line.next.iter().flatten().take(count);
            line.top_logprobs = Some(self.token_tree.add_top_logprobs(next.copied().collect()));
        }
    }

    /// Returns the continuations of all hypotheses, best first.
    fn best(&self) -> Vec<Continuation> {
        let mut all = Vec::new();
        for (line, Hypothesis { score, next, .. }) in self.hypotheses.iter().enumerate() {
            let possible = next.iter().flatten().filter(|c| c.logprob.is_finite());
            all.extend(possible.map(|&Candidate { id, logprob }| Continuation {
                line,
                token: Token { id, logprob },
                score: score + logprob,
            }));
        }
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all
    }

    /// Stores the hypotheses of `best` that finish; returns those that continue.
    fn select(&mut self, best: &[Continuation]) -> Vec<Continuation> {
        let width = self.beam.width as usize;
        let mut going = Vec::with_capacity(width);
        for (rank, continuation) in best.iter().enumerate() {
            match self.end(continuation) {
                None if going.len() < width => going.push(*continuation),
                Some(end) if rank < width => {
                    let answer = FinishedHypothesis {
                        last: self.add(continuation),
                        end,
                        rating: self.rated(continuation.score, self.length),
                    };
                    self.answers.push(answer);
                }
                None | Some(_) => {}
            }
        }
        self.answers.sort_by(|a, b| b.rating.total_cmp(&a.rating));
        self.answers.truncate(width);
        going
    }

    fn end(&self, continuation: &Continuation) -> Option<End> {
        if self
            .stopping
            .stop_token_ids
            .contains(&continuation.token.id)
        {
            return Some(End::StopToken);
        }
        (self.length >= self.stopping.max_new_tokens).then_some(End::Length)
    }

    fn add(&mut self, continuation: &Continuation) -> usize {
        let line = &self.hypotheses[continuation.line];
        self.token_tree.add(Node {
            before: line.last,
            token: continuation.token,
            top_logprobs: line.top_logprobs,
        })
    }

    fn found(&self, answer: &FinishedHypothesis) -> BeamOutput {
        let (tokens, top_logprobs) = self.token_tree.path_to(answer.last);
        BeamOutput {
            tokens,
            top_logprobs,
            end: answer.end.clone(),
        }
    }

    fn rated(&self, score: f32, length: u32) -> f32 {
        score / f64::from(length).powf(self.beam.length_penalty.into()) as f32
    }

    /// Whether no running hypothesis can still improve the results.
    fn is_over(&self, going: &[Continuation]) -> bool {
        let full = self.answers.len() == self.beam.width as usize;
        let Some(best) = going.first() else {
            return true;
        };
        let Some(worst) = self.answers.last().filter(|_| full) else {
            return false;
        };
        let hoped_length = match self.beam.early_stopping {
            EarlyStopping::WhenFull => return true,
            EarlyStopping::Never if self.beam.length_penalty > 0.0 => self.stopping.max_new_tokens,
            EarlyStopping::Never | EarlyStopping::Heuristic => self.length,
        };
        self.rated(best.score, hoped_length) <= worst.rating
    }

    fn advance(
        &mut self,
        going: &[Continuation],
        mut steer: impl FnMut(SequenceId, &[TokenId]) -> Vec<SequenceId>,
    ) {
        let mut plans: Vec<(usize, Vec<&Continuation>)> = (0..self.hypotheses.len())
            .map(|line| (line, going.iter().filter(|c| c.line == line).collect()))
            .collect();
        // Sequences that end first free their blocks for forks of the others.
        plans.sort_by_key(|(_, taken)| !taken.is_empty());
        let mut hypotheses = Vec::with_capacity(going.len());
        for (line, taken) in plans {
            let sequence = self.hypotheses[line].sequence;
            let ids: Vec<_> = taken.iter().map(|c| TokenId(c.token.id)).collect();
            let forks = steer(sequence, &ids);
            let sequences = std::iter::once(sequence).chain(forks);
            for (sequence, continuation) in sequences.zip(taken) {
                hypotheses.push(Hypothesis {
                    sequence,
                    last: Some(self.add(continuation)),
                    score: continuation.score,
                    next: None,
                    top_logprobs: None,
                });
            }
        }
        // Ties in the next step are broken by this order of hypotheses: by score.
        hypotheses.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.hypotheses = hypotheses;
        let hypotheses = self
            .hypotheses
            .iter_mut()
            .filter_map(|line| line.last.as_mut());
        let answers = self.answers.iter_mut().map(|answer| &mut answer.last);
        self.token_tree.prune_to(hypotheses.chain(answers));
    }
}

#[cfg(test)]
#[path = "beam_tests.rs"]
mod tests;
