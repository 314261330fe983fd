//! Parsing the header of a file of 46,000 tensors, ours against the `safetensors` crate's.
//!
//! `cargo bench --bench headers`

#[path = "common/many.rs"]
mod many;

use criterion::{Criterion, criterion_group, criterion_main};
use tensora::Checkpoint;
use tensora::formats::safetensors::parse_header;

fn headers(criterion: &mut Criterion) {
    let header = many::header();
    let file_len = many::file_len(&header);
    let mut file = header.clone();
    file.resize(file_len as usize, 0);
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, &file).expect("a file of 3 MiB");

    let mut group = criterion.benchmark_group("header_46000");
    group.bench_function("safetensors_metadata", |bencher| {
        bencher.iter(|| safetensors::SafeTensors::read_metadata(&file).expect("valid"));
    });
    group.bench_function("tensora_header", |bencher| {
        bencher.iter(|| parse_header(&header[8..], file_len, 0).expect("valid"));
    });
    group.bench_function("tensora_open", |bencher| {
        bencher.iter(|| Checkpoint::open(&path).expect("a valid file"));
    });
    group.finish();
}

criterion_group!(benches, headers);
criterion_main!(benches);
