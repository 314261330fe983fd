//! Backends without a checkpoint around the bytes: whole files, all files at once, and ranges.
//!
//! `cargo bench --bench storage [-- FILTER]`; `TENSORA_MODEL_ID` chooses the model whose files are
//! read.
//!
//! The files are opened as partitions of an index of our own, in which each file, and each of the
//! ranges, is a tensor of bytes: what is read is known in advance, and nothing is parsed or reshaped.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tensora::storage::{LocalFile, Source};
use tensora::{BackendKind, Checkpoint, Engine, Layout, Selection, Tensor};

use common::{Subject, assert_right, available, criterion, loads, once, touch};

const BACKENDS: [BackendKind; 3] = [BackendKind::Sync, BackendKind::Async, BackendKind::IoUring];

/// Ranges in one batch, at most.
const RANGES: u64 = 256;

/// Bytes of a range. Like an expert's matrix; far less than a chunk of any backend.
const RANGE_BYTES: u64 = 256 << 10;

/// Bytes from one range to the next at least, so that no two of them are read as one.
const STEP_BYTES: u64 = 1 << 20;

fn all(criterion: &mut Criterion) {
    let subject = Subject::new(Layout::SafeTensors);
    backends(criterion, &subject);
    mmap(criterion, &subject);
}

fn backends(criterion: &mut Criterion, subject: &Subject) {
    for (backend, name) in available(&BACKENDS) {
        for (job, list) in [
            ("load", one as fn(&[File]) -> Vec<Range>),
            ("batch", whole),
            ("range_batch", spread),
        ] {
            let ranges = list(&files(subject));
            let group = format!("storage_{name}_{job}");
            let mut group = loads::group(criterion, &group, bytes(&ranges));
            let checkpoint = open(subject, &ranges);
            let load = || checkpoint.loader().backend(backend).load().expect("a load");
            let mut check = once(|| assert_right(&checkpoint, &load()));
            group.bench_function(subject.name(), |bencher| {
                check();
                bencher.iter_batched(|| (), |()| load(), BatchSize::PerIteration);
            });
            group.finish();
        }
    }
}

/// Opens the files, maps all of them and touches every page.
fn mmap(criterion: &mut Criterion, subject: &Subject) {
    let ranges = whole(&files(subject));
    let map = || -> Vec<Tensor> {
        let mapped = open(subject, &ranges).lazy().select(Selection::all());
        let mapped = mapped.expect("mappings");
        mapped.iter().for_each(|tensor| {
            touch(tensor);
        });
        mapped
    };
    let mut group = loads::group(criterion, "storage_mmap_open_touch", bytes(&ranges));
    let mut check = once(|| assert_right(&open(subject, &ranges), &map()));
    group.bench_function(subject.name(), |bencher| {
        check();
        bencher.iter_batched(|| (), |()| map(), BatchSize::PerIteration);
    });
    group.finish();
}

/// A file by its number, with its length in bytes.
type File = (usize, u64);

/// Bytes of a file.
struct Range {
    file: usize,
    offset: u64,
    len: u64,
}

fn files(subject: &Subject) -> Vec<File> {
    let sources = subject.checkpoint().sources().iter();
    sources.map(|source| source.len()).enumerate().collect()
}

fn bytes(ranges: &[Range]) -> u64 {
    ranges.iter().map(|range| range.len).sum()
}

/// The largest file.
fn one(files: &[File]) -> Vec<Range> {
    let largest = files.iter().max_by_key(|(_, len)| *len);
    whole(&largest.copied().into_iter().collect::<Vec<_>>())
}

/// All files.
fn whole(files: &[File]) -> Vec<Range> {
    let range = |&(file, len): &File| Range {
        file,
        offset: 0,
        len,
    };
    files.iter().map(range).collect()
}

/// Ranges at equal steps over all files: the same ones whenever the files are the same.
fn spread(files: &[File]) -> Vec<Range> {
    let in_each = RANGES / files.len() as u64;
    let in_file = |&(file, len): &File| {
        let count = (len / STEP_BYTES).clamp(1, in_each.max(1));
        let step = len / count;
        (0..count).map(move |at| Range {
            file,
            offset: at * step,
            len: RANGE_BYTES.min(step),
        })
    };
    files.iter().flat_map(in_file).collect()
}

/// The subject's files as a checkpoint whose tensors are `ranges`.
fn open(subject: &Subject, ranges: &[Range]) -> Checkpoint {
    let engine = Engine::shared();
    let source = |path: PathBuf| -> Arc<dyn Source> {
        Arc::new(LocalFile::open(path, engine.descriptors()).expect("it was opened before"))
    };
    let sources = subject.files().into_iter().map(source).collect();
    let entries: serde_json::Map<String, serde_json::Value> = ranges
        .iter()
        .enumerate()
        .map(|(number, range)| {
            let &Range { file, offset, len } = range;
            let entry = serde_json::json!([offset, len, [len], [1], "torch.uint8", file]);
            (format!("range.{number}"), entry)
        })
        .collect();
    let index = serde_json::Value::Object(entries).to_string();
    Checkpoint::from_sources(Layout::ServerlessLlm, sources, Some(index.as_bytes()))
        .expect("an index of our own")
}

criterion_group!(name = benches; config = criterion(); targets = all);
criterion_main!(benches);
