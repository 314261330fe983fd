//! Files that have no name yet: temporary names beside their places, and the renames.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::OutputFolder;
use crate::converters::rename::rename_new;
use crate::error::{Error, ErrorKind, Result};

/// A file of an output that has no name yet. Dropping it removes it; [`commit`](Self::commit) gives
/// it its name.
#[derive(Debug)]
pub struct PendingFile {
    file: File,
    name: TemporaryName,
}

impl PendingFile {
    pub(super) fn create(folder: &OutputFolder, name: &OsStr) -> Result<Self> {
        let (name, file) = TemporaryName::create(folder, name)?;
        Ok(Self { file, name })
    }

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
        self.commit_as(false)
    }

    /// As [`commit`](Self::commit), and takes the place of a file that has the name.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Cancelled`]; what had the name still has it then.
    pub fn commit_over(self) -> Result<()> {
        self.commit_as(true)
    }

    fn commit_as(self, replace: bool) -> Result<()> {
        self.name.sync(&self.file)?;
        drop(self.file);
        let folder = self.name.folder.clone();
        self.name.rename(replace)?;
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
pub(in crate::converters) struct TemporaryName {
    folder: OutputFolder,
    target: PathBuf,
    temporary: PathBuf,
    renamed: bool,
}

impl TemporaryName {
    /// An empty file under a fresh name, `.NAME.tmp-PID-N`.
    pub(in crate::converters) fn create(
        folder: &OutputFolder,
        name: &OsStr,
    ) -> Result<(Self, File)> {
        let target = folder.path().join(name);
        if Path::new(name).file_name() != Some(name) {
            let message = "the name of a file in this folder is not a plain one";
            return Err(Error::new(ErrorKind::InvalidArgument, message).at(target));
        }
        let mut state = folder.open_state()?;
        let (temporary, file) = create_temporary(folder.path(), name)?;
        state.made.add_file(temporary.clone());
        let name = Self {
            folder: folder.clone(),
            target,
            temporary,
            renamed: false,
        };
        Ok((name, file))
    }

    /// The name that the file will have.
    pub(in crate::converters) fn target(&self) -> &Path {
        &self.target
    }

    /// The file, open for writing.
    pub(in crate::converters) fn open(&self) -> Result<File> {
        let _state = self.folder.open_state()?;
        OpenOptions::new()
            .write(true)
            .open(&self.temporary)
            .map_err(|error| Error::io("reopen", &self.temporary, error))
    }

    /// Flushes the file's bytes to disk through any descriptor of it.
    pub(in crate::converters) fn sync(&self, file: &File) -> Result<()> {
        file.sync_all()
            .map_err(|error| Error::io("flush to disk", &self.target, error))
    }

    /// Gives the file its name. One that took the place of another file is not removed any more,
    /// even if the rest of the output fails: that would leave less than there was before.
    pub(in crate::converters) fn rename(mut self, replace: bool) -> Result<()> {
        let mut state = self.folder.open_state()?;
        let failed = |error| Error::io("rename the finished file to", &self.target, error);
        if replace {
            std::fs::rename(&self.temporary, &self.target).map_err(failed)?;
        } else {
            rename_new(&self.temporary, &self.target).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => exists_already(&self.target),
                _ => failed(error),
            })?;
            state.made.add_file(self.target.clone());
        }
        state.made.forget_file(&self.temporary);
        self.renamed = true;
        Ok(())
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        // A file that is not on the list is gone already.
        if !self.renamed && self.folder.state().made.forget_file(&self.temporary) {
            // Nobody is left to tell, and the name says what it is.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Bytes of a name that its temporary name keeps: with two numbers of at most 10 and 20 digits, and
/// what stands between, a name stays within the 255 bytes that file systems allow.
const KEPT: usize = 218;

/// An empty file in `folder` under a fresh name, `.NAME.tmp-PID-N`.
pub(in crate::converters) fn create_temporary(
    folder: &Path,
    name: &OsStr,
) -> Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let kept = kept(name);
    // Process ids repeat between machines that share the folder: a name that is taken is passed
    // over.
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut temporary = OsString::from(".");
        temporary.push(&kept);
        temporary.push(format!(".tmp-{}-{n}", std::process::id()));
        let temporary = folder.join(temporary);
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(Error::io("create a file beside", &folder.join(name), error));
            }
        }
    }
}

/// As much of a name's end as a temporary name has room for: what it ends with tells whose it is.
fn kept(name: &OsStr) -> Cow<'_, OsStr> {
    if name.len() <= KEPT {
        return name.into();
    }
    let text = name.to_string_lossy();
    let from = text.ceil_char_boundary(text.len() - KEPT);
    OsString::from(&text[from..]).into()
}

/// The error for a file that is in the way of a new one.
pub(in crate::converters) fn exists_already(path: &Path) -> Error {
    Error::new(ErrorKind::InvalidArgument, "this file exists already")
        .at(path)
        .help("choose another folder, or remove the file first")
}
