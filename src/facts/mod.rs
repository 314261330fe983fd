//! What this machine is like: the one room where it is probed.
//!
//! Everything here is an observation, never a decision: [`Facts`] goes as data into the pure stages
//! that choose backends and lay out reads, and is printed with their explanations. An observation
//! that cannot be made is "unknown" and never an error: the load itself reports what really fails.

pub mod process;

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(unix)]
mod ffi;
#[cfg(target_os = "linux")]
mod filesystems;
mod memory;
#[cfg(target_os = "linux")]
pub(crate) mod mounts;
mod observer;
#[cfg(target_os = "linux")]
mod page_cache;
#[cfg(target_os = "linux")]
mod procfs;
mod residency;
mod storage;
mod uring;

use std::sync::Arc;

use serde::Serialize;

pub use memory::{HugePages, MemoryFacts};
pub use observer::Observer;
pub use residency::Residency;
pub use storage::{DirectAlign, free_bytes};
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

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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
    /// Whether the disk below says that it turns; `None` where there is no one disk or it does not
    /// say. Virtual disks often say yes whatever they are.
    pub rotational: Option<bool>,
    /// What the filesystem lies on: the kernel's name of the disk or partition (`nvme0n1p1`,
    /// `vda`), else what the mount table says was mounted (`server:/export`).
    pub device: Option<String>,
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
            device: None,
            direct: None,
            residency: Residency::unknown(len),
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

    /// Observes this machine and, of each source, the parts that will be read, with an
    /// [`Observer`] that is used only once.
    pub fn probe(sources: &[Arc<dyn Source>], ranges: &[(u32, u64, u64)]) -> Self {
        Observer::default().observe(sources, ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{DescriptorCache, LocalFile, MemorySource};

    #[test]
    fn neutral_facts_know_nothing() {
        let facts = Facts::neutral(3);
        assert_eq!(facts, Facts::neutral(3));
        assert_eq!(facts.sources.len(), 3);
        assert_eq!(facts.cores, 2);
        for source in &facts.sources {
            assert_eq!(source.direct, None);
            assert_eq!(source.residency.resident_bytes(0..u64::MAX), 0);
        }
        assert!(!SourceFacts::unknown(9).residency.is_known());
        let json = serde_json::to_value(&facts).unwrap();
        assert_eq!(json["huge_pages"], "unknown");
        assert_eq!(json["io_uring"]["reason"], "not-compiled");
    }

    #[test]
    fn probing_answers_for_every_source_and_ignores_senseless_ranges() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 300_000]).unwrap();
        let cache = Arc::new(DescriptorCache::new(2));
        let sources: Vec<Arc<dyn Source>> = vec![
            Arc::new(MemorySource::new("memory", vec![0; 100])),
            Arc::new(LocalFile::open(file.path(), &cache).unwrap()),
        ];
        let ranges = [
            (1, 100_000, 50_000),
            (0, 0, 100),
            (7, 0, 1),
            (1, u64::MAX, u64::MAX),
            (1, 299_999, u64::MAX),
        ];
        let facts = Facts::probe(&sources, &ranges);
        assert!(facts.cores >= 1);
        assert_eq!(facts.sources.len(), 2);
        assert_eq!(facts.sources[0], SourceFacts::unknown(100));
        // Just written: in the page cache, or nobody knows and it counts as such.
        let residency = &facts.sources[1].residency;
        assert_eq!(residency.resident_bytes(100_000..150_000), 50_000);
        assert_eq!(residency.resident_bytes(299_999..300_000), 1);
        let observer = Observer::default();
        for time in ["first", "again"] {
            let kept = observer.observe(&sources, &ranges);
            assert_eq!(kept.io_uring, facts.io_uring, "{time}");
            assert_eq!(kept.sources, facts.sources, "{time}");
        }
        if cfg!(target_os = "linux") {
            assert!(facts.memory.total_bytes > Some(0));
            assert!(facts.memory.headroom_bytes() <= facts.memory.total_bytes);
        }
    }
}
