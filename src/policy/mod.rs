//! Which backend, how many workers, how large a read: a pure function of what is known.
//!
//! Every constant stands in [`Preset`] with the measurement it comes from; every choice carries
//! its reason, which `plan`, `profile` and the log show.
//!
//! | what is known | what follows |
//! |---|---|
//! | the caller named a backend | that one, or an error |
//! | sources that are no local files; network file systems | threads, many and with large reads |
//! | a tiny load | the calling thread alone |
//! | most of it is in the page cache | threads that copy, one for each core up to a limit |
//! | much comes from the disk | a ring, or threads where none can be had or threads are faster |
//! | it comes from the disk in small ranges | as many bytes in flight as otherwise, in more reads |
//! | it comes from a disk that turns | as many bytes in flight as otherwise, in fewer reads |
//! | it comes from the disk, and only through the page cache | few threads, which leave the read-ahead to the kernel |
//!
//! Blocking threads and Tokio's tasks get the same numbers and the same requests: they differ in
//! who submits.

mod preset;
mod profile;
mod shape;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use preset::Preset;
pub(crate) use profile::Applied;
pub use profile::{Machine, Profile};
pub use shape::{PlanShape, Turning, shape, used_sources};

use crate::error::{Error, Result};
use crate::facts::{Facts, IoUringAvailability};
use crate::settings::Settings;
use crate::storage::BackendKind;
use crate::text::ByteSize;

/// Reads in flight on one ring, at most, and threads, where ranges are small. 128 reads of 512 KiB
/// reached the disk's limit as 16 of 2 MiB did; for threads a quarter, of which each costs a stack.
const MOST_READS: u64 = 128;
const MOST_THREADS: u64 = 32;

/// Ranges below a part of the read size count as small.
const SMALL_PART: u64 = 4;

/// Against a disk that turns, reads are larger by this factor, and fewer. On a fast disk that only
/// says that it turns, 4 reads of 8 MiB cost 5 % against 16 of 2 MiB.
const TURNING_FACTOR: u64 = 4;

/// Rings that read around the page cache. Submitting a read into fresh memory maps and zeroes it, and
/// meanwhile nobody takes answers: with a second ring medians were 3 to 5 % higher in four runs of
/// five, on a disk whose ranges overlap; more were not tried.
const DIRECT_RINGS: usize = 2;

/// Reads of resident data on one ring. The kernel copies while they are submitted, so that the first
/// tensor waits for all of them: of 256 MiB it came after 37 ms of 49 with 16.
const COPIES_AT_ONCE: usize = 2;

/// Selections of at least this part of their files are what read-ahead is made for.
const DENSE: f64 = 0.5;

/// What was decided, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// What the caller asked for.
    pub requested: BackendKind,
    /// Who reads: never `Default`.
    pub backend: BackendKind,
    /// Why this backend: one sentence.
    pub reason: String,
    /// Threads or rings.
    pub workers: usize,
    /// Reads in flight for each ring; 1 for the other backends.
    pub queue_depth: usize,
    /// Largest read through the page cache, in bytes.
    pub buffered_chunk: u64,
    /// Largest read around the page cache, in bytes.
    pub direct_chunk: u64,
    /// Why these numbers, and what else is worth knowing: a sentence each.
    pub notes: Vec<String>,
    /// Which constants it was decided with: `built-in`, or the file of a measured
    /// [`Profile`]; and why not the other.
    pub profile: String,
}

/// Decides who reads and how.
///
/// # Errors
/// [`Unavailable`](crate::ErrorKind::Unavailable) when an explicitly chosen backend cannot run.
/// `Default` never fails.
pub(crate) fn decide(
    shape: &PlanShape,
    facts: &Facts,
    settings: &Settings,
    applied: &Applied,
) -> Result<Decision> {
    let preset = &applied.preset;
    let (backend, reason) = match settings.backend {
        BackendKind::Default => choose(shape, facts, applied),
        BackendKind::IoUring => {
            if let IoUringAvailability::Unavailable(reason) = &facts.io_uring {
                return Err(Error::unavailable(BackendKind::IoUring, reason.clone()));
            }
            (BackendKind::IoUring, "chosen by the caller".to_owned())
        }
        explicit => (explicit, "chosen by the caller".to_owned()),
    };
    let mut notes = Vec::new();
    let direct = direct_reads(shape, applied, &mut notes);
    let is_ring = backend == BackendKind::IoUring;
    let workers = settings.workers.unwrap_or_else(|| {
        let (workers, why) = if is_ring {
            rings(shape, facts, preset)
        } else {
            threads(shape, facts, preset, &direct)
        };
        let what = if is_ring { "ring" } else { "worker" };
        let plural = if workers == 1 { "" } else { "s" };
        notes.insert(0, format!("{workers} {what}{plural}: {why}"));
        workers
    });
    notes.extend(memory_note(shape, facts));
    Ok(Decision {
        requested: settings.backend,
        backend,
        reason,
        workers,
        queue_depth: match (is_ring, settings.queue_depth) {
            (false, _) => 1,
            (true, Some(depth)) => depth,
            (true, None) if shape.cached_bytes() == shape.read_bytes => COPIES_AT_ONCE,
            (true, None) => direct.depth as usize,
        },
        buffered_chunk: settings.chunk_bytes.unwrap_or(preset.buffered_chunk),
        direct_chunk: settings.chunk_bytes.unwrap_or(direct.chunk),
        notes,
        profile: applied.name.clone(),
    })
}

/// Takes back what small ranges added to the reads in flight, where other reads of the same load
/// need large staging buffers: their memory stays what it is for large ranges.
pub(crate) fn bound_staging(
    decision: &mut Decision,
    settings: &Settings,
    preset: &Preset,
    staging_bytes: u64,
) {
    let bound = |count: &mut usize, base: usize| {
        let whole = base as u64 * preset.direct_chunk;
        let fitting = whole / staging_bytes.max(1);
        *count = (*count).min((fitting as usize).max(base));
    };
    if decision.backend == BackendKind::IoUring {
        if settings.queue_depth.is_none() {
            bound(&mut decision.queue_depth, preset.ring_depth);
        }
    } else if settings.workers.is_none() {
        let base = preset.direct_workers.max(preset.network_workers);
        bound(&mut decision.workers, base);
    }
}

/// How reads around the page cache are cut, and how many are in flight.
struct DirectReads {
    chunk: u64,
    depth: u64,
    threads: u64,
}

fn direct_reads(shape: &PlanShape, applied: &Applied, notes: &mut Vec<String>) -> DirectReads {
    let preset = &applied.preset;
    let usual = DirectReads {
        chunk: preset.direct_chunk,
        depth: preset.ring_depth as u64,
        threads: preset.direct_workers as u64,
    };
    if shape.direct_bytes == 0 {
        return usual;
    }
    if shape.network {
        return DirectReads {
            chunk: preset.network_chunk,
            threads: preset.network_workers as u64,
            ..usual
        };
    }
    let mean = shape.mean_range().max(1);
    if mean < preset.direct_chunk / SMALL_PART {
        notes.push(format!(
            "the {} ranges have {} on average ({:.0} % of their files), so more of them are in \
             flight",
            shape.ranges,
            ByteSize(mean),
            100.0 * shape.density,
        ));
        let more =
            |base: u64, most: u64| (base * preset.direct_chunk / mean).clamp(base, base.max(most));
        return DirectReads {
            depth: more(usual.depth, MOST_READS),
            threads: more(usual.threads, MOST_THREADS),
            ..usual
        };
    }
    match shape.turning {
        Turning::No => usual,
        Turning::Claimed => {
            notes.push(
                "the disk says that it turns, as virtual disks do, which is ignored".to_owned(),
            );
            usual
        }
        Turning::Likely if applied.measured => usual,
        Turning::Likely => {
            notes.push("the disk says that it turns, so it gets fewer and larger reads".to_owned());
            let fewer = |count: u64| (count / TURNING_FACTOR).max(1);
            DirectReads {
                chunk: (usual.chunk * TURNING_FACTOR).min(*Settings::CHUNK_RANGE.end()),
                depth: fewer(usual.depth),
                threads: fewer(usual.threads),
            }
        }
    }
}

fn threads(
    shape: &PlanShape,
    facts: &Facts,
    preset: &Preset,
    direct: &DirectReads,
) -> (usize, String) {
    let cores = facts.cores.max(1);
    // No more than have work for as long as starting them takes.
    let worth = |bytes: u64| bytes.div_ceil(preset.small_bytes.max(1)).max(1) as usize;
    let copying = |bytes: u64| cores.min(preset.copy_workers).min(worth(bytes));
    if shape.network {
        let why = "a network file system wants many reads waiting".to_owned();
        return (preset.network_workers, why);
    }
    if shape.read_bytes <= preset.small_bytes {
        return (
            1,
            format!("{} are too few to share", ByteSize(shape.read_bytes)),
        );
    }
    if shape.direct_bytes > 0 {
        // A disk wants several reads waiting, whatever the number of cores.
        let workers = (direct.threads as usize).max(copying(shape.cached_bytes()));
        let why = "the disk wants several reads waiting, whatever the number of cores";
        return (workers, why.to_owned());
    }
    if shape.filling_bytes() * 2 > shape.read_bytes && shape.density >= DENSE {
        let why = "they fill the page cache from the disk, where read-ahead is best left alone";
        return (preset.read_ahead_workers, why.to_owned());
    }
    if shape.filling_bytes() * 2 > shape.read_bytes {
        let why = "they read scattered ranges through the page cache, which must all be waited for";
        return (preset.direct_workers.max(copying(u64::MAX)), why.to_owned());
    }
    let workers = copying(shape.read_bytes);
    let why = match workers {
        1 => "one copies as fast as there are cores and bytes for".to_owned(),
        _ if workers == cores => "each copies on a core of its own".to_owned(),
        _ => format!("they copy, and more of the {cores} cores would gain nothing"),
    };
    (workers, why)
}

fn rings(shape: &PlanShape, facts: &Facts, preset: &Preset) -> (usize, String) {
    if shape.read_bytes <= preset.small_bytes {
        return (
            1,
            format!("{} are too few to share", ByteSize(shape.read_bytes)),
        );
    }
    if shape.direct_bytes * 2 > shape.read_bytes {
        let rings = facts.cores.clamp(1, DIRECT_RINGS);
        let why = match rings {
            1 => "it keeps the disk busy",
            _ => "one keeps the disk busy while the other has fresh memory mapped",
        };
        return (rings, why.to_owned());
    }
    // One ring copies resident pages on one core.
    let rings = facts.cores.max(1).min(preset.copy_workers);
    (
        rings,
        "each copies from the page cache on one core".to_owned(),
    )
}

/// A cgroup pays for the page cache that it fills.
fn memory_note(shape: &PlanShape, facts: &Facts) -> Option<String> {
    let filling = shape.filling_bytes();
    facts.memory.cgroup_limit_bytes?;
    let headroom = facts.memory.headroom_bytes()?;
    (filling > 0 && filling.saturating_add(shape.result_bytes) > headroom).then(|| {
        format!(
            "{} are read through the page cache and count against the cgroup, which leaves {}: \
             the kernel has to give pages up during the load",
            ByteSize(filling),
            ByteSize(headroom),
        )
    })
}

fn choose(shape: &PlanShape, facts: &Facts, applied: &Applied) -> (BackendKind, String) {
    let preset = &applied.preset;
    let sync = |reason: String| (BackendKind::Sync, reason);
    if !shape.local {
        return sync("the sources are not local files, so threads read them".to_owned());
    }
    if shape.network {
        return sync(
            "a network file system is fastest with many large reads by threads".to_owned(),
        );
    }
    let (all, direct) = (ByteSize(shape.read_bytes), ByteSize(shape.direct_bytes));
    if shape.read_bytes <= preset.small_bytes {
        return sync(format!("{all} are read before a second worker would start"));
    }
    if shape.filling_bytes() * 2 > shape.read_bytes {
        let filling = ByteSize(shape.filling_bytes());
        return sync(format!(
            "{filling} of {all} come from the disk and only through the page cache, where a ring \
             would wait like a thread"
        ));
    }
    if shape.direct_bytes < preset.uring_bytes {
        return sync(if shape.direct_bytes * 2 > shape.read_bytes {
            format!("{direct} of {all} come from the disk, too little for a ring to pay")
        } else {
            let cached = ByteSize(shape.cached_bytes());
            format!("{cached} of {all} are in the page cache, and threads copy on every core")
        });
    }
    let mut absent = format!("{direct} come from the disk");
    if shape.cached_bytes() > preset.small_bytes {
        absent = format!(
            "{absent} and {} from the page cache",
            ByteSize(shape.cached_bytes())
        );
    }
    match &facts.io_uring {
        IoUringAvailability::Available(_) if preset.ring_pays => {
            let reason =
                format!("{absent}, and a ring keeps the disk busy with the least CPU time");
            (BackendKind::IoUring, reason)
        }
        IoUringAvailability::Available(_) => {
            let reason =
                format!("{absent}, and threads were measured to be faster than a ring here");
            (BackendKind::Sync, reason)
        }
        IoUringAvailability::Unavailable(reason) => {
            sync(format!("{absent}, and io_uring is unavailable: {reason}"))
        }
    }
}
