//! Files that appear under their name only when they are complete and on disk.
//!
//! A temporary file lies beside its target, so that the rename stays within one file system, and is
//! made with the usual permissions (the process's umask decides): a file that only its writer can
//! read is no use to the server that loads it. The target is replaced by renaming, never written
//! to: a reader that still has the old file mapped keeps the old bytes.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// A file under a temporary name. Dropping it removes it; [`commit`](Self::commit) gives it its name.
///
/// A target that is a symbolic link is replaced itself; what it points to stays as it is.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    name: TemporaryName,
}

impl AtomicFile {
    /// Makes an empty temporary file beside `target`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when `target` has no file name, [`ErrorKind::NotFound`] when
    /// its folder does not exist, [`ErrorKind::Io`] when the file cannot be made.
    pub fn create(target: impl Into<PathBuf>) -> Result<Self> {
        let (name, file) = TemporaryName::create(target.into())?;
        Ok(Self { file, name })
    }

    /// Flushes the file to disk, gives it its name, and flushes the folder.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; the temporary file is gone then, and the target is as it was.
    pub fn commit(self) -> Result<()> {
        sync(&self.file, &self.name.temporary)?;
        drop(self.file);
        let folder = folder_of(&self.name.target);
        self.name.rename()?;
        sync_folder(&folder)
    }

    /// Writes `bytes` as the whole of `target`.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`commit`](Self::commit).
    pub fn replace(target: impl Into<PathBuf>, bytes: &[u8]) -> Result<()> {
        let mut file = Self::create(target)?;
        file.write_all(bytes)
            .map_err(|error| Error::io("write", &file.name.target, error))?;
        file.commit()
    }
}

impl Write for AtomicFile {
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
    target: PathBuf,
    temporary: PathBuf,
    renamed: bool,
}

impl TemporaryName {
    /// An empty file under a fresh name, `.NAME.tmp-PID-N`, beside `target`.
    pub(super) fn create(target: PathBuf) -> Result<(Self, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(name) = target.file_name() else {
            return Err(
                Error::new(ErrorKind::InvalidArgument, "this path has no file name").at(target),
            );
        };
        // Process ids repeat between machines that share the folder: a name that is taken is passed over.
        loop {
            let mut temporary = OsString::from(".");
            temporary.push(name);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            temporary.push(format!(".tmp-{}-{n}", std::process::id()));
            let temporary = target.with_file_name(temporary);
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&temporary)
            {
                Ok(file) => {
                    let name = Self {
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
        OpenOptions::new()
            .write(true)
            .open(&self.temporary)
            .map_err(|error| Error::io("reopen", &self.temporary, error))
    }

    /// Flushes the file's bytes to disk through any descriptor of it.
    pub(super) fn sync(&self, file: &File) -> Result<()> {
        sync(file, &self.target)
    }

    /// Gives the file its name, replacing what has it.
    pub(super) fn rename(mut self) -> Result<()> {
        std::fs::rename(&self.temporary, &self.target)
            .map_err(|error| Error::io("rename the finished file to", &self.target, error))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        if !self.renamed {
            // Nobody is left to tell, and the name says what it is.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// The folder that a path lies in; `.` for a bare name.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes renames within `folder` durable. Only Unix can: elsewhere this does nothing.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        let file = File::open(folder).map_err(|error| Error::io("open", folder, error))?;
        match file.sync_all() {
            // Some network and FUSE file systems cannot flush a folder, and say so in this way.
            Err(error) if is_unsupported(&error) => {}
            other => other.map_err(|error| Error::io("flush the folder", folder, error))?,
        }
    }
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

fn sync(file: &File, path: &Path) -> Result<()> {
    file.sync_all()
        .map_err(|error| Error::io("flush to disk", path, error))
}

#[cfg(unix)]
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOTSUP | libc::ENOSYS)
    )
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

    #[test]
    fn the_target_appears_at_commit_and_a_dropped_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model.safetensors");
        std::fs::write(&target, b"old").unwrap();
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        let temporary = &names(folder.path())[0];
        let expected = format!(".model.safetensors.tmp-{}-", std::process::id());
        assert!(temporary.starts_with(&expected), "{temporary}");
        file.commit().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        drop(AtomicFile::create(&target).unwrap());
        assert_eq!(names(folder.path()), ["model.safetensors"]);
    }

    #[test]
    fn errors_name_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let error = AtomicFile::create(folder.path().join("no/such")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(
            AtomicFile::create("/").unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        // A folder in the target's place: the rename fails and the temporary file goes.
        std::fs::create_dir(folder.path().join("taken")).unwrap();
        let error = AtomicFile::replace(folder.path().join("taken"), b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_any_new_file_and_a_link_is_replaced() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, b"").unwrap();
        let link = folder.path().join("link");
        symlink("plain", &link).unwrap();
        AtomicFile::replace(&link, b"x").unwrap();
        let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&link), mode(&plain));
        assert_eq!(std::fs::read(&plain).unwrap(), b"");
        assert!(!std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
