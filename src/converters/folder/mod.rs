//! The folder of an output: held by one writer at a time, and cleaned of exactly what it made.
//!
//! Files appear under their names only when they are complete and on disk. Until then they have
//! temporary names beside their places, so that the rename stays within one file system, and the
//! usual permissions (the process's umask decides): a file that only its writer can read is no use
//! to the server that loads it.
//!
//! The folder keeps a list of what was made through it. An output that is not finished takes these
//! paths along and nothing else: whatever others put beside them stays.

mod cleanup;
mod lock;
mod pending;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use pending::PendingFile;
pub(super) use pending::{TemporaryName, create_temporary, exists_already};

use crate::error::{Error, ErrorKind, Result};
use cleanup::Made;
use lock::FolderLock;

/// A folder that is being written into, by nobody else. Clones are the same folder.
///
/// When the last clone is dropped without [`release`](Self::release), everything that was made
/// through it is removed: files, finished or not, and the folders that did not exist before.
///
/// The lock is advisory and the kernel's (`flock`): one that a killed process left behind is no
/// obstacle. File systems without locks go unprotected, but for renames, which never replace a file
/// that they are not told to replace.
#[derive(Debug, Clone)]
pub struct OutputFolder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lock: Option<FolderLock>,
    made: Made,
    /// Nothing is made any more.
    closed: bool,
}

/// The end of an abandoned output: while this lives, threads that still write to it wait.
#[derive(Debug)]
pub struct Abandoned<'a>(
    #[expect(dead_code, reason = "it is held, not read")] MutexGuard<'a, State>,
);

impl OutputFolder {
    /// The lock file within the folder. It is empty; only the kernel's lock on it counts.
    pub const LOCK_NAME: &str = lock::NAME;

    /// Makes `folder` where it does not exist, and locks it. Temporary files that a killed process
    /// left in it are removed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when somebody else is writing into the folder,
    /// [`ErrorKind::Io`] when it cannot be made or written to.
    pub fn claim(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        Self::try_claim(&folder)?.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                "another process is writing into this folder",
            )
            .at(folder)
            .help("choose another folder, or wait until it is done")
        })
    }

    /// As [`claim`](Self::claim), for whoever waits: `None` while somebody else is writing into the
    /// folder.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when it cannot be made or written to.
    pub fn try_claim(folder: impl Into<PathBuf>) -> Result<Option<Self>> {
        let folder = Self(Arc::new(Inner {
            path: folder.into(),
            state: Mutex::default(),
        }));
        let mut state = folder.state();
        let make = || state.made.make_folder(folder.path());
        let Some(lock) = FolderLock::take(folder.path(), make)? else {
            drop(state);
            return Ok(None);
        };
        if lock.is_exclusive() {
            cleanup::remove_leftovers(folder.path());
        }
        state.lock = Some(lock);
        drop(state);
        Ok(Some(folder))
    }

    /// As [`claim`](Self::claim), for a folder that must be empty. Names that begin with a dot do
    /// not count.
    ///
    /// # Errors
    /// Those of [`claim`](Self::claim), and [`ErrorKind::InvalidArgument`] when the folder holds
    /// anything; it is not touched then.
    pub fn claim_empty(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        refuse_occupied(&folder)?;
        let claimed = Self::claim(folder)?;
        // Somebody may have finished in between.
        refuse_occupied(claimed.path())?;
        Ok(claimed)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Makes an empty file that will be called `name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when `name` is no plain file name, [`ErrorKind::Cancelled`]
    /// after [`abandon`](Self::abandon), [`ErrorKind::Io`] when the file cannot be made.
    pub fn file(&self, name: impl AsRef<OsStr>) -> Result<PendingFile> {
        PendingFile::create(self, name.as_ref())
    }

    /// Better to say it now than after an hour of writing. File systems that do not know their size
    /// report none, and are taken at their word when they run full.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when fewer than `needed` bytes are free.
    pub fn require_space(&self, needed: u64) -> Result<()> {
        require_space(self.path(), needed)
    }

    /// The output is complete: unlocks the folder, calls `last`, which may move it, and keeps
    /// everything. Nothing can be made through this folder any more.
    ///
    /// # Errors
    /// Those of `last`, after which everything that was made is still to be removed;
    /// [`ErrorKind::Cancelled`] after [`abandon`](Self::abandon).
    pub fn release<T>(&self, last: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let mut state = self.open_state()?;
        state.closed = true;
        state.lock = None;
        let value = last(self.path())?;
        state.made.keep_all();
        Ok(value)
    }

    /// Removes everything that was made through this folder, while other threads may still write.
    /// For signals: what happens to the output waits until the returned value is dropped, and fails
    /// then with [`ErrorKind::Cancelled`]. Does nothing to an output that is complete.
    pub fn abandon(&self) -> Abandoned<'_> {
        let mut state = self.state();
        state.closed = true;
        state.remove_all();
        Abandoned(state)
    }

    /// Everything that was made so far stays, whatever comes: it can be continued, or it has taken the
    /// place of something that is gone.
    pub(super) fn leave(&self) {
        self.state().made.keep_all();
    }

    /// Makes a file, or opens it as it is, under a name that does not change until
    /// [`in_one_go`](Self::in_one_go) gives it another. A file to `keep` stays when the output is not finished.
    pub(super) fn part(&self, path: &Path, keep: bool) -> Result<File> {
        let mut state = self.open_state()?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options
            .open(path)
            .map_err(|error| Error::io("create", path, error))?;
        if !keep {
            state.made.add_file(path.to_owned());
        }
        Ok(file)
    }

    /// Does `work`, which gives files their names, in one go: whoever [abandons](Self::abandon) the
    /// output waits until it is done.
    pub(super) fn in_one_go<T>(
        &self,
        work: impl FnOnce(&mut Renames<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.open_state()?;
        work(&mut Renames { state: &mut state })
    }

    /// Makes renames within the folder durable.
    pub(super) fn sync(&self) -> Result<()> {
        sync_folder(self.path())
    }

    /// Makes the folder itself durable, where it is new.
    pub(super) fn sync_itself(&self) -> Result<()> {
        let made = self.state().made.folders().to_vec();
        made.iter()
            .try_for_each(|folder| sync_folder(&parent_of(folder)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_state(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.closed {
            return Err(Error::new(
                ErrorKind::Cancelled,
                "the output was abandoned or is complete",
            )
            .at(self.path()));
        }
        Ok(state)
    }
}

/// Final names are given, and nobody comes between.
#[derive(Debug)]
pub(super) struct Renames<'a> {
    state: &'a mut State,
}

impl Renames<'_> {
    /// Renames a file, and replaces what has the name.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to)
            .map_err(|error| Error::io("rename the finished file to", to, error))?;
        if self.state.made.forget_file(from) {
            self.state.made.add_file(to.to_owned());
        }
        Ok(())
    }

    /// As [`OutputFolder::leave`].
    pub(super) fn leave(&mut self) {
        self.state.made.keep_all();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .remove_all();
    }
}

impl State {
    /// Removes everything that was made. The folders come last: the lock lies in the innermost.
    fn remove_all(&mut self) {
        self.made.remove_files();
        self.lock = None;
        self.made.remove_folders();
    }
}

/// Refuses a folder that holds anything. Names that begin with a dot do not count.
pub(super) fn refuse_occupied(folder: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| Error::io("list", folder, error))?,
    };
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", folder, error))?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            let held = entry.file_name();
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the folder is not empty: it holds {}", held.display()),
            )
            .at(folder)
            .help("choose another folder, or remove this one first"));
        }
    }
    Ok(())
}

/// As [`OutputFolder::require_space`], for any folder that is there.
pub(crate) fn require_space(folder: &Path, needed: u64) -> Result<()> {
    #[cfg(unix)]
    if let Ok(stat) = rustix::fs::statvfs(folder)
        && stat.f_blocks > 0
    {
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed {
            return Err(Error::new(
                ErrorKind::Io,
                format!("{needed} bytes are to be written, and {free} are free here"),
            )
            .at(folder)
            .help("free some space, or choose a folder on another disk"));
        }
    }
    #[cfg(not(unix))]
    let _ = (folder, needed);
    Ok(())
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes renames within `folder` durable. Only Unix can: elsewhere this does nothing.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        let file = File::open(folder).map_err(|error| Error::io("open", folder, error))?;
        match file.sync_all() {
            // Some network and FUSE file systems cannot flush a folder, and say so in this way.
            Err(error) if crate::converters::rename::is_unsupported(&error) => {}
            other => other.map_err(|error| Error::io("flush the folder", folder, error))?,
        }
    }
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}
