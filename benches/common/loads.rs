//! The groups of one layout: whole loads, and tensors one by one, on every backend.

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput};
use tensora::{BackendKind, Checkpoint, Loader, Selection};

use super::{Subject, assert_right, available, once};

const BACKENDS: [BackendKind; 5] = [
    BackendKind::Default,
    BackendKind::Sync,
    BackendKind::Async,
    BackendKind::IoUring,
    BackendKind::Mmap,
];

/// `LAYOUT_BACKEND`, `LAYOUT_BACKEND_tensor_sequential` and `LAYOUT_BACKEND_tensor_random`.
pub fn layout_groups(criterion: &mut Criterion, subject: &Subject) {
    for (backend, name) in available(&BACKENDS) {
        let base = format!("{}_{name}", subject.layout());
        whole(criterion, subject, backend, &base);
        let sequential = format!("{base}_tensor_sequential");
        one_by_one(
            criterion,
            subject,
            backend,
            &sequential,
            Subject::in_file_order,
        );
        let random = format!("{base}_tensor_random");
        one_by_one(
            criterion,
            subject,
            backend,
            &random,
            Subject::in_random_order,
        );
    }
}

/// A group whose throughput are the bytes of the subject.
pub fn group<'c>(
    criterion: &'c mut Criterion,
    name: &str,
    bytes: u64,
) -> BenchmarkGroup<'c, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(bytes));
    group
}

/// From the path to all bytes in memory; the memory goes back after the clock has stopped.
fn whole(criterion: &mut Criterion, subject: &Subject, backend: BackendKind, name: &str) {
    let open = || {
        let options = Checkpoint::options().layout(subject.layout());
        options.open(subject.path()).expect("it was opened before")
    };
    let load = || open().loader().backend(backend).load().expect("a load");
    let mut group = group(criterion, name, subject.bytes());
    let mut check = once(|| assert_right(subject.checkpoint(), &load()));
    group.bench_function(subject.name(), |bencher| {
        check();
        bencher.iter_batched(|| (), |()| load(), BatchSize::PerIteration);
    });
    if backend == BackendKind::Mmap {
        // What a lazy caller waits for: not one byte is in hand yet.
        let map = || open().lazy().select(Selection::all()).expect("mappings");
        let mut check = once(|| assert_right(subject.checkpoint(), &map()));
        group.bench_function(format!("{}_mapped_only", subject.name()), |bencher| {
            check();
            bencher.iter_batched(|| (), |()| map(), BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// All tensors through one opened checkpoint, each with a load of its own and given back before
/// the next.
fn one_by_one(
    criterion: &mut Criterion,
    subject: &Subject,
    backend: BackendKind,
    name: &str,
    order: impl Fn(&Subject) -> Vec<String>,
) {
    let mut group = group(criterion, name, subject.bytes());
    let mut check = once(|| {
        let loaders = loaders(subject, backend, order(subject));
        let loads = loaders.iter().map(|loader| loader.load().expect("a load"));
        let tensors: Vec<_> = loads.collect();
        assert_right(subject.checkpoint(), tensors.iter().flatten());
    });
    group.bench_function(subject.name(), |bencher| {
        check();
        let loaders = loaders(subject, backend, order(subject));
        bencher.iter(|| {
            for loader in &loaders {
                std::hint::black_box(loader.load().expect("a load"));
            }
        });
    });
    group.finish();
}

fn loaders(subject: &Subject, backend: BackendKind, names: Vec<String>) -> Vec<Loader> {
    let one = |name| {
        let loader = subject.checkpoint().loader().backend(backend);
        loader.select(Selection::names([name]))
    };
    names.into_iter().map(one).collect()
}
