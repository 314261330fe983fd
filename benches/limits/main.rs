//! How close loads come to what the machine can do: every line is a ratio of two ways that took
//! turns in this process, over files of its own.
//!
//! `cargo bench --bench limits [-- --quick] [--size MIB] [--dir DIR] [--only WORD]`
//!
//! Fresh memory is memory that the process had not touched before. Before each timed run as much
//! memory as it needs is touched and given back, so that a virtual machine's host does not decide
//! who pays for the first touch. Cold means that the files' pages were evicted, and the residency
//! that was left is checked; warm means that every page is resident.

mod measure;
mod raw;
mod rivals;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tensora::sample::{SampleSpec, write_sample};
use tensora::{BackendKind, Checkpoint, Layout, Loader, Selection, Slice, Split};

use crate::measure::{Bench, Case, Goal, State, Way};

fn main() -> ExitCode {
    let options = Options::from_args();
    println!(
        "# limits: {} MiB a checkpoint, {} repetitions, {} cores, huge pages {:?}",
        options.mib,
        options.repetitions,
        std::thread::available_parallelism().map_or(1, usize::from),
        tensora::Facts::probe(&[], &[]).huge_pages,
    );
    println!("measure\tstate\tours\trival\tratio\tgoal\tverdict");
    let folder = tempfile::Builder::new()
        .prefix("tensora-limits-")
        .tempdir_in(&options.folder)
        .expect("a scratch folder");
    let mut bench = Bench::new(options.repetitions, options.only.clone());
    let made = |name: &str, layout, shards, tensors| {
        let path = folder.path().join(name);
        let spec = SampleSpec {
            total_bytes: options.mib << 20,
            shards,
            partitions: shards,
            tensors,
            layout,
            ..SampleSpec::default()
        };
        write_sample(&path, &spec).expect("a sample");
        Checkpoint::open(path).expect("our own sample")
    };
    let one = made("one", Layout::SafeTensors, 1, None);
    against_the_machine(&mut bench, &one);
    against_plain_loops(&mut bench, &one);
    at_once(&mut bench, &one);
    let eight = made("eight", Layout::SafeTensors, 8, None);
    against_parallel_reads(&mut bench, &eight);
    let partitions = made("partitions", Layout::ServerlessLlm, 8, None);
    between_layouts(&mut bench, &eight, &partitions);
    let small = made("small", Layout::SafeTensors, 1, Some(20_000));
    for (name, checkpoint) in [
        ("one file", &one),
        ("8 shards", &eight),
        ("8 partitions", &partitions),
        ("20,000 tensors", &small),
    ] {
        regret(&mut bench, name, checkpoint, None);
        regret(&mut bench, name, checkpoint, Some(64 << 20));
    }
    slices(&mut bench, &one);
    first_tensor(&mut bench, &one);
    println!("# {} lines missed their goal", bench.missed());
    if bench.missed() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

struct Options {
    mib: u64,
    repetitions: usize,
    folder: PathBuf,
    only: Option<String>,
}

impl Options {
    fn from_args() -> Self {
        let mut options = Self {
            mib: 2048,
            repetitions: 7,
            folder: Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned(),
            only: None,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{arg} wants a value"));
            match arg.as_str() {
                "--quick" => options.repetitions = 3,
                "--size" => options.mib = value().parse().expect("a size in MiB"),
                "--dir" => options.folder = value().into(),
                "--only" => options.only = Some(value()),
                // Cargo adds it.
                "--bench" => {}
                other => panic!("unknown argument {other}"),
            }
        }
        options
    }
}

fn loader(checkpoint: &Checkpoint, backend: BackendKind) -> Loader {
    checkpoint.loader().backend(backend)
}

/// A load that drops its tensors after the clock has stopped.
fn load(loader: Loader) -> Way<'static> {
    Way::new(move || Box::new(loader.load().expect("a load")))
}

fn against_the_machine(bench: &mut Bench, one: &Checkpoint) {
    let files = measure::files_of(one);
    let bytes = one.total_bytes();
    let ours = || load(loader(one, BackendKind::Default));

    let raw = raw::direct_ways(&files[0]);
    let best = bench.best(
        &Case::new("raw direct reads", State::Cold, &files, bytes),
        raw,
    );
    if let Some(best) = best {
        let fresh = raw::direct(&files[0], best);
        bench.compare(
            &Case::new("default / best raw direct read", State::Cold, &files, bytes),
            ours(),
            fresh,
            Goal::AtLeast(0.95),
        );
        let reused = raw::direct_reused(&files[0], best);
        bench.compare(
            &Case::new(
                "default / the same into reused memory",
                State::Cold,
                &files,
                bytes,
            ),
            ours(),
            reused,
            Goal::Shown,
        );
    }
    let native = || rivals::native(&files);
    bench.compare(
        &Case::new("default / native", State::Cold, &files, bytes),
        ours(),
        native(),
        Goal::AtLeast(1.6),
    );
    bench.compare(
        &Case::new("default / native", State::Warm, &files, bytes),
        ours(),
        native(),
        Goal::AtLeast(5.0),
    );
    let copy = raw::parallel_copy(&files[0]);
    bench.compare(
        &Case::new(
            "default / parallel copy of a resident map",
            State::Warm,
            &files,
            bytes,
        ),
        ours(),
        copy,
        Goal::AtLeast(0.90),
    );
    bench.cpu(
        &Case::new("CPU seconds per GB", State::Cold, &files, bytes),
        ours(),
        0.08,
    );
    bench.cpu(
        &Case::new("CPU seconds per GB", State::Warm, &files, bytes),
        ours(),
        0.12,
    );
    bench.pages("default", one, &files);
}

fn against_plain_loops(bench: &mut Bench, one: &Checkpoint) {
    let files = measure::files_of(one);
    let bytes = one.total_bytes();
    for (state, goal) in [(State::Cold, 1.5), (State::Warm, 4.0)] {
        let sync = load(loader(one, BackendKind::Sync));
        let plain = rivals::pread_into_vec(&files[0]);
        bench.compare(
            &Case::new("sync / loop of pread into a Vec", state, &files, bytes),
            sync,
            plain,
            Goal::AtLeast(goal),
        );
        let tokio = load(loader(one, BackendKind::Async));
        bench.compare(
            &Case::new("async / tokio::fs::read", state, &files, bytes),
            tokio,
            rivals::tokio_read(&files),
            Goal::AtLeast(goal),
        );
    }
}

fn against_parallel_reads(bench: &mut Bench, eight: &Checkpoint) {
    let files = measure::files_of(eight);
    let bytes = eight.total_bytes();
    let ours = || load(loader(eight, BackendKind::Default));
    for (state, goal) in [(State::Cold, 1.0), (State::Warm, 3.0)] {
        let parallel = rivals::native_parallel(&files);
        bench.compare(
            &Case::new("default / native-parallel, 8 shards", state, &files, bytes),
            ours(),
            parallel,
            Goal::AtLeast(goal),
        );
    }
    for state in [State::Cold, State::Warm] {
        let parallel = rivals::native_parallel(&files);
        bench.compare_cpu(
            &Case::new("default / native-parallel, CPU", state, &files, bytes),
            ours(),
            parallel,
            0.25,
        );
    }
}

fn between_layouts(bench: &mut Bench, eight: &Checkpoint, partitions: &Checkpoint) {
    let files: Vec<PathBuf> = [eight, partitions]
        .into_iter()
        .flat_map(measure::files_of)
        .collect();
    for state in [State::Cold, State::Warm] {
        let ours = load(loader(partitions, BackendKind::Default));
        let theirs = load(loader(eight, BackendKind::Default));
        bench.compare(
            &Case::new(
                "ServerlessLLM / SafeTensors",
                state,
                &files,
                eight.total_bytes(),
            ),
            ours,
            theirs,
            Goal::AtLeast(0.95),
        );
    }
}

/// `default` against the best explicit backend that returns owned memory; `limit`: the first
/// tensors of about so many bytes.
fn regret(bench: &mut Bench, name: &str, checkpoint: &Checkpoint, limit: Option<u64>) {
    let files = measure::files_of(checkpoint);
    let mut left = limit.unwrap_or(u64::MAX);
    let names: Vec<&str> = checkpoint
        .tensors()
        .iter()
        .take_while(|tensor| {
            let fits = left > 0;
            left = left.saturating_sub(tensor.nbytes());
            fits
        })
        .map(|tensor| &*tensor.name)
        .collect();
    let selection = if limit.is_some() {
        Selection::names(names)
    } else {
        Selection::all()
    };
    let of = |backend| load(loader(checkpoint, backend).select(selection.clone()));
    let size = limit.map_or_else(|| "all".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    let bytes = limit
        .unwrap_or(checkpoint.total_bytes())
        .min(checkpoint.total_bytes());
    for state in [State::Cold, State::Warm, State::Half] {
        let explicit = [BackendKind::Sync, BackendKind::Async, BackendKind::IoUring];
        let ways = explicit
            .iter()
            .map(|&backend| (backend.name().to_owned(), of(backend)))
            .collect();
        bench.regret(
            &Case::new(format!("regret, {name}, {size}"), state, &files, bytes),
            of(BackendKind::Default),
            ways,
            0.10,
        );
    }
}

fn at_once(bench: &mut Bench, one: &Checkpoint) {
    const LOADS: usize = 4;
    let files = measure::files_of(one);
    let quarter: Vec<Selection> = (0..LOADS)
        .map(|part| {
            let names = one
                .tensors()
                .iter()
                .skip(part)
                .step_by(LOADS)
                .map(|tensor| &*tensor.name);
            Selection::names(names)
        })
        .collect();
    for state in [State::Cold, State::Warm] {
        let (checkpoint, parts) = (one.clone(), quarter.clone());
        let four = Way::new(move || {
            let loads: Vec<_> = std::thread::scope(|scope| {
                let running: Vec<_> = parts
                    .iter()
                    .map(|part| {
                        scope.spawn(|| {
                            checkpoint
                                .loader()
                                .select(part.clone())
                                .load()
                                .expect("a load")
                        })
                    })
                    .collect();
                running
                    .into_iter()
                    .map(|load| load.join().expect("no panic"))
                    .collect()
            });
            Box::new(loads)
        });
        let whole = load(loader(one, BackendKind::Default));
        bench.compare(
            &Case::new("4 loads at once / one", state, &files, one.total_bytes()),
            four,
            whole,
            Goal::AtLeast(0.9),
        );
    }
}

fn slices(bench: &mut Bench, one: &Checkpoint) {
    let shard = |dim| Slice::Shard {
        dim,
        rank: 0,
        world: 8,
        split: Split::Balanced,
    };
    let two_d: Vec<&str> = one
        .tensors()
        .iter()
        .filter(|t| t.shape.len() == 2)
        .map(|t| &*t.name)
        .collect();
    for dim in [0, 1] {
        let selection = two_d.iter().fold(
            Selection::names(two_d.iter().copied()),
            |selection, name| {
                selection
                    .with_slice(name, shard(dim))
                    .expect("an exact name")
            },
        );
        let figures = one
            .loader()
            .select(selection.clone())
            .plan()
            .expect("a plan")
            .figures();
        let over = figures.span_bytes as f64 / figures.needed_bytes as f64;
        bench.note(
            &format!("rank 0 of 8 on dim {dim}: bytes in spans / needed"),
            over,
        );
        let files = measure::files_of(one);
        let sliced = load(one.loader().select(selection));
        let all = load(one.loader().select(Selection::names(two_d.iter().copied())));
        // Times, not rates: a part must not take longer than the whole.
        bench.compare(
            &Case::new(
                format!("rank 0 of 8 on dim {dim} / reading all, time"),
                State::Cold,
                &files,
                0,
            ),
            sliced,
            all,
            Goal::AtMost(1.0),
        );
    }
}

fn first_tensor(bench: &mut Bench, one: &Checkpoint) {
    let files = measure::files_of(one);
    bench.first_tensor("first tensor / whole load", &files, one, 0.05);
}
