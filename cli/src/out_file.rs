//! A file that an option names to be written: `-` is the standard output, and what is no file of
//! ours is not replaced. All of it is found out before the work.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use tensora::converters::SingleFile;
use tensora::{Checkpoint, Error, ErrorKind, Result, text};

/// Bytes by which files of ours are known.
const HEAD_BYTES: u64 = 256;

/// Tries whether `path` can be written, and refuses to replace a file with another beginning than
/// `is_ours` knows; an empty one holds nothing that could be lost. `what` is "manifest" or "trace".
pub fn open(path: &Path, what: &str, is_ours: fn(&[u8]) -> bool) -> Result<SingleFile> {
    let file = SingleFile::at(path)?;
    let target = file.target().filter(|target| target.exists());
    let Some(target) = target else {
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
/// and everything beside them that has a name.
pub fn refuse_part_of(file: &SingleFile, checkpoint: &Checkpoint) -> Result<()> {
    let Some(target) = file.target() else {
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
    let is_empty = head.is_empty() && !tensora::converters::is_companion(&name);
    matches!(read, Ok(Ok(_)))
        && (is_empty
            || tensora::integrity::Manifest::is_begun_by(&head)
            || tensora::Trace::is_begun_by(&head))
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
