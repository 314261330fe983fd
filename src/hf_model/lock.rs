//! The lock of a blob: the same file and the same kind (`flock`) as `huggingface_hub` uses.
//!
//! The kernel drops it when its holder ends, however that comes about, so that a file that is left
//! behind locks nothing. It stays in place: whoever waits for it waits for this very file. It saves
//! a second download, and nothing else rests on it.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use super::local::not_writable;
use crate::error::{Error, ErrorKind, Result};
use crate::locks::{has_no_locks, is_at};

/// How often a lock that somebody else holds is asked for.
const INTERVAL: Duration = Duration::from_millis(50);

/// A held lock, or none where the file system has no locks.
#[derive(Debug)]
pub(super) struct BlobLock {
    _file: File,
}

impl BlobLock {
    /// Waits for the lock for as long as its holder gets on: `progress` gives a number that grows
    /// while it does, and `patience` is how long it may stand still.
    pub(super) async fn take(
        path: &Path,
        patience: Duration,
        progress: impl Fn() -> u64,
        waits: impl FnOnce(),
    ) -> Result<Self> {
        let mut waits = Some(waits);
        let (mut last, mut since) = (progress(), Instant::now());
        loop {
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
            if let Some(waits) = waits.take() {
                tracing::info!(lock = %path.display(), "another process downloads this file");
                waits();
            }
            tokio::time::sleep(INTERVAL).await;
            let now = progress();
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > patience {
                return Err(Error::new(
                    ErrorKind::Io,
                    format!(
                        "another process holds the lock of this download, and nothing has come for {patience:?}"
                    ),
                )
                .at(path)
                .help("end that process (fuser PATH names it), then try again"));
            }
        }
    }

    fn try_take(path: &Path) -> Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Whoever shares the cache through a group may wait, too.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o664);
        let file = options
            .open(path)
            .map_err(|error| not_writable(Error::io("open the lock file", path, error)))?;
        match file.try_lock() {
            // Else somebody has removed it meanwhile, and the next one to come makes another.
            Ok(()) if is_at(&file, path) => Ok(Some(Self { _file: file })),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                tracing::warn!(path = %path.display(), "no locks here: {error}");
                Ok(Some(Self { _file: file }))
            }
            Err(TryLockError::Error(error)) => Err(Error::io("lock", path, error)),
        }
    }
}
