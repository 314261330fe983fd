//! A source that misbehaves on purpose, below every backend: for the tests of this library and of
//! programs on top of it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::storage::source::{Identity, Source};

/// What a faulty source answers to one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Read as usual.
    None,
    /// Deliver at most this many bytes (at least one).
    Short(usize),
    /// Fail with this kind of error.
    Error(io::ErrorKind),
    /// Fail with this error number of the operating system.
    Errno(i32),
    /// Behave as if the source ended at this offset.
    EndAt(u64),
}

/// Decides what happens to a read: its number (from 0), offset and length.
pub type Script = dyn Fn(u64, u64, usize) -> Fault + Send + Sync;

/// A source whose reads follow a script. It has no descriptor, so every backend reads it through
/// [`Source::read_at`].
pub struct FaultSource {
    inner: Arc<dyn Source>,
    script: Box<Script>,
    reads: AtomicU64,
}

impl FaultSource {
    /// Reads `inner` as `script` says.
    pub fn new(
        inner: Arc<dyn Source>,
        script: impl Fn(u64, u64, usize) -> Fault + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner,
            script: Box::new(script),
            reads: AtomicU64::new(0),
        }
    }

    /// Reads so far, failed ones included.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for FaultSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultSource")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl Source for FaultSource {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn probe(&self) -> Result<Identity> {
        self.inner.probe()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        match (self.script)(number, offset, into.len()) {
            Fault::None => self.inner.read_at(offset, into),
            Fault::Short(limit) => {
                let len = into.len().min(limit.max(1));
                self.inner.read_at(offset, &mut into[..len])
            }
            Fault::Error(kind) => Err(kind.into()),
            Fault::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            Fault::EndAt(end) => {
                let left = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
                let len = into.len().min(left);
                self.inner.read_at(offset, &mut into[..len])
            }
        }
    }
}
