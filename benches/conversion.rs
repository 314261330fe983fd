//! Conversion from SafeTensors to ServerlessLLM, by the backend that reads. Writing is timed along
//! with it, and ends when the files are flushed to the disk.
//!
//! `cargo bench --bench conversion [-- FILTER]`; `TENSORA_MODEL_ID` chooses a model.

mod common;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tensora::{BackendKind, Checkpoint, Layout};

use common::{Subject, assert_right, available, convert, criterion, loads, once, scratch};

const BACKENDS: [BackendKind; 4] = [
    BackendKind::Default,
    BackendKind::Sync,
    BackendKind::Async,
    BackendKind::IoUring,
];

fn conversions(criterion: &mut Criterion) {
    let subject = Subject::new(Layout::SafeTensors);
    for (backend, name) in available(&BACKENDS) {
        let name = format!("conversion_{name}");
        let mut group = loads::group(criterion, &name, subject.bytes());
        let mut check = once(|| {
            let folder = scratch();
            let path = folder.path().join("converted");
            convert(subject.checkpoint(), &path, backend);
            // The tensors of the original, in the files of the copy.
            let original = subject.checkpoint().load().expect("a load");
            let copy = Checkpoint::open(&path).expect("a checkpoint");
            assert_right(&copy, &original);
        });
        group.bench_function(subject.name(), |bencher| {
            check();
            bencher.iter_batched(
                scratch,
                |folder| {
                    let path = folder.path().join("converted");
                    convert(subject.checkpoint(), &path, backend);
                    // Removed after the clock has stopped.
                    folder
                },
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

criterion_group!(name = benches; config = criterion(); targets = conversions);
criterion_main!(benches);
