//! Beam search: which sequences of a request go on, and with which tokens.
//!
//! The result is that of `transformers`' `generate(num_beams=width)`, whose rules these are: scores are
//! sums of float32 log-probabilities; of all continuations, those among the best `width` that end are
//! answers, ranked by score / length^length_penalty; the best `width` that do not end go on.

use penstock_scheduler::ids::{SequenceId, TokenId};

use super::lineage::{Lineage, Node};
use super::types::{Beam, Candidate, EarlyStopping, End, EngineRequest, Stopping, Token};

/// The beam search of one request.
pub(super) struct Search {
    beam: Beam,
    stopping: Stopping,
    /// Tokens of lines and answers.
    lineage: Lineage,
    /// Those that go on, with the same number of tokens each.
    lines: Vec<Line>,
    /// Tokens of each line.
    length: u32,
    /// At most `width`, the best first.
    answers: Vec<Answer>,
}

/// A sequence that goes on.
struct Line {
    sequence: SequenceId,
    /// Its last token; none before the first.
    last: Option<usize>,
    /// Sum of its tokens' log-probabilities.
    score: f32,
    /// What could follow, once its step has told.
    next: Option<Vec<Candidate>>,
    /// Place of what is told of that.
    tops: Option<usize>,
}

/// A complete answer.
struct Answer {
    /// Its last token.
    last: usize,
    end: End,
    /// What it is ranked by.
    rating: f32,
}

/// An answer with its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) tokens: Vec<Token>,
    /// The alternatives of each; empty if nobody asks.
    pub(super) tops: Vec<Vec<Candidate>>,
    pub(super) end: End,
}

/// One line with one more token.
#[derive(Clone, Copy, Debug)]
struct Continuation {
    line: usize,
    token: Token,
    score: f32,
}

impl Beam {
    /// Continuations of one sequence that can matter: `width` that do not end are among them.
    #[must_use]
    pub fn looked_at(&self, end_tokens: usize) -> usize {
        self.width as usize + end_tokens
    }
}

impl Search {
    /// The search of a request whose first sequence is `sequence`; none if it has none.
    pub(super) fn new(request: &EngineRequest, sequence: SequenceId) -> Option<Self> {
        let first = Line {
            sequence,
            last: None,
            score: 0.0,
            next: None,
            tops: None,
        };
        Some(Self {
            beam: request.beam?,
            stopping: request.stopping.clone(),
            lineage: Lineage::default(),
            lines: vec![first],
            length: 0,
            answers: Vec::new(),
        })
    }

    /// Takes what could follow a sequence. Once all have told, `steer` is called for each with the
    /// tokens that it goes on with, and gives the ids of the forks that take the second to the last
    /// of them. The answers, once the search is over.
    pub(super) fn take(
        &mut self,
        sequence: SequenceId,
        next: Vec<Candidate>,
        steer: impl FnMut(SequenceId, &[TokenId]) -> Vec<SequenceId>,
    ) -> Option<Vec<Found>> {
        if let Some(line) = self.lines.iter_mut().find(|l| l.sequence == sequence) {
            line.next = Some(next);
        }
        if self.lines.iter().any(|line| line.next.is_none()) {
            return None;
        }
        self.length += 1;
        self.note_tops();
        let best = self.best();
        let going = self.sort_out(&best);
        if self.is_over(&going) {
            return Some(self.answers.iter().map(|a| self.found(a)).collect());
        }
        self.go_on(&going, steer);
        None
    }

    /// Keeps what is told of this step.
    fn note_tops(&mut self) {
        let told = self.beam.told as usize;
        for line in self.lines.iter_mut().filter(|_| told > 0) {
            let next = line.next.iter().flatten().take(told);
            line.tops = Some(self.lineage.add_tops(next.copied().collect()));
        }
    }

    /// The continuations of all lines, the best first.
    fn best(&self) -> Vec<Continuation> {
        let mut all = Vec::new();
        for (line, Line { score, next, .. }) in self.lines.iter().enumerate() {
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

    /// Keeps the answers among `best`; those that go on.
    fn sort_out(&mut self, best: &[Continuation]) -> Vec<Continuation> {
        let width = self.beam.width as usize;
        let mut going = Vec::with_capacity(width);
        for (rank, continuation) in best.iter().enumerate() {
            match self.end(continuation) {
                None if going.len() < width => going.push(*continuation),
                Some(end) if rank < width => {
                    let answer = Answer {
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
        let line = &self.lines[continuation.line];
        self.lineage.add(Node {
            before: line.last,
            token: continuation.token,
            tops: line.tops,
        })
    }

    fn found(&self, answer: &Answer) -> Found {
        let (tokens, tops) = self.lineage.of(answer.last);
        Found {
            tokens,
            tops,
            end: answer.end.clone(),
        }
    }

    fn rated(&self, score: f32, length: u32) -> f32 {
        score / f64::from(length).powf(self.beam.length_penalty.into()) as f32
    }

    /// Whether no better answer is to be expected.
    fn is_over(&self, going: &[Continuation]) -> bool {
        let full = self.answers.len() == self.beam.width as usize;
        let Some(best) = going.first() else {
            return true;
        };
        let Some(worst) = self.answers.last().filter(|_| full) else {
            return false;
        };
        let hoped = match self.beam.early_stopping {
            EarlyStopping::WhenFull => return true,
            EarlyStopping::Never if self.beam.length_penalty > 0.0 => self.stopping.max_new_tokens,
            EarlyStopping::Never | EarlyStopping::Heuristic => self.length,
        };
        self.rated(best.score, hoped) <= worst.rating
    }

    fn go_on(
        &mut self,
        going: &[Continuation],
        mut steer: impl FnMut(SequenceId, &[TokenId]) -> Vec<SequenceId>,
    ) {
        let mut plans: Vec<(usize, Vec<&Continuation>)> = (0..self.lines.len())
            .map(|line| (line, going.iter().filter(|c| c.line == line).collect()))
            .collect();
        // Those that end make room for forks of the others.
        plans.sort_by_key(|(_, taken)| !taken.is_empty());
        let mut lines = Vec::with_capacity(going.len());
        for (line, taken) in plans {
            let sequence = self.lines[line].sequence;
            let ids: Vec<_> = taken.iter().map(|c| TokenId(c.token.id)).collect();
            let born = steer(sequence, &ids);
            let sequences = std::iter::once(sequence).chain(born);
            for (sequence, continuation) in sequences.zip(taken) {
                lines.push(Line {
                    sequence,
                    last: Some(self.add(continuation)),
                    score: continuation.score,
                    next: None,
                    tops: None,
                });
            }
        }
        // Equal scores are told apart by the order of lines: that of their scores.
        lines.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.lines = lines;
        let lines = self.lines.iter_mut().filter_map(|line| line.last.as_mut());
        let answers = self.answers.iter_mut().map(|answer| &mut answer.last);
        self.lineage.forget_all_but(lines.chain(answers));
    }
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::ids::RequestId;

    use super::*;
    use crate::engine::types::Sampling;

    fn id(branch: u32) -> SequenceId {
        SequenceId {
            request: RequestId(1),
            branch,
        }
    }

    fn request(beam: Beam, max_new_tokens: u32) -> EngineRequest {
        EngineRequest {
            cache_salt: Box::default(),
            prompt: vec![1],
            sampling: Sampling::default(),
            stopping: Stopping {
                max_new_tokens,
                min_new_tokens: 0,
                stop_token_ids: vec![0],
            },
            branches: 1,
            beam: Some(beam),
        }
    }

    /// The model of the test: a token's log-probability, whatever is before it.
    fn next(logprobs: &[(u32, f32)]) -> Vec<Candidate> {
        let candidate = |&(id, logprob)| Candidate { id, logprob };
        logprobs.iter().map(candidate).collect()
    }

    fn run(beam: Beam, steps: u32, model: &[(u32, f32)]) -> (Vec<Vec<u32>>, u32) {
        let mut search = Search::new(&request(beam, steps), id(0)).unwrap();
        let (mut born, mut asked) = (0, 0);
        let mut live = vec![id(0)];
        loop {
            asked += 1;
            let mut then = Vec::new();
            for sequence in std::mem::take(&mut live) {
                let found = search.take(sequence, next(model), |sequence, tokens| {
                    let others = tokens.len().saturating_sub(1) as u32;
                    let forks: Vec<_> = (born + 1..=born + others).map(id).collect();
                    born += others;
                    then.extend((!tokens.is_empty()).then_some(sequence));
                    then.extend(&forks);
                    forks
                });
                if let Some(found) = found {
                    let ids = |f: &Found| f.tokens.iter().map(|t| t.id).collect();
                    return (found.iter().map(ids).collect(), asked);
                }
            }
            live = then;
            assert!(live.len() <= beam.width as usize);
        }
    }

    const MODEL: &[(u32, f32)] = &[(5, -0.5), (6, -1.0), (0, -3.0), (7, -4.0)];

    #[test]
    fn the_best_lines_win_at_the_limit() {
        let beam = Beam {
            width: 2,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::Never,
            told: 0,
        };
        let (found, asked) = run(beam, 3, MODEL);
        assert_eq!((found[0].clone(), asked), (vec![5, 5, 5], 3));
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].iter().filter(|&&id| id == 6).count(), 1);
    }

    #[test]
    fn a_long_search_keeps_what_its_lines_are_made_of() {
        let beam = Beam {
            width: 8,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::Never,
            told: 1,
        };
        let mut search = Search::new(&request(beam, 6_000), id(0)).unwrap();
        let (mut live, mut newest) = (vec![id(0)], 0);
        for step in 0..5_000_u32 {
            let mut then = Vec::new();
            for sequence in std::mem::take(&mut live) {
                // Which line is the best one changes all the time.
                let lead = ((step * 7 + sequence.branch) % 11) as f32 / 10.0;
                let model = [(5, -0.5 - lead), (6, -1.0 - lead), (7, -4.0)];
                let found = search.take(sequence, next(&model), |sequence, tokens| {
                    let first = newest + 1;
                    newest += tokens.len().saturating_sub(1) as u32;
                    let born: Vec<_> = (first..=newest).map(id).collect();
                    then.extend((!tokens.is_empty()).then_some(sequence));
                    then.extend(&born);
                    born
                });
                assert_eq!(found, None);
            }
            live = then;
        }
        let (tokens, tops) = search.lineage.of(search.lines[0].last.unwrap());
        assert_eq!((tokens.len(), tops.len()), (5_000, 5_000));
        assert!(search.lineage.len() < 12_000, "{}", search.lineage.len());
    }

    #[test]
    fn early_stopping_ends_when_there_are_enough_answers() {
        let ends = &[(0, -0.1), (5, -2.0), (6, -3.0), (7, -4.0)];
        let beam = |early_stopping| Beam {
            width: 2,
            length_penalty: 5.0,
            early_stopping,
            told: 0,
        };
        let (found, asked) = run(beam(EarlyStopping::WhenFull), 9, ends);
        assert_eq!((found.len(), asked), (2, 2));
        // With a large penalty, longer answers may always be better.
        assert_eq!(run(beam(EarlyStopping::Never), 9, ends).1, 9);
    }
}
