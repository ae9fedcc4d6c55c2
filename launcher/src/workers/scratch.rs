//! A private directory for one engine's sockets and rendezvous file, so that engines on one host
//! never meet.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Failure, Outcome};

/// A unix socket's path may have 107 bytes; the directory leaves room for the file's name.
const LONGEST: usize = 80;

/// A directory that only its owner can enter; removed with everything in it when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a new directory.
    ///
    /// # Errors
    /// When no temporary directory can be written to.
    pub fn new() -> Outcome<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .subsec_nanos();
        let name = format!("penstock-{}-{count}-{now:08x}", std::process::id());
        let mut path = std::env::temp_dir().join(&name);
        if path.as_os_str().len() > LONGEST {
            path = Path::new("/tmp").join(&name);
        }
        // Fails if it exists: a name that somebody else prepared is not trusted.
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| {
                let shown = path.display();
                Failure::runtime(format!(
                    "cannot make {shown} for the workers' sockets: {error}"
                ))
            })?;
        Ok(Self { path })
    }

    /// Where the worker of `rank` listens in the group's `life`th life.
    pub fn socket(&self, life: u64, rank: u32) -> PathBuf {
        self.path.join(format!("{life}-{rank}.sock"))
    }

    /// How the ranks of the group's `life`th life find one another: torch's init method.
    pub fn rendezvous(&self, life: u64) -> String {
        format!(
            "file://{}",
            self.path.join(format!("{life}.rendezvous")).display()
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is empty sockets in a temporary directory.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_has_its_own_and_leaves_nothing() {
        let (one, two) = (Scratch::new().unwrap(), Scratch::new().unwrap());
        assert_ne!(one.socket(0, 0), two.socket(0, 0));
        assert_ne!(one.rendezvous(0), one.rendezvous(1));
        assert!(one.socket(0, 63).as_os_str().len() < 108);
        let path = one.path.clone();
        assert!(path.is_dir());
        drop(one);
        assert!(!path.exists() && two.path.is_dir());
    }
}
