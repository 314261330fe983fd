//! What loads of fixed plans cost, counted: reads, bytes, copies, page faults, disk reads, pages
//! left in the page cache, system calls. The guard against loads that become slow: counts are the
//! same on every machine, times are not.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;

use tensora::facts::{HugePages, process};
use tensora::{
    AccessMode, BackendKind, Checkpoint, Dtype, Engine, Loader, Selection, Settings, Slice, Split,
};

use crate::child;
use crate::support::{Watchdog, backends, safetensors};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of a read, fixed here so that the counts do not follow the policy.
const CHUNK: u64 = 4 * MIB;

/// A checkpoint and a selection, with the counts that a load through the page cache may have.
struct Plan {
    name: &'static str,
    /// Files, each with its number of tensors and their shape, in bytes.
    files: u64,
    tensors: u64,
    shape: &'static [u64],
    /// Rank 0 of 8 on the last dimension instead of everything.
    sliced: bool,
    /// Bytes that the selection has.
    needed: u64,
    /// Bytes that are read.
    read: u64,
    /// Bytes that are copied once more.
    staged: u64,
    /// Reads: from, to.
    reads: (u64, u64),
    /// Upper limit of system calls, threads' waits for each other and the allocator's left out.
    calls: u64,
}

const PLANS: &[Plan] = &[
    Plan {
        name: "one file",
        files: 1,
        tensors: 16,
        shape: &[4 * MIB],
        sliced: false,
        needed: 64 * MIB,
        read: 64 * MIB,
        staged: 0,
        reads: (16, 18),
        calls: 160,
    },
    Plan {
        name: "8 shards",
        files: 8,
        tensors: 2,
        shape: &[4 * MIB],
        sliced: false,
        needed: 64 * MIB,
        read: 64 * MIB,
        staged: 0,
        reads: (16, 24),
        calls: 260,
    },
    Plan {
        name: "20,000 small tensors",
        files: 1,
        tensors: 20_000,
        shape: &[1024],
        sliced: false,
        needed: 20_000 * KIB,
        read: 20_000 * KIB,
        staged: 0,
        reads: (5, 7),
        calls: 260,
    },
    Plan {
        name: "short rows",
        files: 1,
        tensors: 1,
        shape: &[2048, 16 * KIB],
        sliced: true,
        needed: 4 * MIB,
        // Gaps are shorter than a read is worth.
        read: 2048 * 16 * KIB,
        staged: 4 * MIB,
        reads: (8, 10),
        calls: 160,
    },
    Plan {
        name: "long rows",
        files: 1,
        tensors: 1,
        shape: &[64, 512 * KIB],
        sliced: true,
        needed: 4 * MIB,
        read: 4 * MIB,
        staged: 0,
        reads: (64, 64),
        calls: 220,
    },
];

impl Plan {
    fn named(name: &str) -> &'static Self {
        PLANS.iter().find(|plan| plan.name == name).unwrap()
    }

    /// Writes its files, which are then in the page cache.
    fn write(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in 1..=self.files {
            let names: Vec<_> = (0..self.tensors)
                .map(|tensor| format!("t{file}.{tensor:05}"))
                .collect();
            let list: Vec<_> = names
                .iter()
                .map(|name| (name.as_str(), Dtype::U8, self.shape))
                .collect();
            let mut bytes = safetensors(&list, 1, 0);
            // Spaces up to the next page: data starts where the counts are round.
            let data = self.tensors * self.shape.iter().product::<u64>();
            let header = bytes.len() - data as usize;
            let padded = header.next_multiple_of(4096);
            bytes.splice(header..header, std::iter::repeat_n(b' ', padded - header));
            bytes[..8].copy_from_slice(&(padded as u64 - 8).to_le_bytes());
            let name = format!("model-{file:05}-of-{:05}.safetensors", self.files);
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        folder
    }

    fn loader(&self, folder: &Path, backend: BackendKind) -> Loader {
        let options = Checkpoint::options().engine(Engine::new());
        let checkpoint = options.open(folder).unwrap();
        let shard = Slice::Shard {
            dim: self.shape.len() - 1,
            rank: 0,
            world: 8,
            split: Split::Even,
        };
        let selection = match self.sliced {
            true => Selection::all().with_slice("*", shard).unwrap(),
            false => Selection::all(),
        };
        checkpoint.loader().select(selection).settings(Settings {
            backend,
            workers: Some(2),
            queue_depth: Some(8),
            chunk_bytes: Some(CHUNK),
            ..Settings::default()
        })
    }
}

/// Past the capture of test output: what is not checked should be known.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// What a child needs to know.
fn argument(plan: &Plan, backend: BackendKind, folder: &Path, loads: u64) -> String {
    format!("{}|{backend}|{loads}|{}", plan.name, folder.display())
}

fn of_argument(argument: &str) -> (&'static Plan, u64, Loader) {
    let mut parts = argument.splitn(4, '|');
    let plan = Plan::named(parts.next().unwrap());
    let backend = parts.next().unwrap().parse().unwrap();
    let loads = parts.next().unwrap().parse().unwrap();
    let folder = Path::new(parts.next().unwrap());
    (plan, loads, plan.loader(folder, backend))
}

#[test]
fn reads_bytes_and_copies_of_warm_loads() {
    for plan in PLANS {
        let folder = plan.write();
        for backend in backends() {
            let _dog = Watchdog::new(plan.name);
            let what = format!("{}, {backend}", plan.name);
            let loaded = plan
                .loader(folder.path(), backend)
                .access(AccessMode::Buffered)
                .load();
            let report = loaded.unwrap().report().clone();
            assert_eq!(report.bytes, plan.needed, "{what}");
            assert_eq!(report.direct_bytes, 0, "{what}");
            assert_eq!(report.staged_bytes, plan.staged, "{what}");
            if backend == BackendKind::Mmap && !plan.sliced {
                assert_eq!(
                    (report.reads, report.mapped_bytes),
                    (0, plan.read),
                    "{what}"
                );
                continue;
            }
            // Gaps where reads of rows meet are left out.
            let read = plan.read - plan.read / 100..=plan.read;
            assert!(
                read.contains(&report.read_bytes),
                "{what}: {} bytes",
                report.read_bytes
            );
            let (least, most) = plan.reads;
            assert!(
                (least..=most).contains(&report.reads),
                "{what}: {} reads",
                report.reads
            );
        }
    }
}

#[test]
fn page_faults_of_warm_loads() {
    for plan in PLANS {
        let folder = plan.write();
        // Mappings are faulted in by the kernel in one go, and not on huge pages.
        for backend in backends()
            .into_iter()
            .filter(|kind| *kind != BackendKind::Mmap)
        {
            child::run("count-faults", &argument(plan, backend, folder.path(), 1));
        }
    }
}

/// Faults that are not those of the destination: stacks of threads, lists of tensors, staging.
fn other_faults(plan: &Plan, buffers: u64, huge: bool) -> u64 {
    // Up to 800 bytes of plan, schedule and result for each tensor; some buffers and stacks.
    let lists = plan.files * plan.tensors * 800 / 4096;
    // A buffer has whole huge pages, and is faulted in once, however many reads use it.
    let buffer = CHUNK / if huge { 2 * MIB } else { 4096 };
    let staging = if plan.staged > 0 { buffers * buffer } else { 0 };
    400 + lists + staging
}

pub fn count_faults(argument: &str) {
    let (plan, _, loader) = of_argument(argument);
    let loader = loader.access(AccessMode::Buffered);
    // Whatever is made once, and memory that the allocator keeps.
    drop(loader.load().unwrap());
    let allowed = loader.facts(&loader.plan().unwrap()).huge_pages;
    let huge = gives_huge_pages(allowed, plan.needed.max(8 * MIB) as usize);
    let before = process::usage();
    let loaded = loader.load().unwrap();
    let faults = process::usage().since(&before).minor_faults.unwrap();
    drop(loaded);
    let pages = if huge {
        // The end of a region is on small pages.
        plan.needed / (2 * MIB) + 512
    } else {
        plan.needed / 4096
    };
    // One staging buffer for each read in flight.
    let decision = loader.schedule().unwrap().decision().clone();
    let buffers = (decision.workers * decision.queue_depth) as u64;
    let most = pages + other_faults(plan, buffers.min(plan.reads.1), huge);
    assert!(
        faults <= most,
        "{argument}: {faults} page faults, at most {most}"
    );
}

/// Whether memory that asks for huge pages gets them now: the system must allow them, and have
/// some left.
fn gives_huge_pages(allowed: HugePages, bytes: usize) -> bool {
    if !matches!(allowed, HugePages::Always | HugePages::Madvise) {
        return false;
    }
    let mut map = memmap2::MmapMut::map_anon(bytes + (2 << 20)).unwrap();
    let _ = map.advise(memmap2::Advice::HugePage);
    let before = process::usage();
    map.chunks_mut(4096).for_each(|page| page[0] = 1);
    let faults = process::usage().since(&before).minor_faults.unwrap();
    // Unaligned, so its two ends are on small pages.
    let given = faults < 1024 + bytes as u64 / (2 << 20) * 2;
    if !given {
        say("page faults: the system has no huge pages left, counting small ones");
    }
    given
}

#[test]
fn disk_reads_of_warm_loads_and_page_cache_after_cold_ones() {
    for plan in PLANS {
        let folder = plan.write();
        for backend in backends() {
            let _dog = Watchdog::new(plan.name);
            child::run("count-disk", &argument(plan, backend, folder.path(), 1));
        }
    }
}

pub fn count_disk(argument: &str) {
    let (plan, _, loader) = of_argument(argument);
    let mapped = loader.schedule().unwrap().decision().backend == BackendKind::Mmap;
    let read_plan = loader.plan().unwrap();
    let resident = || -> u64 {
        let facts = loader.facts(&read_plan);
        let spans = read_plan.spans.iter();
        let of = |span: &tensora::plan::Span| {
            let range = span.offset..span.offset + span.len;
            facts.sources[span.source as usize]
                .residency
                .resident_bytes(range)
        };
        spans.map(of).sum()
    };
    // Warm: whatever was evicted before is brought back first.
    for source in &read_plan.sources {
        std::fs::read(&source.path).unwrap();
    }
    let before = process::usage();
    drop(loader.load().unwrap());
    match process::usage().since(&before).read_bytes {
        Some(disk) => assert!(
            disk <= plan.read / 100,
            "{argument}: {disk} bytes from the disk"
        ),
        None => say("SKIPPED: disk reads of warm loads: the system does not count them"),
    }
    if mapped {
        return;
    }

    let left: u64 = read_plan
        .sources
        .iter()
        // What cannot be told counts as left.
        .map(|source| process::evict(&source.path).unwrap_or(1))
        .sum();
    let sources = loader.facts(&read_plan).sources;
    if left > 0 || sources.iter().any(|source| source.direct.is_none()) {
        let filesystem = &sources[0].filesystem;
        say(&format!(
            "SKIPPED: page cache after a cold load: {filesystem} cannot evict, or has no O_DIRECT"
        ));
        return;
    }
    let report = loader.load().unwrap().report().clone();
    let grown = resident();
    assert!(
        grown <= plan.read / 20,
        "{argument}: {grown} bytes in the page cache"
    );
    if report.direct_refusals == 0 {
        // Rounded to what direct reads are aligned to, and no more.
        let rounding = report.reads * 2 * 4096;
        assert!(
            report.read_bytes <= plan.read + rounding,
            "{argument}: {report:?}"
        );
    }
}

#[test]
fn system_calls_of_warm_loads() {
    let traced = std::process::Command::new("strace")
        .args(["-f", "-c", "-o", "/dev/null", "true"])
        .output();
    if !traced.is_ok_and(|output| output.status.success()) {
        say(
            "SKIPPED: system calls of loads: strace is not here or may not trace; reads are \
             counted by the loads alone",
        );
        return;
    }
    for plan in PLANS {
        let folder = plan.write();
        for backend in backends() {
            let _dog = Watchdog::new(plan.name);
            let one = calls(plan, backend, folder.path(), 1);
            let three = calls(plan, backend, folder.path(), 3);
            let per_load = |name: &str| {
                let of = |calls: &BTreeMap<String, u64>| calls.get(name).copied().unwrap_or(0);
                of(&three).saturating_sub(of(&one)).div_ceil(2)
            };
            let what = format!("{}, {backend}", plan.name);
            // How often threads wait for each other is a matter of luck, but it is not once for
            // each tensor.
            // The allocator grows its heaps as it likes.
            let left_out = ["futex", "sched_yield", "restart_syscall", "mprotect", "brk"];
            let futex = per_load("futex");
            let tensors = plan.files * plan.tensors;
            assert!(futex <= tensors / 2 + 500, "{what}: {futex} futex calls");
            let names = three
                .keys()
                .filter(|name| !left_out.contains(&name.as_str()));
            let all: u64 = names.map(|name| per_load(name)).sum();
            assert!(
                all <= plan.calls,
                "{what}: {all} calls: {three:?}, with one load {one:?}"
            );
            // Probing the machine uses `read`.
            let reading = per_load("pread64") + per_load("io_uring_enter");
            let most = plan.reads.1 + 16;
            assert!(
                reading <= most,
                "{what}: {reading} reading calls, at most {most}"
            );
        }
    }
}

/// Loads so many times, and leaves the tensors: giving memory back is counted elsewhere.
pub fn count_calls(argument: &str) {
    let (_, loads, loader) = of_argument(argument);
    let loader = loader.access(AccessMode::Buffered);
    for _ in 0..loads {
        std::mem::forget(loader.load().unwrap());
    }
}

/// System calls by name of a process that loads so many times.
fn calls(plan: &Plan, backend: BackendKind, folder: &Path, loads: u64) -> BTreeMap<String, u64> {
    let table = tempfile::NamedTempFile::new().unwrap();
    let wrapper = ["strace", "-f", "-c", "-o"].map(OsStr::new);
    let wrapper = [&wrapper[..], &[table.path().as_os_str()]].concat();
    let argument = argument(plan, backend, folder, loads);
    let output = child::under(&wrapper, "count-calls", &argument)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // % time, seconds, usecs/call, calls, errors (or nothing), name.
    let text = std::fs::read_to_string(table.path()).unwrap();
    text.lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let name = *words.last()?;
            let calls = words.get(3)?.parse().ok()?;
            (name != "total").then(|| (name.to_owned(), calls))
        })
        .collect()
}
