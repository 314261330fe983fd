//! What holds a file.

use serde::Serialize;

/// The filesystem name where none could be told.
pub(super) const UNKNOWN: &str = "unknown";

/// What `O_DIRECT` reads must be aligned to, in bytes: powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct DirectAlign {
    /// Alignment of the address in memory.
    pub memory: u32,
    /// Alignment of the offset in the file and of the length.
    pub offset: u32,
}
