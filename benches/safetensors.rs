//! Loads of a SafeTensors checkpoint on every backend, and what they are compared with: plain reads
//! of whole files and the `safetensors` crate.
//!
//! `cargo bench --bench safetensors [-- FILTER]`; `TENSORA_MODEL_ID` chooses a model.

mod common;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use safetensors::SafeTensors;
use tensora::Layout;

use common::{Subject, criterion, loads, once};

fn all(criterion: &mut Criterion) {
    let subject = Subject::new(Layout::SafeTensors);
    loads::layout_groups(criterion, &subject);
    native(criterion, &subject);
}

/// One file after the other; tensors are views of the files' bytes.
fn native(criterion: &mut Criterion, subject: &Subject) {
    let read = || -> Vec<Vec<u8>> {
        let files = subject.files().into_iter();
        let read = files.map(|file| {
            let bytes = std::fs::read(file).expect("a file of the checkpoint");
            let tensors = SafeTensors::deserialize(&bytes).expect("a valid file");
            std::hint::black_box(tensors.tensors());
            bytes
        });
        read.collect()
    };
    let mut group = loads::group(criterion, "native_safetensors", subject.bytes());
    let mut check = once(|| {
        let bytes: usize = read().iter().map(Vec::len).sum();
        assert!(bytes as u64 >= subject.bytes());
    });
    group.bench_function(subject.name(), |bencher| {
        check();
        bencher.iter_batched(|| (), |()| read(), BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(name = benches; config = criterion(); targets = all);
criterion_main!(benches);
