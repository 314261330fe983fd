//! What downloads tell while they run.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// What happens during a download. Sent from the thread of the call, often; a listener that takes
/// its time holds the download up.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// So many files are not here yet, with so many bytes, of which some are here from before.
    Planned {
        /// Files that are not complete.
        files: u64,
        /// Their sizes together, in bytes.
        bytes: u64,
        /// Bytes of them that an earlier download has left.
        present: u64,
    },
    /// Bytes of a file have come, and are written in their turn.
    Advanced {
        /// Of the file, in the repository.
        path: &'a str,
        /// How many came just now.
        bytes: u64,
    },
    /// A file is begun anew: what was there of it does not count.
    Restarted {
        /// Of the file, in the repository.
        path: &'a str,
        /// How many bytes do not count any more.
        bytes: u64,
    },
    /// Another process downloads this file; it is waited for.
    Waiting {
        /// Of the file, in the repository.
        path: &'a str,
        /// The lock that it holds.
        lock: &'a Path,
    },
    /// A file is complete and checked.
    Finished {
        /// Of the file, in the repository.
        path: &'a str,
    },
}

/// Who is told about events.
#[derive(Clone)]
pub(super) struct Reporter(pub(super) Arc<dyn Fn(Event<'_>) + Send + Sync>);

impl Reporter {
    pub(super) fn tell(&self, event: Event<'_>) {
        (self.0)(event);
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter(..)")
    }
}
