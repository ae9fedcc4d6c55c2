//! The stream of a choice's tokens.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use penstock_scheduler::ids::SequenceId;
use tokio::sync::mpsc;

use super::{
    event_router::{EventRouter, EventSender, Inbox},
    task::Command,
    types::{Entry, TokenEvent},
};

/// The tokens of one choice of a request. Yields an event whenever tokens have arrived, and ends
/// after the event with `end` set. Dropping it earlier aborts the choice immediately, at any stage.
///
/// Unread tokens accumulate in a single event, which holds at most `max_new_tokens` tokens.
#[derive(Debug)]
pub struct TokenStream {
    id: SequenceId,
    inbox: Arc<Inbox>,
    event_router: EventRouter,
    commands: mpsc::UnboundedSender<Command>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The engine sends no more events and needs no command on drop.
    Ended,
}

impl TokenStream {
    pub(super) fn new(
        id: SequenceId,
        event_router: EventRouter,
        commands: mpsc::UnboundedSender<Command>,
    ) -> (EventSender, Self) {
        let (event_sender, inbox) = event_router.stream(id);
        let stream = Self {
            id,
            inbox,
            event_router,
            commands,
            state: State::Running,
        };
        (event_sender, stream)
    }

    /// Ends the choice because its output is complete (a stop string was found), as dropping it
    /// does: its computed blocks may serve later requests in both cases.
    pub fn finish(self) {}

    /// Returns the first entry into a slot; `None` while the sequence waits.
    pub fn entered(&self) -> Option<Entry> {
        self.inbox.entered()
    }

    pub(super) fn disarm(&mut self) {
        self.state = State::Ended;
    }
}

impl Stream for TokenStream {
    type Item = TokenEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<TokenEvent>> {
        if self.state == State::Ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.inbox.poll(cx));
        if event.end.is_some() {
            self.state = State::Ended;
        }
        Poll::Ready(Some(event))
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.event_router.close(self.id);
        if self.state == State::Running {
            // A stopped engine has no requests left to end.
            let _ = self.commands.send(Command::Abort(self.id));
        }
    }
}
