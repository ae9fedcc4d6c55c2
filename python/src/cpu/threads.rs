//! Work on several cores: parts that an idle core takes, and that their owner computes if none does.

use std::ops::Range;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use rayon::{ThreadPool, ThreadPoolBuilder, join};

/// Calls `work` for all of `units`, in up to `threads` ranges side by side.
pub(super) fn split(units: Range<usize>, threads: usize, work: impl Fn(Range<usize>) + Sync) {
    match pool() {
        Some(pool) if threads > 1 => pool.install(|| halves(units, threads, &work)),
        _ => work(units),
    }
}

fn halves(units: Range<usize>, threads: usize, work: &(impl Fn(Range<usize>) + Sync)) {
    if threads < 2 || units.len() < 2 {
        return work(units);
    }
    let left = threads / 2;
    let middle = units.start + (units.len() * left).div_ceil(threads);
    join(
        || halves(units.start..middle, left, work),
        || halves(middle..units.end, threads - left, work),
    );
}

/// Threads for all cores, the first that asks among them: no work is handed over and back for it.
/// None if the system gives no threads.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let make = || {
        let cores = available_parallelism().map_or(1, usize::from);
        let builder = ThreadPoolBuilder::new().num_threads(cores.max(2));
        builder.use_current_thread().build().ok()
    };
    POOL.get_or_init(make).as_ref()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_unit_is_done_once() {
        for (units, threads) in [(0, 3), (1, 1), (1, 4), (10, 3), (7, 7), (64, 2), (5, 9)] {
            let done = Mutex::new(vec![0; units]);
            split(0..units, threads, |part| {
                part.for_each(|unit| done.lock().unwrap()[unit] += 1);
            });
            assert_eq!(done.into_inner().unwrap(), vec![1; units]);
        }
    }
}
