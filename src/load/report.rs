//! What a load did.

use std::time::Duration;

use serde::Serialize;

use crate::policy::Decision;

/// Figures of a finished load, or of a stream so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadReport {
    /// Who read, and why.
    pub decision: Decision,
    /// Tensors of the selection.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the start of reading to the first finished tensor.
    pub first_tensor: Option<Duration>,
    /// From the start of reading to the last.
    pub elapsed: Duration,
    /// Reads that were answered.
    pub reads: u64,
    /// Bytes that these brought.
    pub read_bytes: u64,
    /// Of these, around the page cache.
    pub direct_bytes: u64,
    /// Bytes that were mapped instead of read.
    pub mapped_bytes: u64,
    /// Bytes that were copied once more, from a staging buffer.
    pub staged_bytes: u64,
    /// Direct reads that were refused and went through the page cache instead.
    pub direct_refusals: u64,
}
