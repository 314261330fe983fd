//! The constants of the policy, each with the measurement that it comes from.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::settings::Settings;

/// Constants of the policy. The built-in ones come from a machine with 2 cores and a virtual disk
/// of 3.65 GB/s; `tensora calibrate` measures others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Below this many bytes a load is over before a second worker has started. 0.3 ms at the
    /// 10 GB/s that one warm thread copies, about the cost of starting a few threads.
    pub small_bytes: u64,
    /// io_uring wins over threads when at least this much is absent from the page cache: it
    /// reaches the disk's limit with a tenth of the CPU time (0.007 against 0.065 s/GB).
    pub uring_bytes: u64,
    /// Whether a ring keeps up with threads on this storage. Here it did: 3.4 to 3.6 GB/s against
    /// 3.4 to 3.5.
    pub ring_pays: bool,
    /// Read size around the page cache: 2 to 4 MiB with 16 to 32 MiB in flight reached 3.3 to
    /// 3.6 GB/s of 3.65.
    pub direct_chunk: u64,
    /// Reads around the page cache that threads keep in flight: 8 reached 3.4 GB/s, 4 reached 3.3.
    pub direct_workers: usize,
    /// Reads in flight on a ring.
    pub ring_depth: usize,
    /// Read size through the page cache: 4 to 16 MiB copied at 17 to 23 GB/s on two cores.
    pub buffered_chunk: u64,
    /// Threads, or rings, that copy from the page cache, at most; never more than there are cores.
    /// Two cores scaled by 1.7. That 16 fill the memory bus of any socket is a guess on the safe
    /// side: starting more threads costs more than it can gain.
    pub copy_workers: usize,
    /// Threads that read absent bytes through the page cache where there is no way around it. The
    /// kernel's read-ahead brought 3.3 GB/s to one thread, and 2 GB/s to several that disturb it.
    pub read_ahead_workers: usize,
    /// Streams on a network file system. Not measured: one stream waits for every answer, so this
    /// many hide a round trip.
    pub network_workers: usize,
    /// Read size on a network file system, around the page cache. Not measured: protocols cut
    /// reads at about 1 MiB, and several of those should be on their way for each thread.
    pub network_chunk: u64,
    /// Resident stretches smaller than this inside an absent one are read with it.
    pub island_bytes: u64,
}

impl Default for Preset {
    fn default() -> Self {
        Self {
            small_bytes: 4 << 20,
            uring_bytes: 64 << 20,
            ring_pays: true,
            direct_chunk: 2 << 20,
            direct_workers: 8,
            ring_depth: 16,
            buffered_chunk: 8 << 20,
            copy_workers: 16,
            read_ahead_workers: 1,
            network_workers: 16,
            network_chunk: 8 << 20,
            island_bytes: 1 << 20,
        }
    }
}

impl Preset {
    /// Refuses numbers that a load could not, or should never, use.
    pub(super) fn check(&self) -> Result<()> {
        const BYTES: RangeInclusive<u64> = 0..=1 << 40;
        const COUNT: RangeInclusive<u64> = 1..=1024;
        let numbers = [
            ("small_bytes", self.small_bytes, BYTES),
            ("uring_bytes", self.uring_bytes, BYTES),
            ("direct_chunk", self.direct_chunk, Settings::CHUNK_RANGE),
            ("direct_workers", self.direct_workers as u64, COUNT),
            ("ring_depth", self.ring_depth as u64, 1..=4096),
            ("buffered_chunk", self.buffered_chunk, Settings::CHUNK_RANGE),
            ("copy_workers", self.copy_workers as u64, COUNT),
            ("read_ahead_workers", self.read_ahead_workers as u64, COUNT),
            ("network_workers", self.network_workers as u64, COUNT),
            ("network_chunk", self.network_chunk, Settings::CHUNK_RANGE),
            ("island_bytes", self.island_bytes, BYTES),
        ];
        for (name, value, allowed) in numbers {
            if !allowed.contains(&value) {
                let (least, most) = allowed.into_inner();
                let what = format!("{name} must be {least} to {most}, not {value}");
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
        }
        Ok(())
    }

    /// What differs from `other`, one sentence for each constant.
    pub fn changes_from(&self, other: &Self) -> Vec<String> {
        let pairs = |preset: &Self| -> Vec<(String, String)> {
            let json = serde_json::to_value(preset).unwrap_or_default();
            let fields = json.as_object().into_iter().flatten();
            fields
                .map(|(name, value)| (name.clone(), value.to_string()))
                .collect()
        };
        pairs(other)
            .into_iter()
            .zip(pairs(self))
            .filter(|((_, before), (_, now))| before != now)
            .map(|((name, before), (_, now))| format!("{name}: {before} -> {now}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_constants_are_in_range_and_others_are_refused_by_name() {
        Preset::default().check().unwrap();
        let chunk = Preset {
            direct_chunk: 100,
            ..Preset::default()
        };
        let error = chunk.check().unwrap_err().to_string();
        assert!(
            error.contains("direct_chunk") && error.contains("100"),
            "{error}"
        );
        let workers = Preset {
            copy_workers: 0,
            ..Preset::default()
        };
        assert!(workers.check().is_err());
    }

    #[test]
    fn changes_name_both_values() {
        let other = Preset {
            ring_depth: 32,
            ring_pays: false,
            ..Preset::default()
        };
        assert!(other.changes_from(&other).is_empty());
        assert_eq!(
            other.changes_from(&Preset::default()),
            ["ring_depth: 16 -> 32", "ring_pays: true -> false"]
        );
    }
}
