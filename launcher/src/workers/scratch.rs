//! A private directory for one engine's sockets and rendezvous files, so that engines on one host
//! cannot conflict. Workers that outlive their launcher keep their sockets in it, so that another
//! launcher can attach to them.

use std::fs::{DirBuilder, File, OpenOptions, remove_dir_all, remove_file, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;

use super::kept::KeptWorker;
use crate::error::{Failure, Outcome};

/// A Unix socket's path has at most 107 bytes; the directory leaves room for the file name.
const MAX_PATH_BYTES: usize = 80;
/// The common prefix of these directories.
const PREFIX: &str = "penstock-";
/// The lock file in each directory. The owning process locks it for its lifetime.
const LOCK: &str = "lock";
/// The value of `--attach` that finds the directory.
const AUTO: &str = "auto";
/// Only the owner has access.
const MODE: u32 = 0o700;

/// A directory that only its owner can access. It is removed with its contents on drop, unless it is
/// kept.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Marks the directory as in use. The system releases the lock however the process ends.
    lock: Option<Flock<File>>,
    /// Whether the directory stays, because workers in it outlive this process.
    pub kept: bool,
}

/// The workers in a directory whose launcher is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptGroup {
    /// The number in the names of their sockets.
    pub generation: u64,
    /// Rank 0 first.
    pub workers: Vec<KeptWorker>,
}

impl Scratch {
    /// Creates a directory and removes those of launchers that were killed.
    ///
    /// # Errors
    /// If no temporary directory is writable.
    pub fn new() -> Outcome<Self> {
        let parent = parent();
        sweep(&parent);
        Self::within(&parent)
    }

    fn within(parent: &Path) -> Outcome<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .subsec_nanos();
        let name = format!("{PREFIX}{}-{count}-{now:08x}", std::process::id());
        let path = parent.join(name);
        // Fails if it exists: a name that another user created in advance is not trusted.
        let made = DirBuilder::new().mode(MODE).create(&path);
        made.map_err(|error| {
            let shown = path.display();
            let why = format!("cannot create {shown} for the workers' sockets: {error}");
            Failure::runtime(why)
        })?;
        let lock = locked(&path);
        Ok(Self {
            path,
            lock,
            kept: false,
        })
    }

    /// Takes over the directory of a launcher that is gone, with `ranks` workers in it. `path` may
    /// be `auto`: this user's only such directory; `None` if there is none.
    ///
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// If the launcher of `path` still runs, if its workers have ended, or if `auto` finds several.
    pub fn adopt(path: &Path, ranks: u32) -> Outcome<Option<(Self, KeptGroup)>> {
        if path == Path::new(AUTO) {
            Self::adopt_only(&parent(), ranks)
        } else {
            Self::adopt_named(path, ranks).map(Some)
        }
    }

    fn adopt_named(path: &Path, ranks: u32) -> Outcome<(Self, KeptGroup)> {
        let shown = path.display();
        if !is_ours(path) {
            let why = format!("--attach {shown}: this is no directory of this user's workers");
            return Err(Failure::runtime(why));
        }
        let lock = locked(path).ok_or_else(|| {
            let why = format!("--attach {shown}: another server uses these workers; stop it first");
            Failure::runtime(why)
        })?;
        let group = || {
            let generation = listening_generation(path, ranks)?;
            let find = |rank| KeptWorker::find(&socket(path, generation, rank));
            let workers = (0..ranks).map(find).collect::<Option<_>>()?;
            Some(KeptGroup {
                generation,
                workers,
            })
        };
        let group = group().ok_or_else(|| {
            Failure::runtime(format!(
                "--attach {shown}: no {ranks} worker(s) listen there; they may have ended. Start \
                 without --attach"
            ))
        })?;
        let scratch = Self {
            path: path.to_owned(),
            lock: Some(lock),
            kept: true,
        };
        Ok((scratch, group))
    }

    fn adopt_only(parent: &Path, ranks: u32) -> Outcome<Option<(Self, KeptGroup)>> {
        let free = |path: &PathBuf| is_ours(path) && locked(path).is_some();
        let kept = |path: &PathBuf| listening_generation(path, ranks).is_some();
        let found: Vec<PathBuf> = directories(parent).filter(free).filter(kept).collect();
        match found.as_slice() {
            [] => Ok(None),
            [path] => Self::adopt_named(path, ranks).map(Some),
            several => {
                let names: Vec<_> = several
                    .iter()
                    .map(|path| path.display().to_string())
                    .collect();
                Err(Failure::runtime(format!(
                    "--attach auto: several servers have left workers; name one of: {}",
                    names.join(", ")
                )))
            }
        }
    }

    /// Whether the directory is there: programs clean up temporary directories.
    pub fn exists(&self) -> bool {
        self.path.join(LOCK).exists()
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Prepares the directory for workers of `generation`: removes the sockets of those before the
    /// last one. Creates it again if it is gone, since programs clean up temporary directories.
    ///
    /// # Errors
    /// If no temporary directory is writable.
    pub fn renew(&mut self, generation: u64) -> Outcome<()> {
        match DirBuilder::new().mode(MODE).create(&self.path) {
            Ok(()) => self.lock = locked(&self.path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_ours(&self.path) => {
                remove_old_files(&self.path, generation.saturating_sub(1));
            }
            // It belongs to another user by now, or its parent is gone: create another one.
            Err(_) => *self = Self::within(&parent())?,
        }
        Ok(())
    }

    /// Returns the socket path of the worker of `rank` in this generation of the group.
    pub fn socket(&self, generation: u64, rank: u32) -> PathBuf {
        socket(&self.path, generation, rank)
    }

    /// Returns torch's init method for the rendezvous of the ranks in this generation.
    pub fn rendezvous(&self, generation: u64) -> String {
        format!(
            "file://{}",
            self.path.join(format!("{generation}.rendezvous")).display()
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Only empty sockets in a temporary directory can remain.
        let _ = remove_dir_all(&self.path);
    }
}

/// Returns the parent of these directories: a path that leaves room for a socket's name.
fn parent() -> PathBuf {
    let usual = std::env::temp_dir();
    // The length of the longest name: the largest process id and count.
    let name = PREFIX.len() + "4294967295-18446744073709551615-3b9aca00".len();
    if usual.as_os_str().len() + 1 + name > MAX_PATH_BYTES {
        return PathBuf::from("/tmp");
    }
    usual
}

/// Locks a directory's lock file; `None` if the file system has no locks. Only the owner removes
/// such a directory.
fn locked(directory: &Path) -> Option<Flock<File>> {
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).open(directory.join(LOCK));
    Flock::lock(file.ok()?, FlockArg::LockExclusiveNonblock).ok()
}

/// Whether the directory belongs to this user and only the owner can access it.
fn is_ours(path: &Path) -> bool {
    symlink_metadata(path).is_ok_and(|found| {
        let closed = found.mode() & 0o077 == 0;
        found.is_dir() && closed && found.uid() == Uid::effective().as_raw()
    })
}

/// Removes the files of generations before `first`.
fn remove_old_files(directory: &Path, first: u64) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if generation_of(&entry.path()).is_some_and(|generation| generation < first) {
            // Leftover files cannot conflict, because no generation reuses a name.
            let _ = remove_file(entry.path());
        }
    }
}

/// Returns the generation of a socket, a rendezvous file or a worker's log.
fn generation_of(file: &Path) -> Option<u64> {
    let name = file.file_name()?.to_str()?;
    let digits = name.find(|c: char| !c.is_ascii_digit())?;
    name[..digits].parse().ok()
}

/// Returns the last generation whose ranks all listen.
fn listening_generation(directory: &Path, ranks: u32) -> Option<u64> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut generations: Vec<u64> = entries.filter_map(|e| generation_of(&e.path())).collect();
    generations.sort_unstable();
    let listens = |generation: &u64| {
        let listens = |rank| UnixStream::connect(socket(directory, *generation, rank)).is_ok();
        (0..ranks).all(listens)
    };
    generations.into_iter().rev().find(listens)
}

fn socket(directory: &Path, generation: u64, rank: u32) -> PathBuf {
    directory.join(format!("{generation}-{rank}.sock"))
}

/// Returns the paths in `parent` that are named like these directories.
fn directories(parent: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_string_lossy().starts_with(PREFIX));
    named.map(|entry| entry.path())
}

/// Removes the directories of killed owners, whose locks are free, unless a worker lives in them.
fn sweep(parent: &Path) {
    for path in directories(parent).filter(|path| is_ours(path)) {
        // Without a lock file, the directory is another program's or is still being created.
        let Ok(file) = File::open(path.join(LOCK)) else {
            continue;
        };
        if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            if listening_generation(&path, 1).is_none() {
                // Another process may remove it at the same time.
                let _ = remove_dir_all(&path);
            }
            drop(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn each_engine_has_its_own_directory_and_removes_it() {
        let (one, two) = (Scratch::new().unwrap(), Scratch::new().unwrap());
        assert_ne!(one.socket(0, 0), two.socket(0, 0));
        assert_ne!(one.rendezvous(0), one.rendezvous(1));
        assert!(one.socket(0, 63).as_os_str().len() < 108);
        let path = one.path.clone();
        assert!(path.is_dir());
        drop(one);
        assert!(!path.exists() && two.path.is_dir());
    }

    #[test]
    fn a_directory_that_was_removed_is_made_again() {
        let parent = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::within(parent.path()).unwrap();
        let socket = scratch.socket(1, 0);
        remove_dir_all(&scratch.path).unwrap();
        scratch.renew(2).unwrap();
        assert_eq!(scratch.socket(1, 0), socket);
        assert!(is_ours(&scratch.path));
        // The lock is held again, so the sweep keeps the directory.
        sweep(parent.path());
        assert!(scratch.path.is_dir());
    }

    #[test]
    fn sockets_before_the_previous_generation_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::within(parent.path()).unwrap();
        let sockets = [1, 2].map(|generation| scratch.socket(generation, 0));
        for socket in &sockets {
            drop(UnixListener::bind(socket).unwrap());
        }
        scratch.renew(3).unwrap();
        assert_eq!(sockets.map(|socket| socket.exists()), [false, true]);
        assert!(scratch.path.join(LOCK).exists());
    }

    /// Leaves a directory as a killed launcher does.
    fn kill(mut scratch: Scratch) {
        // The system releases a lock when its process ends.
        drop(scratch.lock.take());
        std::mem::forget(scratch);
    }

    #[tokio::test]
    async fn workers_of_a_killed_launcher_are_kept_and_adopted() {
        let parent = tempfile::tempdir().unwrap();
        let old = Scratch::within(parent.path()).unwrap();
        let path = old.path.clone();
        drop(UnixListener::bind(old.socket(1, 0)).unwrap());
        // Rank 1 of the third generation has not listened yet.
        let alive = [(2, 0), (2, 1), (3, 0)]
            .map(|(generation, rank)| UnixListener::bind(old.socket(generation, rank)).unwrap());
        let refused = Scratch::adopt(&path, 2).unwrap_err();
        assert!(refused.message.contains("another server uses"), "{refused}");
        kill(old);
        sweep(parent.path());
        let refused = Scratch::adopt(&path, 3).unwrap_err();
        assert!(
            refused.message.contains("no 3 worker(s) listen"),
            "{refused}"
        );
        let (adopted, group) = Scratch::adopt_only(parent.path(), 2).unwrap().unwrap();
        assert_eq!(
            (adopted.path(), group.generation, group.workers.len()),
            (&*path, 2, 2)
        );
        let in_use = Scratch::adopt_only(parent.path(), 2).unwrap();
        assert!(in_use.is_none());
        // Until the adopted workers serve, their directory stays.
        drop(adopted);
        assert!(path.is_dir());
        drop(alive);
        sweep(parent.path());
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_of_another_owner_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::within(parent.path()).unwrap();
        let path = scratch.path.clone();
        remove_dir_all(&path).unwrap();
        let other = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(other.path(), &path).unwrap();
        scratch.renew(1).unwrap();
        assert_ne!(scratch.path, path);
        assert!(is_ours(&scratch.path));
    }

    #[test]
    fn only_directories_of_killed_launchers_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let alive = Scratch::within(parent.path()).unwrap();
        let killed = Scratch::within(parent.path()).unwrap();
        let left = killed.path.clone();
        drop(UnixListener::bind(killed.socket(1, 0)).unwrap());
        kill(killed);
        let foreign = parent.path().join("penstock-notes");
        std::fs::create_dir(&foreign).unwrap();
        sweep(parent.path());
        assert!(!left.exists());
        assert!(alive.path.is_dir() && foreign.is_dir());
    }
}
