//! Parallel work in blocks: any thread may take the next block.

use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;

use super::team::Team;
use super::views::End;

/// Blocks per thread. More blocks shorten the wait for the last one at the end of a call, and the
/// loss when a thread gets its core late.
const BLOCKS: usize = 4;

/// Returns the number of units (rows, tiles) per block for `units` units on `threads` threads.
pub(super) fn block(units: usize, threads: usize) -> usize {
    if threads < 2 {
        return units.max(1);
    }
    units.div_ceil(threads * BLOCKS).max(1)
}

/// Calls `work` on this thread and on up to `threads - 1` others. `work` takes blocks from its end
/// until none of `blocks` is left, and returns the number it took. `share` returns when all blocks
/// are done.
pub(super) fn share(threads: usize, blocks: usize, work: &(dyn Fn(End) -> usize + Sync)) {
    static TEAM: OnceLock<Arc<Team>> = OnceLock::new();
    if threads < 2 || blocks < 2 {
        work(End::Front);
        return;
    }
    let team = TEAM.get_or_init(|| {
        let cores = available_parallelism().map_or(1, usize::from);
        Team::start(cores.max(2) - 1)
    });
    team.run(threads - 1, blocks, work);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_unit_is_in_one_block() {
        for (units, threads) in [(0, 3), (1, 1), (1, 4), (10, 3), (7, 7), (64, 2), (5, 9)] {
            let size = block(units, threads);
            let (next, done) = (AtomicUsize::new(0), Mutex::new(vec![0; units]));
            share(threads, units.div_ceil(size), &|_| {
                let mut blocks = 0;
                loop {
                    let start = next.fetch_add(1, Ordering::Relaxed) * size;
                    if start >= units {
                        return blocks;
                    }
                    let end = units.min(start + size);
                    let mut done = done.lock().unwrap();
                    done[start..end].iter_mut().for_each(|times| *times += 1);
                    blocks += 1;
                }
            });
            assert_eq!(done.into_inner().unwrap(), vec![1; units]);
        }
    }
}
