//! Observing again and again, without asking again for what stays as it is.

use std::sync::{Arc, OnceLock};

use super::{Facts, IoUringAvailability, probe_io_uring};
use crate::storage::Source;

/// Observes the machine and sources, and keeps what does not change while a process runs: whether
/// io_uring can be used, what mounted filesystems lie on, where the cgroup's limits stand. What
/// changes is asked for each time: memory, the setting of huge pages, the page cache.
///
/// A filesystem that is unmounted and whose numbers are given to another one keeps its first
/// description: reads are then perhaps planned less well, and are right all the same.
#[derive(Debug, Default)]
pub struct Observer {
    io_uring: OnceLock<IoUringAvailability>,
    #[cfg(target_os = "linux")]
    kept: linux::Kept,
}

impl Observer {
    /// Whether io_uring can be used; finding out costs a ring.
    pub fn io_uring(&self) -> IoUringAvailability {
        self.io_uring
            .get_or_init(|| probe_io_uring().into())
            .clone()
    }

    /// Observes this machine and, of each source, the parts that will be read.
    ///
    /// `ranges` are (index into `sources`, offset, length in bytes), in any order; they are clamped
    /// to the sources. No page is faulted in and no content is read. Costs some microseconds per
    /// source once its filesystem is known, up to 4 ms for each GiB in the page cache, and some
    /// 50 ms more for a file whose cached pages are scattered.
    pub fn observe(&self, sources: &[Arc<dyn Source>], ranges: &[(u32, u64, u64)]) -> Facts {
        #[cfg(target_os = "linux")]
        return linux::observe(&self.kept, self.io_uring(), sources, ranges);
        #[cfg(not(target_os = "linux"))]
        return {
            let _ = ranges;
            let unknown = |source: &Arc<dyn Source>| super::SourceFacts {
                local: source.local().is_some(),
                ..super::SourceFacts::unknown(source.len())
            };
            Facts {
                cores: super::cores(),
                huge_pages: super::HugePages::Unknown,
                memory: super::MemoryFacts::default(),
                io_uring: self.io_uring(),
                sources: sources.iter().map(unknown).collect(),
            }
        };
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ops::Range;
    use std::sync::{Arc, OnceLock};

    use crate::facts::cgroup::{self, Hierarchy};
    use crate::facts::mounts::Mounts;
    use crate::facts::storage::{self, Places};
    use crate::facts::{Facts, HugePages, IoUringAvailability, MemoryFacts, cores};
    use crate::storage::Source;

    #[derive(Debug, Default)]
    pub struct Kept {
        cgroups: OnceLock<Vec<Hierarchy>>,
        places: Places,
    }

    pub fn observe(
        kept: &Kept,
        io_uring: IoUringAvailability,
        sources: &[Arc<dyn Source>],
        ranges: &[(u32, u64, u64)],
    ) -> Facts {
        let mut wanted: Vec<Vec<Range<u64>>> = vec![Vec::new(); sources.len()];
        for &(source, offset, len) in ranges {
            if let Some(wanted) = wanted.get_mut(source as usize) {
                wanted.push(offset..offset.saturating_add(len));
            }
        }
        let mounts = OnceLock::new();
        let mounts = || mounts.get_or_init(Mounts::read);
        let cgroups = kept.cgroups.get_or_init(|| {
            let ours = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            cgroup::hierarchies(&ours, mounts())
        });
        Facts {
            cores: cores(),
            huge_pages: HugePages::probe(),
            memory: MemoryFacts::probe(cgroups),
            io_uring,
            sources: sources
                .iter()
                .zip(&wanted)
                .map(|(source, wanted)| {
                    storage::probe(source.as_ref(), wanted, &kept.places, mounts)
                })
                .collect(),
        }
    }
}
