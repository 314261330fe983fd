//! The table of cases.

use super::*;
use crate::facts::{IoUringFacts, MemoryFacts};
use crate::storage::UnavailableReason;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn cold() -> PlanShape {
    PlanShape {
        read_bytes: 4 * GIB,
        absent_bytes: 4 * GIB,
        direct_bytes: 4 * GIB,
        result_bytes: 4 * GIB,
        files: 8,
        ranges: 8,
        density: 1.0,
        local: true,
        network: false,
        turning: Turning::No,
    }
}

fn warm() -> PlanShape {
    PlanShape {
        absent_bytes: 0,
        direct_bytes: 0,
        ..cold()
    }
}

fn half() -> PlanShape {
    PlanShape {
        absent_bytes: 2 * GIB,
        direct_bytes: 2 * GIB,
        ..cold()
    }
}

/// Absent, where nothing can be read around the page cache.
fn filling() -> PlanShape {
    PlanShape {
        direct_bytes: 0,
        ..cold()
    }
}

/// Rows of 64 KiB out of large files.
fn rows() -> PlanShape {
    PlanShape {
        read_bytes: 512 * MIB,
        absent_bytes: 512 * MIB,
        direct_bytes: 512 * MIB,
        result_bytes: 512 * MIB,
        ranges: 512 * MIB / (64 * KIB),
        density: 0.125,
        ..cold()
    }
}

fn of_size(bytes: u64) -> PlanShape {
    PlanShape {
        read_bytes: bytes,
        absent_bytes: bytes,
        direct_bytes: bytes,
        result_bytes: bytes,
        files: 1,
        ranges: 1,
        ..cold()
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

fn cores(cores: usize) -> Facts {
    Facts {
        cores,
        ..with_uring()
    }
}

fn decided(shape: &PlanShape, facts: &Facts, settings: &Settings, preset: Preset) -> Decision {
    decide(shape, facts, settings, &preset.into()).unwrap()
}

/// As one text, in which words are looked for.
fn all_reasons(decision: &Decision) -> String {
    format!("{}\n{}", decision.reason, decision.notes.join("\n"))
}

#[test]
fn the_table_of_choices() {
    use BackendKind::{IoUring, Sync};
    let nfs = PlanShape {
        network: true,
        ..cold()
    };
    let memory = PlanShape {
        local: false,
        ..warm()
    };
    let turning = |turning| PlanShape { turning, ..cold() };
    let sparse = PlanShape {
        density: 0.1,
        ..filling()
    };
    let mixed = PlanShape {
        absent_bytes: 48 * MIB,
        direct_bytes: 48 * MIB,
        ..cold()
    };
    // Shape, facts, who, workers, depth, MiB around the page cache, words of the reasons.
    type Case = (
        PlanShape,
        Facts,
        BackendKind,
        usize,
        usize,
        u64,
        [&'static str; 2],
    );
    #[rustfmt::skip]
    let table: [Case; 21] = [
        (cold(), with_uring(), IoUring, 2, 16, 2, ["4 GiB come from the disk", "2 rings: one keeps the disk busy"]),
        (cold(), without_uring(), Sync, 8, 1, 2, ["permission denied", "8 workers: the disk wants"]),
        (cold(), cores(1), IoUring, 1, 16, 2, ["come from the disk", "it keeps"]),
        (cold(), cores(64), IoUring, 2, 16, 2, ["come from the disk", "one keeps"]),
        (warm(), with_uring(), Sync, 2, 1, 2, ["4 GiB of 4 GiB are in the page cache", "on a core of its own"]),
        (warm(), cores(1), Sync, 1, 1, 2, ["page cache", "1 worker: one copies"]),
        (warm(), cores(64), Sync, 16, 1, 2, ["page cache", "more of the 64 cores would gain nothing"]),
        (PlanShape { read_bytes: 10 * MIB, ..warm() }, cores(64), Sync, 3, 1, 2, ["page cache", "3 workers"]),
        (half(), with_uring(), IoUring, 2, 16, 2, ["2 GiB come from the disk and 2 GiB from the page cache", "2 rings"]),
        (half(), without_uring(), Sync, 8, 1, 2, ["permission denied", "8 workers"]),
        (mixed, with_uring(), Sync, 8, 1, 2, ["are in the page cache", "several reads waiting"]),
        (of_size(1000), with_uring(), Sync, 1, 1, 2, ["1000 B are read before a second worker", "too few to share"]),
        (of_size(50 * MIB), with_uring(), Sync, 8, 1, 2, ["too little for a ring", "8 workers"]),
        (nfs, with_uring(), Sync, 16, 1, 8, ["network", "many reads waiting"]),
        (memory, with_uring(), Sync, 2, 1, 2, ["not local", "2 workers"]),
        (rows(), with_uring(), IoUring, 2, 128, 2, ["come from the disk", "8192 ranges have 64 KiB on average (12 % of their files)"]),
        (rows(), without_uring(), Sync, 32, 1, 2, ["permission denied", "more of them are in flight"]),
        (turning(Turning::Likely), with_uring(), IoUring, 2, 4, 8, ["come from the disk", "it turns, so it gets fewer"]),
        (turning(Turning::Claimed), with_uring(), IoUring, 2, 16, 2, ["come from the disk", "virtual disks do, which is ignored"]),
        (filling(), with_uring(), Sync, 1, 1, 2, ["only through the page cache", "read-ahead is best left alone"]),
        (sparse, with_uring(), Sync, 8, 1, 2, ["only through the page cache", "scattered ranges"]),
    ];
    for (shape, facts, backend, workers, depth, chunk, words) in table {
        let decision = decided(&shape, &facts, &Settings::default(), Preset::default());
        let place = format!("{shape:?}: {decision:?}");
        assert_eq!(decision.backend, backend, "{place}");
        assert_eq!(decision.workers, workers, "{place}");
        assert_eq!(decision.queue_depth, depth, "{place}");
        assert_eq!(decision.direct_chunk, chunk * MIB, "{place}");
        for word in words {
            assert!(
                all_reasons(&decision).contains(word),
                "no {word:?}: {place}"
            );
        }
    }
}

#[test]
fn a_ring_copies_few_resident_reads_at_once() {
    let settings = Settings {
        backend: BackendKind::IoUring,
        ..Settings::default()
    };
    let depth = |shape| decided(&shape, &with_uring(), &settings, Preset::default()).queue_depth;
    assert_eq!((depth(warm()), depth(half()), depth(cold())), (2, 16, 16));
}

#[test]
fn page_cache_is_counted_against_a_cgroup() {
    let limited = Facts {
        memory: MemoryFacts {
            cgroup_limit_bytes: Some(6 * GIB),
            ..MemoryFacts::default()
        },
        ..with_uring()
    };
    let says = |shape: &PlanShape, facts: &Facts| {
        let decision = decided(shape, facts, &Settings::default(), Preset::default());
        all_reasons(&decision).contains("count against the cgroup, which leaves 6 GiB")
    };
    assert!(says(&filling(), &limited));
    assert!(!says(&cold(), &limited), "direct reads leave no pages");
    assert!(!says(&warm(), &limited), "the pages are there already");
    assert!(!says(&filling(), &with_uring()), "no limit");
}

#[test]
fn what_was_measured_wins_over_what_a_disk_says() {
    let turning = PlanShape {
        turning: Turning::Likely,
        ..cold()
    };
    let preset = Preset {
        ring_pays: false,
        direct_workers: 12,
        ..Preset::default()
    };
    let applied = Applied {
        preset,
        name: "p.json".to_owned(),
        measured: true,
    };
    let decision = decide(&turning, &with_uring(), &Settings::default(), &applied).unwrap();
    assert_eq!(
        (decision.backend, decision.workers),
        (BackendKind::Sync, 12)
    );
    assert!(
        decision
            .reason
            .contains("threads were measured to be faster")
    );
    assert_eq!(decision.profile, "p.json");
}

#[test]
fn threads_and_tasks_get_the_same_numbers() {
    let of = |backend| Settings {
        backend,
        ..Settings::default()
    };
    for shape in [cold(), warm(), half(), rows(), filling(), of_size(10)] {
        for facts in [cores(1), with_uring(), cores(64)] {
            let sync = decided(&shape, &facts, &of(BackendKind::Sync), Preset::default());
            let tasks = decided(&shape, &facts, &of(BackendKind::Async), Preset::default());
            let renamed = Decision {
                requested: BackendKind::Sync,
                backend: BackendKind::Sync,
                ..tasks
            };
            assert_eq!(renamed, sync);
        }
    }
}

#[test]
fn small_ranges_do_not_multiply_large_staging_buffers() {
    let preset = Preset::default();
    let of = |backend| Settings {
        backend,
        ..Settings::default()
    };
    for (backend, large, small) in [(BackendKind::IoUring, 16, 128), (BackendKind::Sync, 16, 32)] {
        let settings = of(backend);
        for (staging, expected) in [(0, small), (64 * KIB, small), (2 * MIB, large)] {
            let mut decision = decided(&rows(), &with_uring(), &settings, preset);
            bound_staging(&mut decision, &settings, &preset, staging);
            let count = decision.workers.max(decision.queue_depth);
            assert_eq!(count, expected, "{backend} with {staging}");
        }
    }
}

#[test]
fn an_explicit_backend_is_taken_or_refused_but_never_replaced() {
    let explicit = |backend| Settings {
        backend,
        ..Settings::default()
    };
    for backend in BackendKind::CONCRETE {
        let settings = explicit(backend);
        let decision = decided(&cold(), &with_uring(), &settings, Preset::default());
        assert_eq!(decision.backend, backend);
    }
    let refused = decide(
        &cold(),
        &without_uring(),
        &explicit(BackendKind::IoUring),
        &Preset::default().into(),
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
    let decision = decided(&cold(), &with_uring(), &settings, Preset::default());
    assert_eq!((decision.workers, decision.queue_depth), (3, 5));
    assert_eq!(
        (decision.buffered_chunk, decision.direct_chunk),
        (1 << 16, 1 << 16)
    );
}
