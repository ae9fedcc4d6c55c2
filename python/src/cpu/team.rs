//! Helper threads for a caller that never waits for a helper without a core.
//!
//! The caller works on the job itself and takes it piece by piece, as its helpers do: it also does
//! the pieces that no helper has begun. At the end it closes the job to late helpers and waits only
//! for helpers that still run a piece: it spins for `SPIN`, then sleeps in the kernel. It never
//! yields: beside a busy process, each yield gives the core away for milliseconds. An idle helper
//! yields for `LINGER`, so other processes come first, then sleeps.
//!
//! A helper may lose its core in the middle of a piece, and the caller then waits until the helper
//! runs again. So the caller keeps an account: the time saved by helpers minus the time that they
//! cost. An overdrawn account means that other processes need the cores; the caller then works
//! alone for `REPAID` times the debt. This bounds the loss to a fixed share of the time, and
//! helpers are used again soon after the cores are free.

use std::any::Any;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::{self, Builder, Thread};
use std::time::{Duration, Instant};

use super::views::End;

/// How long the caller spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long a helper yields before it sleeps: longer than the gap between two matrices of a step,
/// so helpers stay awake within a step.
const LINGER: Duration = Duration::from_micros(50);
/// The caller works alone for this multiple of its debt.
const REPAID: u32 = 16;
/// Maximum credit: about the time that a busy process takes from a helper at once. The router's
/// threads run on the same cores; they take less time than helpers save.
const CREDIT: Duration = Duration::from_millis(4);

/// In `Team::state`: the number of helpers inside the job.
const INSIDE: u64 = (1 << 31) - 1;
/// Set while the caller sleeps until no helper is inside.
const AWAITED: u64 = 1 << 31;
/// One seat: one more helper may enter. The bits from here on count seats; a closed job has none.
const SEAT: u64 = 1 << 32;

/// A job, in the stack frame of the caller.
struct Job<'a> {
    /// Takes pieces from its end until none is left, and returns the number it took.
    work: &'a (dyn Fn(End) -> usize + Sync),
    /// The first panic of a helper.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Helpers share the job, so it must be `Sync`.
const _: fn() = || {
    fn sync<T: Sync>() {}
    sync::<Job<'static>>();
};

/// The helpers and their current job.
pub(super) struct Team {
    /// Seats, `AWAITED`, and the number of helpers inside.
    state: AtomicU64,
    /// The current job; valid for helpers inside.
    job: AtomicPtr<Job<'static>>,
    helpers: Vec<Helper>,
    /// The account; its lock admits one caller with helpers at a time.
    account: Mutex<HelpAccount>,
    /// Wakes the caller when the last helper has left.
    left: (Mutex<()>, Condvar),
}

struct Helper {
    thread: Thread,
    /// Whether the helper sleeps or is about to.
    asleep: Arc<AtomicBool>,
}

/// An account of whether helpers save time.
#[derive(Default)]
struct HelpAccount {
    credit: Duration,
    alone_until: Option<Instant>,
}

/// The timing of a call with helpers.
struct JobTiming {
    /// Time in which the caller worked on pieces.
    own: Duration,
    /// Time in which the caller woke helpers and waited for their last pieces.
    cost: Duration,
    /// Pieces done by the caller.
    taken: usize,
    /// Pieces in all.
    pieces: usize,
}

impl JobTiming {
    /// Returns the time that the caller would have needed for the helpers' pieces.
    fn saved(&self) -> Duration {
        let others = self.pieces.saturating_sub(self.taken) as u32;
        self.own * others / self.taken.max(1) as u32
    }
}

impl HelpAccount {
    /// Updates the account with a call that ended `now`.
    fn learn(&mut self, timing: &JobTiming, now: Instant) {
        let credit = (self.credit + timing.saved()).min(CREDIT + timing.cost);
        let debt = timing.cost.saturating_sub(credit);
        self.credit = credit.saturating_sub(timing.cost);
        self.alone_until = (!debt.is_zero()).then(|| now + debt * REPAID);
    }
}

impl Team {
    /// Starts up to `count` helpers, as many as the system permits.
    pub(super) fn start(count: usize) -> Arc<Self> {
        let (sender, receiver) = std::sync::mpsc::channel::<Arc<Self>>();
        let receiver = Arc::new(Mutex::new(receiver));
        let start = |index| {
            let (receiver, asleep) = (Arc::clone(&receiver), Arc::<AtomicBool>::default());
            let (name, mine) = (format!("cpu-{index}"), Arc::clone(&asleep));
            let help = move || {
                let team = receiver.lock().map(|teams| teams.recv());
                if let Ok(Ok(team)) = team {
                    team.help(&mine);
                }
            };
            let thread = Builder::new().name(name).spawn(help).ok()?;
            Some(Helper {
                thread: thread.thread().clone(),
                asleep,
            })
        };
        let team = Arc::new(Self::with_helpers((0..count).map_while(start).collect()));
        for _ in &team.helpers {
            // The helper waits for this message, or has ended.
            let _ = sender.send(Arc::clone(&team));
        }
        team
    }

    fn with_helpers(helpers: Vec<Helper>) -> Self {
        Self {
            state: AtomicU64::new(0),
            job: AtomicPtr::default(),
            helpers,
            account: Mutex::default(),
            left: Default::default(),
        }
    }

    /// Calls `work` on this thread and on up to `helpers` helpers that arrive in time. All `pieces`
    /// are done on return. If another caller has the helpers, or they recently cost more than they
    /// saved, only this thread works.
    pub(super) fn run(&self, helpers: usize, pieces: usize, work: &(dyn Fn(End) -> usize + Sync)) {
        let mut account = match self.account.try_lock() {
            Ok(account) => account,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                work(End::Front);
                return;
            }
        };
        let began = Instant::now();
        if account.alone_until.is_some_and(|until| began < until) {
            work(End::Front);
            return;
        }
        let job = Job {
            work,
            panic: Mutex::default(),
        };
        let open = OpenJob::new(self, &job, helpers);
        let opened = Instant::now();
        let taken = work(End::Front);
        let own = opened.elapsed();
        drop(open);
        let ended = Instant::now();
        let timing = JobTiming {
            own,
            cost: (ended - began).saturating_sub(own),
            taken,
            pieces,
        };
        account.learn(&timing, ended);
        let panic = job.panic.into_inner();
        if let Some(panic) = panic.unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// Runs a helper's loop.
    fn help(&self, asleep: &AtomicBool) {
        loop {
            self.work_once();
            let began = Instant::now();
            while !self.has_seat() && began.elapsed() < LINGER {
                thread::yield_now();
            }
            if self.has_seat() {
                continue;
            }
            asleep.store(true, Ordering::SeqCst);
            if !self.has_seat() {
                thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
        }
    }

    fn has_seat(&self) -> bool {
        self.state.load(Ordering::SeqCst) >= SEAT
    }

    /// Works on the job if it has a free seat.
    fn work_once(&self) {
        let enter = |state: u64| (state >= SEAT).then(|| state - SEAT + 1);
        let entered = self
            .state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter);
        if entered.is_err() {
            return;
        }
        let job = self.job.load(Ordering::SeqCst);
        // SAFETY: `OpenJob` stores the job before it adds seats, and its caller does not leave the
        // frame that holds the job while a helper is inside; this thread is inside until it
        // subtracts itself.
        let job: &Job<'_> = unsafe { &*job };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.work)(End::Back))) {
            let mut first = job.panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(panic);
        }
        let before = self.state.fetch_sub(1, Ordering::SeqCst);
        // From here on the job may be freed, but the team is not.
        if before & AWAITED != 0 && before & INSIDE == 1 {
            let _lock = self.left.0.lock().unwrap_or_else(PoisonError::into_inner);
            self.left.1.notify_all();
        }
    }
}

/// A job that helpers may enter. Dropping it closes the job and waits for the helpers inside.
struct OpenJob<'a> {
    team: &'a Team,
}

impl<'a> OpenJob<'a> {
    fn new(team: &'a Team, job: &'a Job<'_>, helpers: usize) -> Self {
        let helpers = &team.helpers[..helpers.min(team.helpers.len())];
        let job = ptr::from_ref(job).cast_mut();
        team.job.store(job.cast(), Ordering::SeqCst);
        let seats = SEAT * helpers.len() as u64;
        team.state.fetch_add(seats, Ordering::SeqCst);
        for helper in helpers {
            // `swap`, not a load first: the helper sets `asleep` before its last check for seats.
            if helper.asleep.swap(false, Ordering::SeqCst) {
                helper.thread.unpark();
            }
        }
        Self { team }
    }
}

impl Drop for OpenJob<'_> {
    fn drop(&mut self) {
        let state = &self.team.state;
        let inside = || state.load(Ordering::SeqCst) & INSIDE != 0;
        state.fetch_and(SEAT - 1, Ordering::SeqCst);
        if !inside() {
            return;
        }
        let began = Instant::now();
        while began.elapsed() < SPIN {
            if !inside() {
                return;
            }
            spin_loop();
        }
        state.fetch_or(AWAITED, Ordering::SeqCst);
        let (lock, left) = &self.team.left;
        let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        while inside() {
            guard = left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        state.fetch_and(!AWAITED, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts how often each piece is taken.
    struct Pieces {
        next: AtomicUsize,
        taken: Vec<AtomicUsize>,
    }

    impl Pieces {
        fn new(count: usize) -> Self {
            Self {
                next: AtomicUsize::new(0),
                taken: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            }
        }

        fn take(&self) -> usize {
            let mut done = 0;
            while let Some(piece) = self.taken.get(self.next.fetch_add(1, Ordering::Relaxed)) {
                piece.fetch_add(1, Ordering::Relaxed);
                done += 1;
            }
            done
        }
    }

    fn timing(own: u64, cost: u64, taken: usize) -> JobTiming {
        JobTiming {
            own: Duration::from_micros(own),
            cost: Duration::from_micros(cost),
            taken,
            pieces: 8,
        }
    }

    /// A team whose only helper never gets a core by itself.
    fn without_cores() -> Team {
        Team::with_helpers(vec![Helper {
            thread: thread::current(),
            asleep: Arc::default(),
        }])
    }

    fn wait_for(condition: impl Fn() -> bool) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < Duration::from_secs(60), "timed out");
            thread::yield_now();
        }
    }

    #[test]
    fn every_piece_is_taken_once() {
        let team = Team::start(3);
        assert_eq!(team.helpers.len(), 3);
        for round in 0..3000 {
            let pieces = Pieces::new(round % 23);
            team.run(round % 5, round % 23, &|_| pieces.take());
            assert!(
                pieces
                    .taken
                    .iter()
                    .all(|piece| piece.load(Ordering::Relaxed) == 1)
            );
            if round % 500 == 0 {
                thread::sleep(2 * SPIN); // helpers are asleep now
            }
        }
    }

    #[test]
    fn caller_does_not_wait_for_a_late_helper() {
        let team = without_cores();
        let pieces = Pieces::new(5);
        team.run(1, 5, &|_| pieces.take());
        assert!(
            pieces
                .taken
                .iter()
                .all(|piece| piece.load(Ordering::Relaxed) == 1)
        );
        let next = pieces.next.load(Ordering::Relaxed);
        team.work_once();
        assert_eq!(
            pieces.next.load(Ordering::Relaxed),
            next,
            "a late helper takes no piece"
        );
    }

    #[test]
    fn caller_sleeps_in_a_long_wait_and_then_works_alone() {
        let (team, inside) = (without_cores(), AtomicBool::new(false));
        let caller = thread::current().id();
        let work = |_| {
            if thread::current().id() == caller {
                wait_for(|| inside.load(Ordering::SeqCst));
                return 1;
            }
            inside.store(true, Ordering::SeqCst);
            wait_for(|| team.state.load(Ordering::SeqCst) & AWAITED != 0);
            thread::sleep(Duration::from_millis(50)); // far more than the helpers can have saved
            0
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_for(|| team.has_seat());
                team.work_once();
            });
            team.run(1, 1, &work);
        });
        assert!(inside.load(Ordering::SeqCst));
        let mut account = team.account.lock().unwrap();
        assert!(account.alone_until.is_some());
        account.alone_until = Some(Instant::now() + Duration::from_secs(3600));
        drop(account);
        team.run(1, 1, &|_| {
            assert!(!team.has_seat(), "helpers are used again");
            1
        });
    }

    #[test]
    fn helpers_rest_while_they_cost_more_than_they_save() {
        let (mut account, now) = (HelpAccount::default(), Instant::now());
        let mut alone = |own, cost, taken| {
            account.learn(&timing(own, cost, taken), now);
            account.alone_until.map(|until| (until - now).as_micros())
        };
        // Helpers did half of the pieces and so saved as much time as the caller worked.
        assert_eq!(alone(10, 10, 4), None);
        assert_eq!(alone(10, 15, 4), Some(16 * 5));
        assert_eq!(alone(10, 0, 4), None);
        assert_eq!(alone(10, 20, 4), None, "the last call's savings cover it");
        assert_eq!(alone(0, 1, 0), Some(16));
        // Credit is capped, so a busy process is noticed at once.
        assert_eq!(alone(1_000_000, 0, 4), None);
        assert_eq!(alone(10, 4500, 4), Some(16 * 490));
        // A call that saves enough itself leaves no debt.
        assert_eq!(alone(10_000, 9000, 4), None);
    }

    #[test]
    fn helper_panics_reach_the_caller() {
        let team = without_cores();
        let caller = thread::current().id();
        let begun = AtomicBool::new(false);
        let work = |_| {
            if thread::current().id() != caller {
                begun.store(true, Ordering::SeqCst);
                panic!("a helper's");
            }
            wait_for(|| begun.load(Ordering::SeqCst));
            1
        };
        let caught = thread::scope(|scope| {
            scope.spawn(|| {
                wait_for(|| team.has_seat());
                team.work_once();
            });
            catch_unwind(AssertUnwindSafe(|| team.run(1, 2, &work)))
        });
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"a helper's"));
        let pieces = Pieces::new(1);
        team.run(1, 1, &|_| pieces.take());
        assert_eq!(
            pieces.taken[0].load(Ordering::Relaxed),
            1,
            "the team still works"
        );
    }

    #[test]
    fn a_panic_of_the_caller_waits_for_helpers() {
        let (team, begun, ended) = (
            without_cores(),
            AtomicBool::new(false),
            AtomicBool::new(false),
        );
        let caller = thread::current().id();
        let work = |_| {
            if thread::current().id() == caller {
                wait_for(|| begun.load(Ordering::SeqCst));
                panic!("the caller's");
            }
            begun.store(true, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(20));
            ended.store(true, Ordering::SeqCst);
            1
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_for(|| team.has_seat());
                team.work_once();
            });
            assert!(catch_unwind(AssertUnwindSafe(|| team.run(1, 2, &work))).is_err());
            assert!(
                ended.load(Ordering::SeqCst),
                "the helper still used the caller's frame"
            );
        });
    }
}
