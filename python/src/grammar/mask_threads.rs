//! Thread pools that compute masks.

use std::sync::OnceLock;
use std::thread::available_parallelism;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Maximum threads per pool.
const MOST: usize = 8;

/// The expected duration of a mask. Slow ones have a pool of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Quick,
    Slow,
}

/// Runs `work` on a pool, or on this thread if the pool could not be started.
pub(super) fn spawn(pace: Pace, work: impl FnOnce() + Send + 'static) {
    static QUICK: OnceLock<Option<ThreadPool>> = OnceLock::new();
    static SLOW: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let cores = available_parallelism().map_or(1, usize::from);
    let (pool, threads, name) = match pace {
        Pace::Quick => (&QUICK, cores.min(MOST), "masks"),
        Pace::Slow => (&SLOW, (cores / 2).clamp(1, MOST), "slow masks"),
    };
    match pool.get_or_init(|| build(threads, name)) {
        Some(pool) => pool.spawn(work),
        None => work(),
    }
}

fn build(threads: usize, name: &'static str) -> Option<ThreadPool> {
    let builder = ThreadPoolBuilder::new().thread_name(move |_| name.to_owned());
    builder.num_threads(threads).build().ok()
}
