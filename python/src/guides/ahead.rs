//! Masks that are made on threads of their own, beside the step that needs them.
//!
//! A mask is begun when a sequence's last token is known, and taken when it is there. A step may
//! wait for masks for some time and go on without those that are late: their sequences sit the step
//! out. What a mask allows does not depend on when it is made.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::threads::{self, Pace};

/// From this on a mask is slow; the next ones of its guide are made by threads for such masks.
const SLOW: Duration = Duration::from_millis(2);
/// Below this it is not slow any more.
const QUICK: Duration = Duration::from_micros(500);

/// Tells a step that waits that a mask has been made.
static MADE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// What fills masks: where a sequence is in its guide.
pub(super) trait Fill: Send + Sync + 'static {
    /// Writes the mask of the next token; whether the tokens left forbid what the guide alone would
    /// allow. The error says why the guide cannot go on: then everything is allowed.
    fn fill(&self, row: &mut [u32]) -> Result<bool, String>;

    /// Whether masks of the guide have been slow.
    fn slow(&self) -> &AtomicBool;
}

/// A mask that has been made.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) row: Vec<u32>,
    pub(super) outcome: Result<bool, String>,
}

/// The mask of one sequence's next token.
#[derive(Default)]
pub(super) struct Ahead(Mutex<State>);

#[derive(Default)]
struct State {
    /// Tokens taken: a mask that was begun before the last one is dropped.
    taken: u64,
    mask: Mask,
}

#[derive(Default)]
enum Mask {
    #[default]
    None,
    Begun,
    Made(Made),
}

impl Ahead {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token was taken: the next mask is another one.
    pub(super) fn pass(&self) {
        let mut state = self.lock();
        state.taken += 1;
        state.mask = Mask::None;
    }

    /// The mask, if it is there.
    pub(super) fn made(&self) -> Option<Made> {
        match &self.lock().mask {
            Mask::Made(made) => Some(made.clone()),
            Mask::None | Mask::Begun => None,
        }
    }

    fn pending(&self) -> bool {
        matches!(self.lock().mask, Mask::Begun)
    }

    /// Marks the mask as begun, unless it is begun or there; tokens taken until then.
    fn begin(&self) -> Option<u64> {
        let mut state = self.lock();
        let new = matches!(state.mask, Mask::None);
        if new {
            state.mask = Mask::Begun;
        }
        new.then_some(state.taken)
    }

    fn end(&self, taken: u64, made: Made) {
        let mut state = self.lock();
        if state.taken == taken {
            state.mask = Mask::Made(made);
        }
    }
}

/// Begins a mask of so many words, unless it is begun or there. `ahead` gives its place in what
/// fills it.
pub(super) fn begin<T: Fill>(filler: &Arc<T>, ahead: fn(&T) -> &Ahead, words: usize) {
    let Some(taken) = ahead(filler).begin() else {
        return;
    };
    let slow = filler.slow().load(Ordering::Relaxed);
    let filler = Arc::clone(filler);
    let pace = if slow { Pace::Slow } else { Pace::Quick };
    threads::spawn(pace, move || {
        let mut row = vec![0; words];
        let began = Instant::now();
        let filled = catch_unwind(AssertUnwindSafe(|| filler.fill(&mut row)));
        let outcome = filled.unwrap_or_else(|_| {
            row.fill(u32::MAX);
            Err("the guide cannot go on: its mask cannot be made".to_owned())
        });
        match began.elapsed() {
            took if took >= SLOW => filler.slow().store(true, Ordering::Relaxed),
            took if took < QUICK => filler.slow().store(false, Ordering::Relaxed),
            _ => {}
        }
        ahead(&filler).end(taken, Made { row, outcome });
        drop(MADE.0.lock().unwrap_or_else(PoisonError::into_inner));
        MADE.1.notify_all();
    });
}

/// Waits until no mask of these is under way, `longest` at most; whether that is so.
pub(super) fn wait(masks: &[&Ahead], longest: Option<Duration>) -> bool {
    let until = longest.map(|longest| Instant::now() + longest);
    let mut news = MADE.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if !masks.iter().any(|mask| mask.pending()) {
            return true;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        news = match left {
            Some(Duration::ZERO) => return false,
            Some(left) => match MADE.1.wait_timeout(news, left) {
                Ok((news, _)) => news,
                Err(poisoned) => poisoned.into_inner().0,
            },
            None => MADE.1.wait(news).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Fills a mask when it is let.
    struct Gate {
        ahead: Ahead,
        slow: AtomicBool,
        open: Mutex<Receiver<Result<bool, String>>>,
    }

    impl Fill for Gate {
        fn fill(&self, row: &mut [u32]) -> Result<bool, String> {
            let outcome = self.open.lock().unwrap().recv().unwrap();
            row.fill(7);
            outcome
        }
        fn slow(&self) -> &AtomicBool {
            &self.slow
        }
    }

    fn gate() -> (Arc<Gate>, Sender<Result<bool, String>>) {
        let (sender, receiver) = channel();
        let gate = Gate {
            ahead: Ahead::default(),
            slow: AtomicBool::new(false),
            open: Mutex::new(receiver),
        };
        (Arc::new(gate), sender)
    }

    #[test]
    fn a_late_mask_is_there_for_a_later_step() {
        let (held, open) = gate();
        begin(&held, |gate| &gate.ahead, 2);
        let all = [&held.ahead];
        assert!(!wait(&all, Some(Duration::ZERO)));
        assert!(held.ahead.made().is_none());
        begin(&held, |gate| &gate.ahead, 2); // it is begun once
        open.send(Ok(true)).unwrap();
        assert!(wait(&all, None));
        let made = held.ahead.made().unwrap();
        assert_eq!((made.row, made.outcome), (vec![7, 7], Ok(true)));
        held.ahead.pass();
        assert!(held.ahead.made().is_none());
    }

    #[test]
    fn a_mask_of_before_a_token_is_dropped() {
        let (held, open) = gate();
        begin(&held, |gate| &gate.ahead, 1);
        held.ahead.pass();
        begin(&held, |gate| &gate.ahead, 1);
        open.send(Err("old".to_owned())).unwrap();
        open.send(Ok(false)).unwrap();
        assert!(wait(&[&held.ahead], None));
        let outcomes = [Ok(false), Err("old".to_owned())];
        assert!(outcomes.contains(&held.ahead.made().unwrap().outcome));
    }

    #[test]
    fn a_mask_whose_maker_panics_allows_everything() {
        let (held, open) = gate();
        drop(open);
        begin(&held, |gate| &gate.ahead, 1);
        assert!(wait(&[&held.ahead], None));
        let made = held.ahead.made().unwrap();
        assert_eq!(made.row, [u32::MAX]);
        assert!(made.outcome.is_err());
    }

    #[test]
    fn slow_masks_do_not_hold_up_quick_ones() {
        let (held, open): (Vec<_>, Vec<_>) = (0..32).map(|_| gate()).unzip();
        for gate in &held {
            gate.slow.store(true, Ordering::Relaxed);
            begin(gate, |gate| &gate.ahead, 1);
        }
        let (quick, let_go) = gate();
        begin(&quick, |gate| &gate.ahead, 1);
        let_go.send(Ok(false)).unwrap();
        assert!(wait(&[&quick.ahead], None));
        let slow: Vec<&Ahead> = held.iter().map(|gate| &gate.ahead).collect();
        assert!(!wait(&slow, Some(Duration::ZERO)));
        for open in open {
            open.send(Ok(false)).unwrap();
        }
        assert!(wait(&slow, None));
    }
}
