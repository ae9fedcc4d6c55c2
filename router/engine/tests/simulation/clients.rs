//! Clients: each sends a request, reads or leaves, and compares what it gets with the undisturbed answer.

use std::time::Duration;

use futures_util::{StreamExt, future::join_all};
use penstock_engine::{Engine, TokenStream};
use penstock_request::{
    deadline::Deadline,
    tenant::Caller,
    types::{Candidate, End, EngineRequest, SubmitError},
};
use tokio::time::{Instant, sleep, timeout};

use crate::random::Random;
use crate::requests::ANSWERS;
use crate::world::World;

/// What a client got of one choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// Tokens with their logprobs.
    tokens: Vec<(u32, f32)>,
    top: Vec<Vec<(u32, f32)>>,
    prompt: Vec<(f32, u32)>,
    end: Option<End>,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Stays,
    /// Waits this many milliseconds before it reads the next event.
    ReadsSlowly(u64),
    /// Drops its submission after this many milliseconds, accepted or not.
    Withdraws(u64),
    /// Drops its choices one after the other, each after this many events.
    Leaves(u32),
    /// Wants the answer within this many milliseconds.
    HasDeadline(u64),
}

/// How a request ended for its client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fate {
    /// With the answer of an undisturbed engine.
    Served,
    /// The client was gone first.
    Gone,
    /// At its deadline.
    Late,
    Refused(SubmitError),
    Failed(String),
}

/// One client of an episode.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Its number in the episode.
    pub(crate) name: u32,
    /// Its request's number; `None`: poison.
    pub(crate) number: Option<u32>,
    pub(crate) request: EngineRequest,
    pub(crate) behaviour: Behaviour,
    /// Milliseconds until it sends the request.
    pub(crate) arrives: u64,
}

impl Behaviour {
    pub(crate) fn pick(random: &mut Random) -> Self {
        match random.within(0, 11) {
            0 => Self::Withdraws(random.within(0, 60).into()),
            1 => Self::Leaves(random.within(0, 6)),
            2 => Self::HasDeadline(random.within(1, 400).into()),
            3 | 4 => Self::ReadsSlowly(random.within(1, 200).into()),
            _ => Self::Stays,
        }
    }
}

impl Answer {
    /// Whether this is the beginning of `whole`.
    fn begins(&self, whole: &Self) -> bool {
        whole.tokens.starts_with(&self.tokens)
            && whole.top.starts_with(&self.top)
            && whole.prompt.starts_with(&self.prompt)
    }
}

fn pairs(candidates: &[Candidate]) -> Vec<(u32, f32)> {
    let pair = |candidate: &Candidate| (candidate.id, candidate.logprob);
    candidates.iter().map(pair).collect()
}

/// Returns all that a stream brings.
pub(crate) async fn collect(stream: TokenStream) -> Answer {
    read(stream, u32::MAX, Duration::ZERO, |_| ()).await
}

/// Reads `events` events of a stream, or all, with a pause after each.
async fn read(
    mut stream: TokenStream,
    events: u32,
    pause: Duration,
    mut on_tokens: impl FnMut(usize),
) -> Answer {
    let mut got = Answer::default();
    for _ in 0..events {
        let Some(event) = stream.next().await else {
            break;
        };
        assert_eq!(got.end, None, "an event after the end");
        on_tokens(event.tokens.len());
        let tokens = event.tokens.iter().map(|token| (token.id, token.logprob));
        got.tokens.extend(tokens);
        if let Some(logprobs) = event.logprobs {
            let prompt = logprobs
                .prompt
                .iter()
                .map(|token| (token.logprob, token.rank));
            got.prompt.extend(prompt);
            got.top
                .extend(logprobs.top_logprobs.iter().map(|top| pairs(top)));
        }
        got.end = event.end;
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    assert!(
        events < u32::MAX || got.end.is_some(),
        "a stream ends with an end"
    );
    got
}

impl Client {
    /// Sends the request and does what this client does.
    pub(crate) async fn run(self, engine: &Engine, world: &World) -> Fate {
        sleep(Duration::from_millis(self.arrives)).await;
        world.opened(self.name, self.visible_choices());
        let flow = Some(format!("{}", self.name % 3).into());
        let caller = Caller {
            flow,
            ..Caller::default()
        };
        let fate = caller.scope(self.served(engine, world)).await;
        world.closed(self.name, &fate);
        fate
    }

    /// Returns how many choices show that the request gets on; `None`: none does.
    fn visible_choices(&self) -> Option<u32> {
        match (self.number, self.behaviour) {
            (None, _) => Some(0),
            // It may read now what it was sent before a loss.
            (_, Behaviour::ReadsSlowly(_)) => None,
            _ if self.request.beam.is_some() => None,
            _ => Some(self.request.choices),
        }
    }

    async fn served(&self, engine: &Engine, world: &World) -> Fate {
        let within = |milliseconds| Duration::from_millis(milliseconds);
        let submission = engine.submit_all(self.request.clone());
        let (streams, deadline) = match self.behaviour {
            Behaviour::Withdraws(after) => {
                // Dropped at any stage.
                drop(timeout(within(after), submission).await);
                return Fate::Gone;
            }
            Behaviour::HasDeadline(after) => {
                let deadline = Deadline {
                    at: (Instant::now() + within(after)).into_std(),
                    timeout: within(after),
                };
                let streams = Deadline::scope(Some(deadline), submission).await;
                (streams, Some(Instant::from_std(deadline.at)))
            }
            _ => (submission.await, None),
        };
        let streams = match streams {
            Ok(streams) => streams,
            Err(SubmitError::DeadlinePassed { .. }) => return world.late(deadline),
            Err(error) => return Fate::Refused(error),
        };
        let (events, pause) = match self.behaviour {
            Behaviour::Leaves(events) => (events, 0),
            Behaviour::ReadsSlowly(pause) => (u32::MAX, pause),
            _ => (u32::MAX, 0),
        };
        let reads = streams.into_iter().map(|stream| {
            let on_tokens = |count| world.got_tokens(self.name, count);
            read(stream, events, within(pause), on_tokens)
        });
        let answers = join_all(reads).await;
        self.judge(&answers, deadline, world)
    }

    /// Compares the answers with those of the undisturbed engine.
    fn judge(&self, answers: &[Answer], deadline: Option<Instant>, world: &World) -> Fate {
        let whole = self.number.map(|number| &ANSWERS[number as usize]);
        let (mut fate, mut ends) = (Fate::Served, 0);
        for (choice, got) in answers.iter().enumerate() {
            if let Some(whole) = whole {
                let whole = &whole[choice];
                assert!(got.begins(whole), "{self:?}: {got:?} instead of {whole:?}");
            }
            match &got.end {
                Some(End::Failed(why)) => fate = Fate::Failed(why.clone()),
                Some(End::DeadlinePassed(_)) => fate = world.late(deadline),
                None => fate = Fate::Gone,
                end => {
                    ends += 1;
                    if let Some(whole) = whole {
                        assert_eq!(got, &whole[choice], "{self:?}: {end:?}");
                    }
                }
            }
        }
        // A client that leaves after some events may have got all.
        if ends == answers.len() {
            Fate::Served
        } else {
            fate
        }
    }
}
