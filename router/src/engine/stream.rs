//! A request's tokens on their way out.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use penstock_scheduler::ids::RequestId;
use tokio::sync::mpsc;

use super::{
    task::Command,
    types::{End, TokenEvent, Tokens},
};

/// The tokens of one request, an event per step that brought some; ends after the event with
/// `end` set. Dropping it before that aborts the request at once, wherever it stands.
///
/// Its queue holds at most `max_new_tokens` events, because each but the last carries a token.
#[derive(Debug)]
pub struct TokenStream {
    id: RequestId,
    events: mpsc::UnboundedReceiver<TokenEvent>,
    commands: mpsc::UnboundedSender<Command>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The engine has nothing more to say, and need not be told of the drop.
    Ended,
}

impl TokenStream {
    pub(super) fn new(
        id: RequestId,
        commands: mpsc::UnboundedSender<Command>,
    ) -> (mpsc::UnboundedSender<TokenEvent>, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        (
            sender,
            Self {
                id,
                events,
                commands,
                state: State::Running,
            },
        )
    }

    /// The request's id, for logs and traces.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Ends the request because the answer is complete (a stop string was found): not an abort,
    /// what it has computed may serve later requests.
    pub fn finish(mut self) {
        self.close(Command::Finish(self.id));
    }

    pub(super) fn disarm(&mut self) {
        self.state = State::Ended;
    }

    fn close(&mut self, command: Command) {
        if self.state == State::Running {
            self.state = State::Ended;
            // A stopped engine has no requests left to end.
            let _ = self.commands.send(command);
        }
    }
}

impl Stream for TokenStream {
    type Item = TokenEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<TokenEvent>> {
        if self.state == State::Ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(cx)).unwrap_or_else(engine_gone);
        if event.end.is_some() {
            self.state = State::Ended;
        }
        Poll::Ready(Some(event))
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.close(Command::Abort(self.id));
    }
}

/// The engine's task ends every request that it knows; this is for the case that it died.
fn engine_gone() -> TokenEvent {
    let end = End::Failed("the engine stopped while the request ran".into());
    TokenEvent {
        tokens: Tokens::new(),
        end: Some(end),
    }
}
