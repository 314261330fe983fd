//! The lock that keeps a second writer out of a folder.
//!
//! It is advisory and the kernel's (`flock`) on an empty file in the folder: one that a killed
//! process left behind is no obstacle.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::locks::{has_no_locks, is_at};

/// The lock file within the folder.
pub(super) const NAME: &str = ".tensora.lock";

/// How often a lock is asked for while others remove the folder that it lies in.
const ATTEMPTS: usize = 64;

/// A lock that is held, until it is dropped.
#[derive(Debug)]
pub(super) struct FolderLock {
    /// What the lock is on: it ends when this is closed.
    _file: File,
    path: PathBuf,
    exclusive: bool,
}

impl FolderLock {
    /// Locks `folder`; `None` while another writer has the lock. `make` makes the folder where it
    /// does not exist, which may be more than once: the last writer removes a folder that it had made.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io), and those of `make`.
    pub(super) fn take(
        folder: &Path,
        mut make: impl FnMut() -> Result<()>,
    ) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        for _ in 0..ATTEMPTS {
            make()?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = match options.open(&path) {
                Ok(file) => file,
                // The last writer has just removed the folder that it had made.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io("create", &path, error)),
            };
            let exclusive = match file.try_lock() {
                Ok(()) if is_at(&file, &path) => true,
                // The last writer has removed the file after we had opened it, and whoever comes
                // next makes and locks another one.
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                    tracing::warn!(folder = %folder.display(), "no locks here: {error}");
                    false
                }
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path, error)),
            };
            return Ok(Some(Self {
                _file: file,
                path,
                exclusive,
            }));
        }
        Ok(None)
    }

    /// Whether nobody else can have it; not so on file systems without locks.
    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}

impl Drop for FolderLock {
    /// Removes the lock file while it is locked, so that nobody else's is removed.
    fn drop(&mut self) {
        // An empty hidden file that stays is no obstacle to anybody.
        let _ = std::fs::remove_file(&self.path);
    }
}
