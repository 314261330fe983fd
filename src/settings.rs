//! What a caller may ask of a load. Everything has a default that is chosen, not guessed.

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::storage::BackendKind;
use crate::text::ByteSize;

/// Which way reads go to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// Resident ranges through the page cache, absent ranges around it where the file allows.
    #[default]
    Auto,
    /// Everything through the page cache.
    Buffered,
    /// Everything around the page cache where the file allows; what does not allow it is buffered.
    Direct,
}

/// In which order a stream hands tensors out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// As their reads complete, which follows the order in the files: the fast way.
    #[default]
    Arrival,
    /// Sorted by name, byte by byte. Reads follow this order too, so that a budget holds.
    Name,
}

/// Settings of a load.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Settings {
    /// Who reads. An explicit choice that cannot run is an error; `Default` always can.
    pub backend: BackendKind,
    /// Page cache or not.
    pub access: AccessMode,
    /// Threads (sync, async) or rings (io-uring). At least 1.
    pub workers: Option<usize>,
    /// Reads in flight for each ring. At least 1.
    pub queue_depth: Option<usize>,
    /// Largest single read in bytes. Between 4 KiB and 1 GiB.
    pub chunk_bytes: Option<u64>,
    /// Bytes that a stream may hold in flight and undelivered; one larger tensor is let through
    /// alone. `None`: no limit.
    pub budget: Option<u64>,
    /// Alignment in bytes of every tensor's address, a power of two of at most 4096. Without it a
    /// tensor is aligned to its element size. More than the file gives costs a copy.
    pub align: Option<u64>,
    /// Order of a stream.
    pub order: Order,
}

impl Settings {
    /// The smallest and the largest `chunk_bytes`. One read moves at most 0x7ffff000 bytes on
    /// Linux, so 1 GiB is safely one read.
    pub const CHUNK_RANGE: std::ops::RangeInclusive<u64> = 4096..=1 << 30;

    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        if self.workers == Some(0) || self.workers.is_some_and(|n| n > 1024) {
            return bad(format!(
                "workers must be 1 to 1024, not {}",
                self.workers.unwrap_or(0)
            ));
        }
        if self.queue_depth == Some(0) || self.queue_depth.is_some_and(|n| n > 4096) {
            return bad(format!(
                "queue depth must be 1 to 4096, not {}",
                self.queue_depth.unwrap_or(0)
            ));
        }
        if let Some(chunk) = self
            .chunk_bytes
            .filter(|chunk| !Self::CHUNK_RANGE.contains(chunk))
        {
            return bad(format!(
                "chunk must be {} to {}, not {chunk} bytes",
                ByteSize(*Self::CHUNK_RANGE.start()),
                ByteSize(*Self::CHUNK_RANGE.end())
            ));
        }
        if self.budget == Some(0) {
            return bad("a budget of 0 bytes lets nothing through".to_owned());
        }
        if let Some(align) = self
            .align
            .filter(|align| !align.is_power_of_two() || *align > 4096)
        {
            return bad(format!(
                "alignment must be a power of two of at most 4096, not {align}"
            ));
        }
        Ok(())
    }
}
