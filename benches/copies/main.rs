//! How conversions, hashes and their memory compare with plain copies and reads: every line is a
//! ratio of two ways that took turns in this process, from files that were evicted before each turn.
//!
//! `cargo bench --features digest --bench copies [-- --quick] [--size MIB] [--dir DIR] [--only WORD]`
//!
//! A copy ends when its files and their folder are flushed to the disk, as a conversion does.

#[path = "../limits/measure.rs"]
#[allow(dead_code)] // Shared with the limits of loads, which take more of it.
mod measure;
#[path = "../limits/options.rs"]
mod options;
#[path = "../limits/peak.rs"]
mod peak;
mod plain;

use std::path::Path;
use std::process::ExitCode;

use tempfile::TempDir;
use tensora::converters::{ConvertOptions, convert};
use tensora::formats::serverlessllm::Dialect;
use tensora::sample::{SampleSpec, write_sample};
use tensora::{BackendKind, Checkpoint, Digests, Layout};

use crate::measure::{Bench, Case, Goal, State, Way, files_of};
use crate::options::Options;
use crate::peak::{Taken, peak_rss};

/// What a conversion may take over its budget, beside a piece: code, stacks, metadata.
const SLACK: u64 = 64 << 20;

/// Bytes of a checkpoint whose conversion's memory is measured.
const LARGE: u64 = 4 << 30;

fn main() -> ExitCode {
    if peak::is_child() {
        return ExitCode::SUCCESS;
    }
    let options = Options::from_args();
    println!(
        "# copies: {} MiB a checkpoint, {} repetitions, {} cores",
        options.mib,
        options.repetitions(),
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    println!("measure\tstate\tours\trival\tratio\tgoal\tverdict");
    let mut bench = Bench::new(options.repetitions(), options.only.clone());
    let scratch = |prefix| scratch(&options.folder, prefix);
    let samples = scratch("tensora-copies-");

    for (from, name) in [
        (Layout::SafeTensors, "SafeTensors, 4 files"),
        (Layout::ServerlessLlm, "ServerlessLLM, 4 partitions"),
    ] {
        let spec = SampleSpec {
            total_bytes: options.mib << 20,
            layout: from,
            shards: 4,
            partitions: 4,
            ..SampleSpec::default()
        };
        let checkpoint = sample(samples.path(), from.name(), &spec);
        conversions(&mut bench, name, &checkpoint, &|| scratch("tensora-out-"));
        hashes(&mut bench, name, &checkpoint);
    }
    let spec = SampleSpec {
        total_bytes: options.mib << 20,
        tensors: Some(20_000),
        shards: 4,
        ..SampleSpec::default()
    };
    let small = sample(samples.path(), "small", &spec);
    conversions(&mut bench, "20,000 tensors, 4 files", &small, &|| {
        scratch("tensora-out-")
    });
    drop(small);
    drop(samples);

    let samples = scratch("tensora-copies-");
    let spec = SampleSpec {
        total_bytes: LARGE,
        ..SampleSpec::default()
    };
    let large = sample(samples.path(), "large", &spec);
    memory(&mut bench, &large, &|| scratch("tensora-out-"));
    println!("# {} lines missed their goal", bench.missed());
    if bench.missed() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Conversions against `cp` of the same files, and against copies around the page cache.
fn conversions(
    bench: &mut Bench,
    name: &str,
    checkpoint: &Checkpoint,
    scratch: &dyn Fn() -> TempDir,
) {
    let files = files_of(checkpoint);
    let bytes = checkpoint.total_bytes();
    let dialects = match checkpoint.layout() {
        Layout::SafeTensors => &[("", Dialect::Local), (", store dialect", Dialect::Global)][..],
        Layout::ServerlessLlm => &[("", Dialect::Local)],
    };
    for &(suffix, dialect) in dialects {
        let options = ConvertOptions {
            dialect,
            ..ConvertOptions::default()
        };
        let measure = format!("{name}: conversion{suffix} / cp and fsync");
        bench.compare(
            &Case::new(measure, State::Cold, &files, bytes),
            converting(checkpoint, scratch, options),
            Way::new(|| plain::cp(&files, scratch())),
            Goal::AtLeast(0.9),
        );
    }
    let measure = format!("{name}: conversion / direct copy by 4 threads");
    bench.compare(
        &Case::new(measure, State::Cold, &files, bytes),
        converting(checkpoint, scratch, ConvertOptions::default()),
        Way::new(|| plain::direct(&files, scratch())),
        Goal::Shown,
    );
    let measure = format!("{name}: conversion with --verify / without");
    let verified = ConvertOptions {
        verify: true,
        ..ConvertOptions::default()
    };
    bench.compare(
        &Case::new(measure, State::Cold, &files, bytes),
        converting(checkpoint, scratch, verified),
        converting(checkpoint, scratch, ConvertOptions::default()),
        Goal::Shown,
    );
}

fn converting<'a>(
    checkpoint: &'a Checkpoint,
    scratch: &'a dyn Fn() -> TempDir,
    options: ConvertOptions,
) -> Way<'a> {
    Way::new(move || {
        let folder = scratch();
        let report = convert(checkpoint, folder.path().join("out"), &options);
        report.expect("a conversion");
        Box::new(folder)
    })
}

/// What hashing costs over reading.
fn hashes(bench: &mut Bench, name: &str, checkpoint: &Checkpoint) {
    let files = files_of(checkpoint);
    for (state, goal) in [
        (State::Cold, Goal::AtLeast(0.9)),
        (State::Warm, Goal::Shown),
    ] {
        let measure = format!("{name}: reading with SHA-256 of every tensor / without");
        bench.compare(
            &Case::new(measure, state, &files, checkpoint.total_bytes()),
            reading(checkpoint, Digests::Sha256),
            reading(checkpoint, Digests::None),
            goal,
        );
    }
}

fn reading(checkpoint: &Checkpoint, digests: Digests) -> Way<'_> {
    Way::new(move || {
        let loader = checkpoint.loader().budget(512 << 20).digests(digests);
        for tensor in loader.stream().expect("a stream") {
            std::hint::black_box(tensor.expect("a tensor"));
        }
        Box::new(())
    })
}

/// Peak memory of conversions, in processes of their own.
fn memory(bench: &mut Bench, checkpoint: &Checkpoint, scratch: &dyn Fn() -> TempDir) {
    let tensors = checkpoint.tensors().iter();
    let largest = tensors.map(|tensor| tensor.nbytes()).max().unwrap_or(0);
    // A conversion cuts tensors into pieces of at most 16 MiB.
    let chunk = largest.min(16 << 20);
    for budget in [64 << 20, 512 << 20] {
        let measure = format!(
            "peak RSS of a conversion of 4 GiB under {} MiB / (budget + chunk + 64 MiB)",
            budget >> 20
        );
        bench.count(
            &measure,
            || {
                let folder = scratch();
                let taken = Taken::Converted(budget, folder.path().join("out"));
                let peak = peak_rss(checkpoint.root(), BackendKind::Default, &taken);
                peak as f64 / (budget + chunk + SLACK) as f64
            },
            1.0,
        );
    }
}

fn sample(folder: &Path, name: &str, spec: &SampleSpec) -> Checkpoint {
    let path = folder.join(name);
    write_sample(&path, spec).expect("a sample");
    Checkpoint::open(path).expect("our own sample")
}

fn scratch(folder: &Path, prefix: &str) -> TempDir {
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir_in(folder)
        .expect("a scratch folder")
}
