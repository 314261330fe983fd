//! Where bytes come from: the one seam between the library and whatever holds a checkpoint.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::storage::local::LocalFile;

/// What makes a source the same source: if any of it differs, the file was replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Device number; 0 where the platform has none.
    pub device: u64,
    /// Inode number; 0 where the platform has none.
    pub inode: u64,
    /// Length in bytes.
    pub len: u64,
    /// Modification time in nanoseconds since the epoch; 0 where there is none.
    pub mtime_ns: i128,
}

/// A readable, addressable sequence of bytes.
pub trait Source: Send + Sync + fmt::Debug {
    /// The name for messages: the path of a local file.
    fn path(&self) -> &Path;

    /// Identity as it was when the source was opened. Everything that was validated was validated
    /// against this.
    fn identity(&self) -> Identity;

    /// Identity as it is now.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the source has gone, [`ErrorKind::Io`] otherwise.
    fn probe(&self) -> Result<Identity>;

    /// Reads at most `into.len()` bytes at `offset`; 0 means the end. Short reads are normal.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// The local file behind this source, for backends that need a descriptor.
    fn local(&self) -> Option<&LocalFile> {
        None
    }

    /// Length in bytes when the source was opened.
    fn len(&self) -> u64 {
        self.identity().len
    }

    /// Whether the source had no bytes when it was opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fails when the source is not what it was when it was opened.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`] with both sizes.
    fn check_unchanged(&self) -> Result<()> {
        let (before, now) = (self.identity(), self.probe()?);
        if before == now {
            return Ok(());
        }
        let what = if before.len != now.len {
            format!(
                "it had {} bytes when it was opened and has {} now",
                before.len, now.len
            )
        } else if (before.device, before.inode) != (now.device, now.inode) {
            "another file has taken its place".to_owned()
        } else {
            "its modification time is another".to_owned()
        };
        Err(Error::new(
            ErrorKind::SourceChanged,
            format!("the file changed during the load: {what}"),
        )
        .at(self.path())
        .help("load again when nothing writes to it"))
    }
}

/// Reads exactly `into.len()` bytes at `offset`, continuing short reads and retrying EINTR and EAGAIN.
///
/// # Errors
/// [`ErrorKind::Truncated`] with declared and real numbers when the source ends early,
/// [`ErrorKind::Io`] when reading fails.
pub fn read_exact_at(source: &dyn Source, offset: u64, into: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < into.len() {
        match source.read_at(offset + done as u64, &mut into[done..]) {
            Ok(0) => {
                return Err(truncated(
                    source,
                    offset + into.len() as u64,
                    offset + done as u64,
                ));
            }
            Ok(n) => done += n,
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                // That another file has its name says more than what became of the read.
                source.check_unchanged()?;
                return Err(Error::io("read", source.path(), error));
            }
        }
    }
    Ok(())
}

/// The error for a source that ends at `end` although bytes up to `needed` were promised.
pub(crate) fn truncated(source: &dyn Source, needed: u64, end: u64) -> Error {
    Error::new(
        ErrorKind::Truncated,
        format!(
            "the file ends at byte {end}, but {needed} bytes are needed ({} when it was opened)",
            source.len()
        ),
    )
    .at(source.path())
    .help("the file was cut short; fetch or copy it again")
}

/// Whether a failed read is to be tried again as it is.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

/// Bytes in memory, for tests, doc examples and checkpoints that never were files.
#[derive(Debug, Clone)]
pub struct MemorySource {
    name: PathBuf,
    bytes: Arc<[u8]>,
}

impl MemorySource {
    /// A source called `name` that holds `bytes`.
    pub fn new(name: impl Into<PathBuf>, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self {
            name: name.into(),
            bytes: bytes.into(),
        }
    }
}

impl Source for MemorySource {
    fn path(&self) -> &Path {
        &self.name
    }

    fn identity(&self) -> Identity {
        Identity {
            device: 0,
            inode: 0,
            len: self.bytes.len() as u64,
            mtime_ns: 0,
        }
    }

    fn probe(&self) -> Result<Identity> {
        Ok(self.identity())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.bytes.len());
        let count = into.len().min(self.bytes.len() - from);
        into[..count].copy_from_slice(&self.bytes[from..from + count]);
        Ok(count)
    }
}
