//! Masks computed in the background.
//!
//! A mask is started when a sequence's last token is known, and used when it is ready. A step may
//! wait for masks for a while and continue without the late ones: their sequences skip the step.
//! The contents of a mask do not depend on when it is computed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::mask_threads::{self, Pace};

/// From this duration on a mask is slow; the next ones of its grammar go to the slow pool.
const SLOW: Duration = Duration::from_millis(2);
/// Below this duration the grammar is no longer slow.
const QUICK: Duration = Duration::from_micros(500);

/// Notifies a waiting step that a mask is ready.
static MASK_READY: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// A source of masks: the matcher of a sequence.
pub(super) trait MaskSource: Send + Sync + 'static {
    /// Writes the mask of the next token. Returns whether the token budget forbids tokens that the
    /// grammar allows. Fails with the reason if the grammar cannot continue; the row then allows
    /// every token.
    fn fill(&self, row: &mut [u32]) -> Result<bool, String>;

    /// Returns the flag of whether the grammar's masks are slow.
    fn slow(&self) -> &AtomicBool;
}

/// A computed mask.
#[derive(Clone)]
pub(super) struct ReadyMask {
    pub(super) row: Vec<u32>,
    pub(super) outcome: Result<bool, String>,
}

/// The mask of one sequence's next token.
#[derive(Default)]
pub(super) struct NextMask(Mutex<State>);

#[derive(Default)]
struct State {
    /// Tokens taken. A mask started before the last one is discarded.
    taken: u64,
    mask: Progress,
}

#[derive(Default)]
enum Progress {
    #[default]
    None,
    Running,
    Ready(ReadyMask),
}

impl NextMask {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discards the mask after a token was taken.
    pub(super) fn invalidate(&self) {
        let mut state = self.lock();
        state.taken += 1;
        state.mask = Progress::None;
    }

    /// Returns the mask if it is ready.
    pub(super) fn ready(&self) -> Option<ReadyMask> {
        match &self.lock().mask {
            Progress::Ready(made) => Some(made.clone()),
            Progress::None | Progress::Running => None,
        }
    }

    fn pending(&self) -> bool {
        matches!(self.lock().mask, Progress::Running)
    }

    /// Marks the mask as running and returns the number of tokens taken; None if it is running or
    /// ready.
    fn begin(&self) -> Option<u64> {
        let mut state = self.lock();
        let new = matches!(state.mask, Progress::None);
        if new {
            state.mask = Progress::Running;
        }
        new.then_some(state.taken)
    }

    fn end(&self, taken: u64, made: ReadyMask) {
        let mut state = self.lock();
        if state.taken == taken {
            state.mask = Progress::Ready(made);
        }
    }
}

/// Starts a mask of `words` 32-bit words unless it is running or ready. `next_mask` returns the
/// mask slot of `filler`.
pub(super) fn begin<T: MaskSource>(filler: &Arc<T>, next_mask: fn(&T) -> &NextMask, words: usize) {
    let Some(taken) = next_mask(filler).begin() else {
        return;
    };
    let slow = filler.slow().load(Ordering::Relaxed);
    let filler = Arc::clone(filler);
    let pace = if slow { Pace::Slow } else { Pace::Quick };
    mask_threads::spawn(pace, move || {
        let mut row = vec![0; words];
        let began = Instant::now();
        let filled = catch_unwind(AssertUnwindSafe(|| filler.fill(&mut row)));
        let outcome = filled.unwrap_or_else(|_| {
            row.fill(u32::MAX);
            Err("the grammar cannot continue: its mask cannot be computed".to_owned())
        });
        match began.elapsed() {
            took if took >= SLOW => filler.slow().store(true, Ordering::Relaxed),
            took if took < QUICK => filler.slow().store(false, Ordering::Relaxed),
            _ => {}
        }
        next_mask(&filler).end(taken, ReadyMask { row, outcome });
        drop(MASK_READY.0.lock().unwrap_or_else(PoisonError::into_inner));
        MASK_READY.1.notify_all();
    });
}

/// Waits up to `longest` until none of these masks is running. Returns whether none is.
pub(super) fn wait(masks: &[&NextMask], longest: Option<Duration>) -> bool {
    let until = longest.map(|longest| Instant::now() + longest);
    let mut news = MASK_READY.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if !masks.iter().any(|mask| mask.pending()) {
            return true;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        news = match left {
            Some(Duration::ZERO) => return false,
            Some(left) => match MASK_READY.1.wait_timeout(news, left) {
                Ok((news, _)) => news,
                Err(poisoned) => poisoned.into_inner().0,
            },
            None => MASK_READY
                .1
                .wait(news)
                .unwrap_or_else(PoisonError::into_inner),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A source that fills its mask when it gets a message.
    struct Gate {
        next_mask: NextMask,
        slow: AtomicBool,
        open: Mutex<Receiver<Result<bool, String>>>,
    }

    impl MaskSource for Gate {
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
            next_mask: NextMask::default(),
            slow: AtomicBool::new(false),
            open: Mutex::new(receiver),
        };
        (Arc::new(gate), sender)
    }

    #[test]
    fn late_mask_is_ready_for_a_later_step() {
        let (held, open) = gate();
        begin(&held, |gate| &gate.next_mask, 2);
        let all = [&held.next_mask];
        assert!(!wait(&all, Some(Duration::ZERO)));
        assert!(held.next_mask.ready().is_none());
        begin(&held, |gate| &gate.next_mask, 2); // has no effect
        open.send(Ok(true)).unwrap();
        assert!(wait(&all, None));
        let made = held.next_mask.ready().unwrap();
        assert_eq!((made.row, made.outcome), (vec![7, 7], Ok(true)));
        held.next_mask.invalidate();
        assert!(held.next_mask.ready().is_none());
    }

    #[test]
    fn mask_computed_before_a_token_is_discarded() {
        let (held, open) = gate();
        begin(&held, |gate| &gate.next_mask, 1);
        held.next_mask.invalidate();
        begin(&held, |gate| &gate.next_mask, 1);
        open.send(Err("old".to_owned())).unwrap();
        open.send(Ok(false)).unwrap();
        assert!(wait(&[&held.next_mask], None));
        let outcomes = [Ok(false), Err("old".to_owned())];
        assert!(outcomes.contains(&held.next_mask.ready().unwrap().outcome));
    }

    #[test]
    fn panicking_mask_allows_every_token() {
        let (held, open) = gate();
        drop(open);
        begin(&held, |gate| &gate.next_mask, 1);
        assert!(wait(&[&held.next_mask], None));
        let made = held.next_mask.ready().unwrap();
        assert_eq!(made.row, [u32::MAX]);
        assert!(made.outcome.is_err());
    }

    #[test]
    fn slow_masks_do_not_hold_up_quick_ones() {
        let (held, open): (Vec<_>, Vec<_>) = (0..32).map(|_| gate()).unzip();
        for gate in &held {
            gate.slow.store(true, Ordering::Relaxed);
            begin(gate, |gate| &gate.next_mask, 1);
        }
        let (quick, let_go) = gate();
        begin(&quick, |gate| &gate.next_mask, 1);
        let_go.send(Ok(false)).unwrap();
        assert!(wait(&[&quick.next_mask], None));
        let slow: Vec<&NextMask> = held.iter().map(|gate| &gate.next_mask).collect();
        assert!(!wait(&slow, Some(Duration::ZERO)));
        for open in open {
            open.send(Ok(false)).unwrap();
        }
        assert!(wait(&slow, None));
    }
}
