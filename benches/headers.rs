//! Parsing the header of a file of 46,000 tensors, ours against the `safetensors` crate's.
//!
//! `cargo bench --bench headers`

use criterion::{Criterion, criterion_group, criterion_main};
use tensora::Checkpoint;
use tensora::formats::safetensors::parse_header;

/// Tensors of a large mixture-of-experts model.
const TENSORS: usize = 46_000;

fn header() -> Vec<u8> {
    use std::fmt::Write;
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    for i in 0..TENSORS {
        let (layer, expert) = (i / 720, i % 720);
        let (begin, end) = (i * 32, (i + 1) * 32);
        write!(
            json,
            ",\"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight_scale_inv\":\
             {{\"dtype\":\"BF16\",\"shape\":[4,4],\"data_offsets\":[{begin},{end}]}}"
        )
        .expect("writing to a string");
    }
    json.push('}');
    while !json.len().is_multiple_of(8) {
        json.push(' ');
    }
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes
}

fn headers(criterion: &mut Criterion) {
    let header = header();
    let file_len = header.len() as u64 + TENSORS as u64 * 32;
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
