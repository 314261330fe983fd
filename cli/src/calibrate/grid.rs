//! The settings that are measured.

use std::fmt;

use serde::Serialize;
use tensora::{AccessMode, BackendKind, Preset, Settings};

use crate::size;
use crate::spread::Spread;

const MIB: u64 = 1 << 20;

/// A way to read, of which a setting is one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Threads, around the page cache.
    DirectThreads,
    /// One ring, around the page cache.
    DirectRing,
    /// Threads that fill the page cache from the disk.
    ReadAhead,
    /// Threads that copy from the page cache.
    Copies,
}

impl Way {
    /// In the order of tables.
    pub const ALL: [Self; 4] = [
        Self::DirectThreads,
        Self::DirectRing,
        Self::ReadAhead,
        Self::Copies,
    ];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::DirectThreads => "disk, direct, threads",
            Self::DirectRing => "disk, direct, ring",
            Self::ReadAhead => "disk, page cache, threads",
            Self::Copies => "page cache, threads",
        })
    }
}

/// One point of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub way: Way,
    /// Threads, or reads in flight on the ring.
    pub count: usize,
    pub chunk_bytes: u64,
}

impl Setting {
    /// What a load is given to read in this way.
    pub fn settings(&self) -> Settings {
        let (backend, workers, queue_depth) = match self.way {
            Way::DirectRing => (BackendKind::IoUring, 1, Some(self.count)),
            _ => (BackendKind::Sync, self.count, None),
        };
        Settings {
            backend,
            workers: Some(workers),
            queue_depth,
            chunk_bytes: Some(self.chunk_bytes),
            access: match self.way {
                Way::DirectThreads | Way::DirectRing => AccessMode::Direct,
                Way::ReadAhead | Way::Copies => AccessMode::Buffered,
            },
            ..Settings::default()
        }
    }

    /// What the built-in constants come to.
    pub fn built_in(way: Way, cores: usize) -> Self {
        let preset = Preset::default();
        let (count, chunk_bytes) = match way {
            Way::DirectThreads => (preset.direct_workers, preset.direct_chunk),
            Way::DirectRing => (preset.ring_depth, preset.direct_chunk),
            Way::ReadAhead => (preset.read_ahead_workers, preset.buffered_chunk),
            Way::Copies => (preset.copy_workers.min(cores), preset.buffered_chunk),
        };
        Self {
            way,
            count,
            chunk_bytes,
        }
    }

    /// Smaller settings have fewer bytes in flight, in fewer reads.
    pub fn weight(&self) -> (u64, usize) {
        (self.count as u64 * self.chunk_bytes, self.count)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.count, size::bytes(self.chunk_bytes))
    }
}

/// A setting and how fast it was.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    #[serde(flatten)]
    pub setting: Setting,
    pub repetitions: usize,
    pub gib_per_s: Spread,
}

impl Measured {
    /// `None` for a setting that was not measured at all.
    pub fn new(setting: Setting, rates: &[f64]) -> Option<Self> {
        Some(Self {
            setting,
            repetitions: rates.len(),
            gib_per_s: Spread::of(rates.iter().copied())?,
        })
    }
}

/// Threads around the page cache. The chunks are those of the ring: the two share a constant.
pub fn direct_threads() -> Vec<Setting> {
    grid(Way::DirectThreads, &[8, 4, 16], &[2, 1, 4, 8])
}

/// Reads in flight on a ring. One ring keeps any one device busy.
pub fn direct_ring() -> Vec<Setting> {
    grid(Way::DirectRing, &[16, 4, 8, 32], &[2, 1, 4, 8])
}

/// Threads that leave the read-ahead to the kernel, or disturb it.
pub fn read_ahead() -> Vec<Setting> {
    grid(Way::ReadAhead, &[1, 2, 4, 8], &[8])
}

/// Copying threads: powers of two up to the cores, and all cores.
pub fn copies(cores: usize) -> Vec<Setting> {
    let most = cores.min(Preset::default().copy_workers);
    let mut counts = vec![most];
    counts.extend(
        (0..)
            .map(|power| 1 << power)
            .take_while(|&count| count < most),
    );
    grid(Way::Copies, &counts, &[8, 2, 4, 16])
}

/// The built-in setting comes first: where time is short it is still measured.
fn grid(way: Way, counts: &[usize], chunks_mib: &[u64]) -> Vec<Setting> {
    let point = |count, chunk| Setting {
        way,
        count,
        chunk_bytes: chunk * MIB,
    };
    counts
        .iter()
        .flat_map(|&count| chunks_mib.iter().map(move |&chunk| point(count, chunk)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_grid_begins_with_the_built_in_setting() {
        for cores in [1, 2, 6, 64] {
            for settings in [direct_threads(), direct_ring(), read_ahead(), copies(cores)] {
                assert_eq!(settings[0], Setting::built_in(settings[0].way, cores));
                let distinct = |(at, setting)| !settings[..at].contains(setting);
                assert!(settings.iter().enumerate().all(distinct));
            }
        }
        let counts = |cores| {
            let mut counts: Vec<usize> = copies(cores).iter().map(|s| s.count).collect();
            counts.sort_unstable();
            counts.dedup();
            counts
        };
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(counts(64), [1, 2, 4, 8, 16]);
    }
}
