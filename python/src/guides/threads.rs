//! Rows of a step side by side, on the caller's thread and a few that wait for such work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Threads beside the caller's, at most.
const MOST: usize = 7;

/// What `work` gives for each index below `count`, in order. Whoever is free takes the next one.
pub(super) fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let Some(pool) = pool().filter(|_| count > 1) else {
        return (0..count).map(work).collect();
    };
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    let take = || {
        let mut mine = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            mine.push((index, work(index)));
        }
        done.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(mine);
    };
    pool.in_place_scope(|scope| {
        for _ in 0..pool.current_num_threads().min(count - 1) {
            scope.spawn(|_| take());
        }
        take();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, value)| value).collect()
}

/// None on a single core, or if the system gives no threads.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let make = || {
        let others = available_parallelism().map_or(1, usize::from) - 1;
        let builder = ThreadPoolBuilder::new().thread_name(|_| "masks".to_owned());
        let built = builder.num_threads(others.clamp(1, MOST)).build();
        built.ok().filter(|_| others > 0)
    };
    POOL.get_or_init(make).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_result() {
        for count in [0, 1, 2, 100] {
            let squares: Vec<usize> = (0..count).map(|index| index * index).collect();
            assert_eq!(each(count, |index| index * index), squares);
        }
    }
}
