//! File descriptors: the process's limit and the number available to connections.

use std::fmt::{self, Display};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::values::ResolvedValue;

/// The maximum that the process requests. Hard limits can be larger (10^9 in some containers), and
/// programs that the workers start might iterate over all descriptors up to the limit.
const MAX_DESCRIPTORS: u64 = 1 << 20;
/// Descriptors for everything except connections: threads, files, pipes, and the connections beyond
/// the limit, which get health checks and a 503.
const RESERVED: u64 = 256;
/// Descriptors per worker: its pipes and connections, and those of its successor.
const RESERVED_PER_WORKER: u64 = 8;

/// The limits of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The soft limit before `raise`.
    pub found: u64,
    /// The current soft limit.
    pub limit: u64,
    /// The hard limit.
    pub hard: u64,
}

impl Descriptors {
    /// Raises the soft limit to the hard one. Keeps the soft limit if the system refuses.
    pub fn raise() -> Self {
        let Ok((found, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
            return Self {
                found: MAX_DESCRIPTORS,
                limit: MAX_DESCRIPTORS,
                hard: MAX_DESCRIPTORS,
            };
        };
        let wanted = hard.min(MAX_DESCRIPTORS).max(found);
        let raised = wanted > found && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
        Self {
            found,
            limit: if raised { wanted } else { found },
            hard,
        }
    }

    /// Returns the maximum number of connections beside `workers` workers; `wanted` at most.
    pub fn connections(self, wanted: usize, workers: u32) -> ResolvedValue<usize> {
        let reserved = RESERVED + RESERVED_PER_WORKER * u64::from(workers);
        // If descriptors are very scarce, connections get half: a server without any would be
        // useless.
        let room = self.limit.saturating_sub(reserved).max(self.limit / 2);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if wanted <= room {
            return ResolvedValue::new(wanted, format!("default; {self}"));
        }
        ResolvedValue::new(room, format!("{self}, minus {reserved} for other uses"))
    }
}

impl Display for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, limit, hard } = self;
        if limit > found {
            write!(
                f,
                "the limit of open files was raised from {found} to {limit}"
            )
        } else {
            write!(f, "the limit of open files is {limit} (hard: {hard})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(limit: u64) -> Descriptors {
        Descriptors {
            found: limit,
            limit,
            hard: limit,
        }
    }

    #[test]
    fn connections_leave_a_reserve() {
        assert_eq!(limit(1 << 20).connections(8192, 1).value, 8192);
        let few = limit(1024).connections(8192, 2);
        assert_eq!(few.value, 1024 - 256 - 16);
        assert_eq!(
            few.why,
            "the limit of open files is 1024 (hard: 1024), minus 272 for other uses"
        );
        assert_eq!(limit(100).connections(8192, 64).value, 50);
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let raised = Descriptors::raise();
        assert_eq!(
            raised.limit,
            raised.hard.min(MAX_DESCRIPTORS).max(raised.found)
        );
        let now = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(now, (raised.limit, raised.hard));
        // The second call has nothing to raise.
        assert_eq!(Descriptors::raise().found, raised.limit);
    }
}
