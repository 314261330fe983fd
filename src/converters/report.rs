//! Files of reports, manifests and traces, beside whatever else a folder has: what is no report of ours
//! is not replaced. That is found out before the work.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::names::is_companion;
use super::single_file::SingleFile;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::text;
use crate::trace::Trace;

/// Bytes by which files of ours are known.
const HEAD_BYTES: u64 = 256;

impl SingleFile {
    /// As [`at`](Self::at), for a report: a file that is there and has another beginning than `is_ours`
    /// knows is not replaced; an empty one holds nothing that could be lost. `what` is what reports of
    /// this kind are called, as "manifest".
    ///
    /// # Errors
    /// As [`at`](Self::at); [`ErrorKind::InvalidArgument`] for a file of somebody else.
    pub fn for_report(
        path: impl Into<PathBuf>,
        what: &str,
        is_ours: fn(&[u8]) -> bool,
    ) -> Result<Self> {
        let file = Self::at(path)?;
        let Some(target) = file.target().filter(|target| target.exists()) else {
            return Ok(file);
        };
        let mut head = Vec::new();
        let opened = File::open(target).map_err(|error| Error::io("open", target, error))?;
        opened
            .take(HEAD_BYTES)
            .read_to_end(&mut head)
            .map_err(|error| Error::io("read", target, error))?;
        if head.is_empty() || is_ours(&head) {
            return Ok(file);
        }
        let message = format!("this file is no {what}, and would be replaced by one");
        Err(Error::new(ErrorKind::InvalidArgument, message)
            .at(target)
            .help("choose another name, or remove the file first if nothing needs it"))
    }

    /// Refuses to replace a file of the checkpoint that is about to be read: its weights, its indexes
    /// and everything beside them that has a name, but reports.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] with the file.
    pub fn refuse_part_of(&self, checkpoint: &Checkpoint) -> Result<()> {
        let Some(target) = self.target() else {
            return Ok(());
        };
        let sources = checkpoint.sources().iter();
        let mut parts: Vec<PathBuf> = sources.map(|source| source.path().to_owned()).collect();
        if let Ok(entries) = std::fs::read_dir(checkpoint.root()) {
            let names = entries.flatten().map(|entry| entry.path());
            parts.extend(names.filter(|path| !is_report(path)));
        }
        let Some(part) = parts.into_iter().find(|part| is_same(part, target)) else {
            return Ok(());
        };
        let message = format!(
            "this is a file of the checkpoint itself ({})",
            text::path(&part)
        );
        Err(Error::new(ErrorKind::InvalidArgument, message)
            .at(target)
            .help("choose another name"))
    }
}

/// Whether a file in the folder of a checkpoint is one of our own reports, which may be renewed, or
/// an empty one, unless its name is that of a part: an empty `merges.txt` says something, too.
fn is_report(path: &Path) -> bool {
    // To open a pipe would wait for somebody who writes into it.
    if !path.is_file() {
        return false;
    }
    let mut head = Vec::new();
    let read = File::open(path).map(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_empty = head.is_empty() && !is_companion(&name);
    matches!(read, Ok(Ok(_))) && (is_empty || is_manifest(&head) || Trace::is_begun_by(&head))
}

#[cfg(feature = "digest")]
fn is_manifest(head: &[u8]) -> bool {
    crate::integrity::Manifest::is_begun_by(head)
}

#[cfg(not(feature = "digest"))]
fn is_manifest(_: &[u8]) -> bool {
    false
}

/// Whether both are one file, whatever their names.
fn is_same(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        if let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) {
            return (a.dev(), a.ino()) == (b.dev(), b.ino());
        }
    }
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
