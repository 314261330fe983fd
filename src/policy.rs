//! Which backend, how many workers, how large a read: a pure function of what is known.
//!
//! Every constant stands in [`Preset`] with the measurement it comes from; every choice carries
//! its reason, which `plan`, `profile` and the log show.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::facts::{Facts, IoUringAvailability};
use crate::plan::ReadPlan;
use crate::settings::{AccessMode, Settings};
use crate::storage::BackendKind;
use crate::text::ByteSize;

/// What the policy looks at in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlanShape {
    /// Bytes that the plan's spans cover.
    pub read_bytes: u64,
    /// Of these, bytes that are not in the page cache and can be read around it.
    pub direct_bytes: u64,
    /// Files that are read from.
    pub files: usize,
    /// Contiguous ranges.
    pub ranges: u64,
    /// Whether every source is a local file with a descriptor.
    pub local: bool,
    /// Whether any file lies on a network file system.
    pub network: bool,
}

/// Constants of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Preset {
    /// Below this many bytes a load is over before a second worker has started. 0.3 ms at the
    /// 10 GB/s that one warm thread copies, about the cost of starting a few threads.
    pub small_bytes: u64,
    /// io_uring wins over threads when at least this much is absent from the page cache: it
    /// reaches the disk's limit with a tenth of the CPU time (0.007 against 0.065 s/GB).
    pub uring_bytes: u64,
    /// Read size around the page cache: 2 to 4 MiB with 16 to 32 MiB in flight reached 3.3 to
    /// 3.6 GB/s of 3.65.
    pub direct_chunk: u64,
    /// Reads around the page cache that threads keep in flight.
    pub direct_workers: usize,
    /// Reads in flight on a ring.
    pub ring_depth: usize,
    /// Read size through the page cache: 4 to 16 MiB copied at 17 to 23 GB/s on two cores.
    pub buffered_chunk: u64,
    /// Streams on a network file system: one stream reaches about a fifth of what eight reach.
    pub network_workers: usize,
    /// Resident stretches smaller than this inside an absent one are read with it.
    pub island_bytes: u64,
}

impl Default for Preset {
    fn default() -> Self {
        Self {
            small_bytes: 4 << 20,
            uring_bytes: 64 << 20,
            direct_chunk: 2 << 20,
            direct_workers: 8,
            ring_depth: 16,
            buffered_chunk: 8 << 20,
            network_workers: 16,
            island_bytes: 1 << 20,
        }
    }
}

/// What was decided, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// What the caller asked for.
    pub requested: BackendKind,
    /// Who reads: never `Default`.
    pub backend: BackendKind,
    /// One sentence.
    pub reason: String,
    /// Threads or rings.
    pub workers: usize,
    /// Reads in flight for each ring; 1 for the other backends.
    pub queue_depth: usize,
    /// Largest read through the page cache, in bytes.
    pub buffered_chunk: u64,
    /// Largest read around the page cache, in bytes.
    pub direct_chunk: u64,
}

/// The shape of `plan` under `facts`.
pub fn shape(plan: &ReadPlan, facts: &Facts, access: AccessMode) -> PlanShape {
    let figures = plan.figures();
    let direct_bytes = plan
        .spans
        .iter()
        .map(|span| {
            let source = &facts.sources[span.source as usize];
            let range = span.offset..span.offset + span.len;
            match access {
                _ if source.direct.is_none() => 0,
                AccessMode::Buffered => 0,
                AccessMode::Direct => span.len,
                AccessMode::Auto => span.len - source.residency.resident_bytes(range),
            }
        })
        .sum();
    let used = || {
        facts
            .sources
            .iter()
            .zip(&plan.sources)
            .filter(|(_, s)| s.len > 0)
    };
    PlanShape {
        read_bytes: figures.span_bytes,
        direct_bytes,
        files: figures.files as usize,
        ranges: figures.ranges,
        local: used().all(|(facts, _)| facts.local),
        network: used().any(|(facts, _)| facts.network),
    }
}

/// Decides who reads and how.
///
/// # Errors
/// [`Unavailable`](crate::ErrorKind::Unavailable) when an explicitly chosen backend cannot run.
/// `Default` never fails.
pub fn decide(
    shape: &PlanShape,
    facts: &Facts,
    settings: &Settings,
    preset: &Preset,
) -> Result<Decision> {
    let (backend, reason) = match settings.backend {
        BackendKind::Default => choose(shape, facts, preset),
        BackendKind::IoUring => {
            if let IoUringAvailability::Unavailable(reason) = &facts.io_uring {
                return Err(Error::unavailable(BackendKind::IoUring, reason.clone()));
            }
            (BackendKind::IoUring, "chosen by the caller".to_owned())
        }
        explicit => (explicit, "chosen by the caller".to_owned()),
    };
    let cores = facts.cores.max(1);
    // A disk wants several reads waiting, whatever the number of cores; a copy wants one core each.
    let threads = if shape.network {
        preset.network_workers
    } else if shape.read_bytes <= preset.small_bytes {
        1
    } else if shape.direct_bytes > 0 {
        preset.direct_workers.max(cores)
    } else {
        cores
    };
    let rings =
        if shape.read_bytes <= preset.small_bytes || shape.direct_bytes * 2 > shape.read_bytes {
            1
        } else {
            // One ring copies resident pages on one core.
            cores
        };
    let workers = settings.workers.unwrap_or(match backend {
        BackendKind::IoUring => rings,
        _ => threads,
    });
    Ok(Decision {
        requested: settings.backend,
        backend,
        reason,
        workers,
        queue_depth: match backend {
            BackendKind::IoUring => settings.queue_depth.unwrap_or(preset.ring_depth),
            _ => 1,
        },
        buffered_chunk: settings.chunk_bytes.unwrap_or(preset.buffered_chunk),
        direct_chunk: settings.chunk_bytes.unwrap_or(preset.direct_chunk),
    })
}

fn choose(shape: &PlanShape, facts: &Facts, preset: &Preset) -> (BackendKind, String) {
    if !shape.local {
        return (
            BackendKind::Sync,
            "the sources are not local files, so threads read them".to_owned(),
        );
    }
    if shape.network {
        let reason = "a network file system is fastest with many large reads by threads".to_owned();
        return (BackendKind::Sync, reason);
    }
    if shape.read_bytes <= preset.small_bytes {
        let reason = format!(
            "{} are read before a second worker would start",
            ByteSize(shape.read_bytes)
        );
        return (BackendKind::Sync, reason);
    }
    if shape.direct_bytes < preset.uring_bytes {
        let all = ByteSize(shape.read_bytes);
        let reason = if shape.direct_bytes * 2 > shape.read_bytes {
            format!(
                "{} of {all} come from the disk, too little for a ring to pay",
                ByteSize(shape.direct_bytes)
            )
        } else {
            let cached = ByteSize(shape.read_bytes.saturating_sub(shape.direct_bytes));
            format!("{cached} of {all} are in the page cache, and threads copy on every core")
        };
        return (BackendKind::Sync, reason);
    }
    let absent = format!("{} come from the disk", ByteSize(shape.direct_bytes));
    match &facts.io_uring {
        IoUringAvailability::Available(_) => {
            let reason = format!("{absent}, and a ring keeps it busy with the least CPU time");
            (BackendKind::IoUring, reason)
        }
        IoUringAvailability::Unavailable(reason) => (
            BackendKind::Sync,
            format!("{absent}, and io_uring is unavailable: {reason}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::IoUringFacts;
    use crate::storage::UnavailableReason;

    const GIB: u64 = 1 << 30;

    fn cold() -> PlanShape {
        PlanShape {
            read_bytes: 4 * GIB,
            direct_bytes: 4 * GIB,
            files: 8,
            ranges: 8,
            local: true,
            network: false,
        }
    }

    fn with_uring() -> Facts {
        let features = IoUringFacts {
            coop_taskrun: true,
            single_issuer: true,
            defer_taskrun: true,
        };
        Facts {
            io_uring: IoUringAvailability::Available(features),
            ..Facts::neutral(8)
        }
    }

    fn without_uring() -> Facts {
        let reason = UnavailableReason::PermissionDenied { sysctl: None };
        Facts {
            io_uring: IoUringAvailability::Unavailable(reason),
            ..Facts::neutral(8)
        }
    }

    #[test]
    fn the_table_of_choices() {
        use BackendKind::{IoUring, Sync};
        let warm = PlanShape {
            direct_bytes: 0,
            ..cold()
        };
        let half = PlanShape {
            direct_bytes: 2 * GIB,
            ..cold()
        };
        let tiny = PlanShape {
            read_bytes: 1000,
            direct_bytes: 1000,
            ..cold()
        };
        let little = PlanShape {
            read_bytes: 50 << 20,
            direct_bytes: 49 << 20,
            ..cold()
        };
        let nfs = PlanShape {
            network: true,
            ..cold()
        };
        let memory = PlanShape {
            local: false,
            ..warm
        };
        for (shape, facts, expected, because) in [
            (cold(), with_uring(), IoUring, "4 GiB come from the disk"),
            (half, with_uring(), IoUring, "2 GiB come from the disk"),
            (cold(), without_uring(), Sync, "permission denied"),
            (warm, with_uring(), Sync, "page cache"),
            (tiny, with_uring(), Sync, "second worker"),
            (little, with_uring(), Sync, "too little for a ring"),
            (nfs, with_uring(), Sync, "network"),
            (memory, with_uring(), Sync, "not local"),
        ] {
            let decision =
                decide(&shape, &facts, &Settings::default(), &Preset::default()).unwrap();
            assert_eq!(decision.backend, expected, "{shape:?}");
            assert!(decision.reason.contains(because), "{}", decision.reason);
        }
    }

    #[test]
    fn an_explicit_backend_is_taken_or_refused_but_never_replaced() {
        let explicit = |backend| Settings {
            backend,
            ..Settings::default()
        };
        for backend in BackendKind::CONCRETE {
            let decision = decide(
                &cold(),
                &with_uring(),
                &explicit(backend),
                &Preset::default(),
            )
            .unwrap();
            assert_eq!(decision.backend, backend);
        }
        let refused = decide(
            &cold(),
            &without_uring(),
            &explicit(BackendKind::IoUring),
            &Preset::default(),
        );
        assert_eq!(refused.unwrap_err().kind(), crate::ErrorKind::Unavailable);
    }

    #[test]
    fn settings_win_over_presets() {
        let settings = Settings {
            backend: BackendKind::IoUring,
            workers: Some(3),
            queue_depth: Some(5),
            chunk_bytes: Some(1 << 16),
            ..Settings::default()
        };
        let decision = decide(&cold(), &with_uring(), &settings, &Preset::default()).unwrap();
        assert_eq!((decision.workers, decision.queue_depth), (3, 5));
        assert_eq!(
            (decision.buffered_chunk, decision.direct_chunk),
            (1 << 16, 1 << 16)
        );
    }
}
