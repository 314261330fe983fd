//! The folder of an output: held by one writer at a time, and cleaned of exactly what it made.
//!
//! Files appear under their names only when they are complete and on disk. Until then they have
//! temporary names beside their places, so that the rename stays within one file system, and the
//! usual permissions (the process's umask decides): a file that only its writer can read is no use
//! to the server that loads it.
//!
//! The folder keeps a list of what was made through it. An output that is not finished takes these
//! paths along and nothing else: whatever others put beside them stays.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::converters::rename::rename_new;
use crate::error::{Error, ErrorKind, Result};

/// How often a lock is asked for while others remove the folder that it lies in.
const LOCK_ATTEMPTS: usize = 64;

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
    /// The open lock file.
    lock: Option<(File, PathBuf)>,
    /// Files that this folder's writers have made.
    files: HashSet<PathBuf>,
    /// Folders that did not exist before, outermost first.
    folders: Vec<PathBuf>,
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
    pub const LOCK_NAME: &str = ".tensora.lock";

    /// Makes `folder` where it does not exist, and locks it. Temporary files that a killed process
    /// left in it are removed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when somebody else is writing into the folder,
    /// [`ErrorKind::Io`] when it cannot be made or written to.
    pub fn claim(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = Self(Arc::new(Inner {
            path: folder.into(),
            state: Mutex::default(),
        }));
        folder.state().take_lock(folder.path())?;
        Ok(folder)
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
        let (name, file) = TemporaryName::create(self, name.as_ref())?;
        Ok(PendingFile { file, name })
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
        state.unlock();
        let value = last(self.path())?;
        state.files.clear();
        state.folders.clear();
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

    /// Makes renames within the folder durable.
    pub(super) fn sync(&self) -> Result<()> {
        sync_folder(self.path())
    }

    /// Makes the folder itself durable, where it is new.
    pub(super) fn sync_itself(&self) -> Result<()> {
        let made = self.state().folders.clone();
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

impl Drop for Inner {
    fn drop(&mut self) {
        self.state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .remove_all();
    }
}

impl State {
    fn take_lock(&mut self, folder: &Path) -> Result<()> {
        let busy = || {
            Error::new(
                ErrorKind::InvalidArgument,
                "another process is writing into this folder",
            )
            .at(folder)
            .help("choose another folder, or wait until it is done")
        };
        let path = folder.join(OutputFolder::LOCK_NAME);
        for _ in 0..LOCK_ATTEMPTS {
            make_folders(folder, &mut self.folders)?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = match options.open(&path) {
                Ok(file) => file,
                // The last writer has just removed the folder that it had made.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io("create", &path, error)),
            };
            match file.try_lock() {
                // Else the last writer has removed the file after we had opened it, and whoever
                // comes next makes and locks another one.
                Ok(()) if is_at(&file, &path) => {
                    self.lock = Some((file, path));
                    remove_leftovers(folder);
                    return Ok(());
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(busy()),
                Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                    tracing::warn!(folder = %folder.display(), "no locks here: {error}");
                    self.lock = Some((file, path));
                    return Ok(());
                }
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path, error)),
            }
        }
        Err(busy())
    }

    /// Removes the lock file while it is locked, so that nobody's else is removed.
    fn unlock(&mut self) {
        if let Some((_file, path)) = self.lock.take() {
            // An empty hidden file that stays is no obstacle to anybody.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Removes what can be removed; there is nobody left to report the rest to.
    fn remove_all(&mut self) {
        for file in self.files.drain() {
            let _ = std::fs::remove_file(file);
        }
        self.unlock();
        for folder in self.folders.drain(..).rev() {
            // Fails, as it should, where somebody else has put something.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// A file of an output that has no name yet. Dropping it removes it; [`commit`](Self::commit) gives
/// it its name.
#[derive(Debug)]
pub struct PendingFile {
    file: File,
    name: TemporaryName,
}

impl PendingFile {
    /// Where the file will be.
    pub fn target(&self) -> &Path {
        self.name.target()
    }

    /// Flushes what was written so far to disk.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn sync(&self) -> Result<()> {
        self.name.sync(&self.file)
    }

    /// Flushes the file to disk and gives it its name, which nobody may have yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when a file of this name exists, [`ErrorKind::Io`],
    /// [`ErrorKind::Cancelled`]; the temporary file is gone then.
    pub fn commit(self) -> Result<()> {
        self.name.sync(&self.file)?;
        drop(self.file);
        let folder = self.name.folder.clone();
        self.name.rename(false)?;
        folder.sync()
    }
}

impl Write for PendingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The temporary name of a file, without a descriptor: many can wait for their rename at once.
#[derive(Debug)]
pub(super) struct TemporaryName {
    folder: OutputFolder,
    target: PathBuf,
    temporary: PathBuf,
    renamed: bool,
}

impl TemporaryName {
    /// An empty file under a fresh name, `.NAME.tmp-PID-N`.
    pub(super) fn create(folder: &OutputFolder, name: &OsStr) -> Result<(Self, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let target = folder.path().join(name);
        if Path::new(name).file_name() != Some(name) {
            let message = "the name of a file in this folder is not a plain one";
            return Err(Error::new(ErrorKind::InvalidArgument, message).at(target));
        }
        let mut state = folder.open_state()?;
        // Process ids repeat between machines that share the folder: a name that is taken is
        // passed over.
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut temporary = OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".tmp-{}-{n}", std::process::id()));
            let temporary = folder.path().join(temporary);
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&temporary)
            {
                Ok(file) => {
                    state.files.insert(temporary.clone());
                    let name = Self {
                        folder: folder.clone(),
                        target,
                        temporary,
                        renamed: false,
                    };
                    return Ok((name, file));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", &temporary, error)),
            }
        }
    }

    /// The name that the file will have.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// The file, open for writing.
    pub(super) fn open(&self) -> Result<File> {
        let _state = self.folder.open_state()?;
        OpenOptions::new()
            .write(true)
            .open(&self.temporary)
            .map_err(|error| Error::io("reopen", &self.temporary, error))
    }

    /// Flushes the file's bytes to disk through any descriptor of it.
    pub(super) fn sync(&self, file: &File) -> Result<()> {
        file.sync_all()
            .map_err(|error| Error::io("flush to disk", &self.target, error))
    }

    /// Gives the file its name. One that took the place of another file is not removed any more,
    /// even if the rest of the output fails: that would leave less than there was before.
    pub(super) fn rename(mut self, replace: bool) -> Result<()> {
        let mut state = self.folder.open_state()?;
        let failed = |error| Error::io("rename the finished file to", &self.target, error);
        if replace {
            std::fs::rename(&self.temporary, &self.target).map_err(failed)?;
        } else {
            rename_new(&self.temporary, &self.target).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => exists_already(&self.target),
                _ => failed(error),
            })?;
            state.files.insert(self.target.clone());
        }
        state.files.remove(&self.temporary);
        self.renamed = true;
        Ok(())
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        // A file that is not on the list is gone already.
        if !self.renamed && self.folder.state().files.remove(&self.temporary) {
            // Nobody is left to tell, and the name says what it is.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// The error for a file that is in the way of a new one.
pub(super) fn exists_already(path: &Path) -> Error {
    Error::new(ErrorKind::InvalidArgument, "this file exists already")
        .at(path)
        .help("choose another folder, or remove the file first")
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

fn refuse_occupied(folder: &Path) -> Result<()> {
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

/// Makes a folder and those above it; adds those that did not exist to `made`.
fn make_folders(folder: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
    let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.is_dir();
    let missing: Vec<&Path> = folder.ancestors().take_while(missing).collect();
    for folder in missing.into_iter().rev() {
        match std::fs::create_dir(folder) {
            Ok(()) if made.iter().any(|known| known == folder) => {}
            Ok(()) => made.push(folder.to_owned()),
            Err(_) if folder.is_dir() => {}
            Err(error) => return Err(Error::io("make the folder", folder, error)),
        }
    }
    Ok(())
}

/// Removes the temporary files of processes that were killed. Only under the lock: nobody else is
/// writing here.
fn remove_leftovers(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && is_temporary(&entry.file_name()) {
            tracing::debug!(file = %entry.path().display(), "left behind by a killed process");
            // One that cannot be removed is in nobody's way.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a name is `.NAME.tmp-PID-N`, the form of [`TemporaryName::create`].
fn is_temporary(name: &OsStr) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parts = name
        .to_str()
        .and_then(|name| name.strip_prefix('.'))
        .and_then(|name| name.rsplit_once(".tmp-"));
    parts.is_some_and(|(name, numbers)| {
        let numbers = numbers.split_once('-');
        !name.is_empty() && numbers.is_some_and(|(pid, n)| is_number(pid) && is_number(n))
    })
}

/// Whether the open file is still the one of this name.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Elsewhere a file that is open keeps its name until it is closed.
#[cfg(not(unix))]
pub(crate) fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

pub(crate) fn has_no_locks(error: &io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::ENOLCK) {
        return true;
    }
    error.kind() == io::ErrorKind::Unsupported
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
            Err(error) if super::rename::is_unsupported(&error) => {}
            other => other.map_err(|error| Error::io("flush the folder", folder, error))?,
        }
    }
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn put(folder: &OutputFolder, name: &str) {
        let mut file = folder.file(name).unwrap();
        file.write_all(b"ours").unwrap();
        file.commit().unwrap();
    }

    #[test]
    fn a_second_writer_is_refused_and_the_first_keeps_its_files() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a/b");
        let first = OutputFolder::claim_empty(&path).unwrap();
        put(&first, "one");
        for second in [OutputFolder::claim(&path), OutputFolder::claim_empty(&path)] {
            let error = second.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert_eq!(error.path(), Some(&*path));
        }
        first.release(|_| Ok(())).unwrap();
        drop(first);
        assert_eq!(names(&path), ["one"]);
        let error = OutputFolder::claim_empty(&path).unwrap_err();
        assert!(error.to_string().contains("not empty"), "{error}");
        drop(OutputFolder::claim(&path).unwrap());
        assert_eq!(names(&path), ["one"]);
    }

    #[test]
    fn many_writers_at_once_have_one_winner() {
        let scratch = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let path = scratch.path().join(format!("{round}/out"));
            let write = || -> Result<()> {
                let folder = OutputFolder::claim_empty(&path)?;
                put(&folder, "data");
                folder.release(|_| Ok(()))
            };
            let won = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(write)).collect();
                let ended = threads.into_iter().map(|thread| thread.join().unwrap());
                ended.filter(Result::is_ok).count()
            });
            assert_eq!(won, 1);
            assert_eq!(names(&path), ["data"]);
        }
    }

    #[test]
    fn what_a_killed_process_left_is_no_obstacle_and_goes() {
        let scratch = tempfile::tempdir().unwrap();
        let kept = [".git", ".x.tmp-1", ".x.tmp-1-2a", ".tmp-1-2", ".x.tmp--2"];
        for name in kept
            .iter()
            .chain(&[OutputFolder::LOCK_NAME, ".x.json.tmp-77-0"])
        {
            std::fs::write(scratch.path().join(name), b"").unwrap();
        }
        let folder = OutputFolder::claim_empty(scratch.path()).unwrap();
        assert_eq!(names(scratch.path()).len(), kept.len() + 1);
        drop(folder);
        let mut kept = kept.to_vec();
        kept.sort_unstable();
        assert_eq!(names(scratch.path()), kept);
    }

    #[test]
    fn an_abandoned_output_takes_along_what_it_made_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("new/out");
        let folder = OutputFolder::claim(&path).unwrap();
        put(&folder, "config.json");
        let pending = folder.file("model.safetensors").unwrap();
        let others = ["tokenizer.json", ".model.safetensors.tmp-1-1"];
        for name in others {
            std::fs::write(path.join(name), b"of others").unwrap();
        }
        drop(folder.abandon());
        for error in [pending.commit().unwrap_err(), folder.file("x").unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        }
        assert_eq!(names(&path), [others[1], others[0]]);

        let path = scratch.path().join("other");
        let folder = OutputFolder::claim(&path).unwrap();
        put(&folder, "config.json");
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_of_the_same_name_is_never_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = OutputFolder::claim(scratch.path()).unwrap();
        let pending = folder.file("config.json").unwrap();
        std::fs::write(pending.target(), b"of others").unwrap();
        let error = pending.commit().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("exists already"), "{error}");
        drop(folder);
        assert_eq!(names(scratch.path()), ["config.json"]);
    }

    #[test]
    fn errors_name_the_path() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = OutputFolder::claim(scratch.path()).unwrap();
        for name in ["", "..", "a/b", "/"] {
            let error = folder.file(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        }
        let file = scratch.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert_eq!(OutputFolder::claim(&file).unwrap_err().path(), Some(&*file));
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tempfile::tempdir().unwrap();
        let plain = scratch.path().join("plain");
        std::fs::write(&plain, b"").unwrap();
        let folder = OutputFolder::claim(scratch.path()).unwrap();
        put(&folder, "ours");
        let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(scratch.path().join("ours")), mode(plain));
    }
}
