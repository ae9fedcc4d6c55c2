//! A private directory for one engine's sockets and rendezvous files, so that engines on one host
//! cannot conflict.

use std::fs::{DirBuilder, File, OpenOptions, remove_dir_all, remove_file, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;

use crate::error::{Failure, Outcome};

/// A Unix socket's path has at most 107 bytes; the directory leaves room for the file name.
const MAX_PATH_BYTES: usize = 80;
/// The common prefix of these directories.
const PREFIX: &str = "penstock-";
/// The lock file in each directory. The owning process locks it for its lifetime.
const LOCK: &str = "lock";
/// Only the owner has access.
const MODE: u32 = 0o700;

/// A directory that only its owner can access. It is removed with its contents on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Marks the directory as in use. The system releases the lock however the process ends.
    lock: Option<Flock<File>>,
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
        Ok(Self { path, lock })
    }

    /// Prepares the directory for restarted workers: removes the old sockets. Creates it again if
    /// it is gone, since programs clean up temporary directories.
    ///
    /// # Errors
    /// If no temporary directory is writable.
    pub fn renew(&mut self) -> Outcome<()> {
        match DirBuilder::new().mode(MODE).create(&self.path) {
            Ok(()) => self.lock = locked(&self.path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_ours(&self.path) => {
                remove_files(&self.path);
            }
            // It belongs to another user by now, or its parent is gone: create another one.
            Err(_) => *self = Self::within(&parent())?,
        }
        Ok(())
    }

    /// Returns the socket path of the worker of `rank` in this generation of the group.
    pub fn socket(&self, generation: u64, rank: u32) -> PathBuf {
        self.path.join(format!("{generation}-{rank}.sock"))
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

/// Removes the files of a directory except its lock.
fn remove_files(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name() != LOCK {
            // Leftover files cannot conflict, because no generation reuses a name.
            let _ = remove_file(entry.path());
        }
    }
}

/// Removes the directories of killed owners, whose locks are free.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !named || !is_ours(&path) {
            continue;
        }
        // Without a lock file, the directory is another program's or is still being created.
        let Ok(file) = File::open(path.join(LOCK)) else {
            continue;
        };
        if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // Another process may remove it at the same time.
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
        // The lock is held again, so the sweep keeps the directory.
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
    fn a_directory_of_another_owner_is_replaced() {
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
        // The system releases a lock when its process ends.
        drop(killed.lock.take());
        std::mem::forget(killed);
        let foreign = parent.path().join("penstock-notes");
        std::fs::create_dir(&foreign).unwrap();
        sweep(parent.path());
        assert!(!left.exists());
        assert!(alive.path.is_dir() && foreign.is_dir());
    }
}
