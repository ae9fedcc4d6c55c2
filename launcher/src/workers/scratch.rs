//! A private directory for one engine's sockets and rendezvous file, so that engines on one host
//! never meet.

use std::fs::{DirBuilder, File, OpenOptions, remove_dir_all, remove_file, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;

use crate::error::{Failure, Outcome};

/// A unix socket's path may have 107 bytes; the directory leaves room for the file's name.
const MAX_PATH_BYTES: usize = 80;
/// What all these directories begin with.
const PREFIX: &str = "penstock-";
/// A file in each, locked by the process that the directory belongs to for as long as it lives.
const LOCK: &str = "lock";
/// Nobody but its owner can enter one.
const MODE: u32 = 0o700;

/// A directory that only its owner can enter; removed with everything in it when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Says that the directory is in use; the system lets go of it however the process ends.
    lock: Option<Flock<File>>,
}

impl Scratch {
    /// Makes a new directory, and removes those that launchers left which were killed.
    ///
    /// # Errors
    /// When no temporary directory can be written to.
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
        // Fails if it exists: a name that somebody else prepared is not trusted.
        let made = DirBuilder::new().mode(MODE).create(&path);
        made.map_err(|error| {
            let shown = path.display();
            let why = format!("cannot make {shown} for the workers' sockets: {error}");
            Failure::runtime(why)
        })?;
        let lock = locked(&path);
        Ok(Self { path, lock })
    }

    /// Makes the directory ready for another life of the workers: without the sockets of the last one,
    /// and anew if somebody has removed it, as programs that tidy temporary directories do.
    ///
    /// # Errors
    /// When no temporary directory can be written to.
    pub fn renew(&mut self) -> Outcome<()> {
        match DirBuilder::new().mode(MODE).create(&self.path) {
            Ok(()) => self.lock = locked(&self.path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_ours(&self.path) => {
                remove_files(&self.path);
            }
            // Somebody else's by now, or its parent is gone: another one.
            Err(_) => *self = Self::within(&parent())?,
        }
        Ok(())
    }

    /// Where the worker of `rank` listens in the group's `life`th life.
    pub fn socket(&self, generation: u64, rank: u32) -> PathBuf {
        self.path.join(format!("{generation}-{rank}.sock"))
    }

    /// How the ranks of the group's `life`th life find one another: torch's init method.
    pub fn rendezvous(&self, generation: u64) -> String {
        format!(
            "file://{}",
            self.path.join(format!("{generation}.rendezvous")).display()
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is empty sockets in a temporary directory.
        let _ = remove_dir_all(&self.path);
    }
}

/// Where such directories are made: a path that leaves room for a socket's.
fn parent() -> PathBuf {
    let usual = std::env::temp_dir();
    // A name is as long at most as with the largest process id and count.
    let name = PREFIX.len() + "4294967295-18446744073709551615-3b9aca00".len();
    if usual.as_os_str().len() + 1 + name > MAX_PATH_BYTES {
        return PathBuf::from("/tmp");
    }
    usual
}

/// Locks a directory's file; none where the file system cannot. Then nobody removes the directory
/// but its owner.
fn locked(directory: &Path) -> Option<Flock<File>> {
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).open(directory.join(LOCK));
    Flock::lock(file.ok()?, FlockArg::LockExclusiveNonblock).ok()
}

/// Whether it is a directory of this user's that nobody else can enter.
fn is_ours(path: &Path) -> bool {
    symlink_metadata(path).is_ok_and(|found| {
        let closed = found.mode() & 0o077 == 0;
        found.is_dir() && closed && found.uid() == Uid::effective().as_raw()
    })
}

/// Removes what is in a directory, but for its lock.
fn remove_files(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name() != LOCK {
            // What stays is in nobody's way: no life of the workers uses a name twice.
            let _ = remove_file(entry.path());
        }
    }
}

/// Removes the directories whose owners were killed: nobody holds their locks any more.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !named || !is_ours(&path) {
            continue;
        }
        // Without such a file it is none of these directories, or one that is only being made.
        let Ok(file) = File::open(path.join(LOCK)) else {
            continue;
        };
        if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // Somebody else may sweep too.
            let _ = remove_dir_all(&path);
            drop(lock);
        }
    }
}

#[cfg(test)]
mod tests {
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
        scratch.renew().unwrap();
        assert_eq!(scratch.socket(1, 0), socket);
        assert!(is_ours(&scratch.path));
        // It is locked again: nobody sweeps it.
        sweep(parent.path());
        assert!(scratch.path.is_dir());
    }

    #[test]
    fn sockets_of_the_previous_generation_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::within(parent.path()).unwrap();
        let socket = scratch.socket(1, 0);
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert!(socket.exists());
        scratch.renew().unwrap();
        assert!(!socket.exists() && scratch.path.join(LOCK).exists());
    }

    #[test]
    fn a_directory_taken_by_somebody_else_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let mut scratch = Scratch::within(parent.path()).unwrap();
        let path = scratch.path.clone();
        remove_dir_all(&path).unwrap();
        let other = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(other.path(), &path).unwrap();
        scratch.renew().unwrap();
        assert_ne!(scratch.path, path);
        assert!(is_ours(&scratch.path));
    }

    #[test]
    fn only_directories_of_killed_launchers_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let alive = Scratch::within(parent.path()).unwrap();
        let mut killed = Scratch::within(parent.path()).unwrap();
        let left = killed.path.clone();
        drop(std::os::unix::net::UnixListener::bind(killed.socket(1, 0)).unwrap());
        // The system lets go of a lock when its process ends.
        drop(killed.lock.take());
        std::mem::forget(killed);
        let foreign = parent.path().join("penstock-notes");
        std::fs::create_dir(&foreign).unwrap();
        sweep(parent.path());
        assert!(!left.exists());
        assert!(alive.path.is_dir() && foreign.is_dir());
    }
}
