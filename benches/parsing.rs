//! What happens between the bytes of a header and the first read, for 46,000 tensors: parsing,
//! planning, and lowering a plan to requests. Pure: no file is touched.
//!
//! `cargo bench --bench parsing [-- FILTER]`

#[path = "common/many.rs"]
mod many;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Map, Value, json};
use tensora::formats::index::ShardIndex;
use tensora::formats::safetensors::parse_header;
use tensora::formats::serverlessllm::PartitionIndex;
use tensora::plan::PlanSource;
use tensora::{Facts, PlanOptions, ReadPlan, Schedule, Selection, Settings, Slice, Split};

use many::TENSORS;

/// Shards and partitions that the indexes name.
const FILES: usize = 40;

fn parsing(criterion: &mut Criterion) {
    let header = many::header();
    let file_len = many::file_len(&header);
    let shards = shard_index();
    let partitions = partition_index();
    let parsed = ShardIndex::parse(&shards).expect("valid");
    assert_eq!(parsed.entries().len(), TENSORS);
    let parsed = PartitionIndex::parse(&partitions).expect("valid");
    assert_eq!(parsed.partition_ids().len(), FILES);

    let mut group = criterion.benchmark_group("parse_46000");
    group.throughput(Throughput::Bytes(header.len() as u64));
    group.bench_function("safetensors_header", |bencher| {
        bencher.iter(|| parse_header(&header[8..], file_len, 0).expect("valid"));
    });
    group.throughput(Throughput::Bytes(shards.len() as u64));
    group.bench_function("safetensors_index", |bencher| {
        bencher.iter(|| ShardIndex::parse(&shards).expect("valid"));
    });
    group.throughput(Throughput::Bytes(partitions.len() as u64));
    group.bench_function("serverlessllm_index", |bencher| {
        bencher.iter(|| PartitionIndex::parse(&partitions).expect("valid"));
    });
    group.finish();
}

/// Counted in tensors: a plan moves no bytes.
fn planning(criterion: &mut Criterion) {
    let header = many::header();
    let file_len = many::file_len(&header);
    let tensors = parse_header(&header[8..], file_len, 0)
        .expect("valid")
        .tensors;
    let sources = || {
        vec![PlanSource {
            path: "model.safetensors".into(),
            len: file_len,
        }]
    };
    let options = PlanOptions::default();
    let plan = |sources, selection: &Selection| {
        ReadPlan::from_parts(&tensors, sources, selection, &options).expect("a plan")
    };
    let share = Slice::Shard {
        dim: 0,
        rank: 1,
        world: 4,
        split: Split::Even,
    };
    let share = Selection::all().with_slice("*", share).expect("a pattern");
    let layers = Selection::glob("model.layers.1*.weight_scale_inv").expect("a pattern");

    let mut group = criterion.benchmark_group("plan_46000");
    group.throughput(Throughput::Elements(TENSORS as u64));
    for (name, selection) in [
        ("all", Selection::all()),
        ("one_name", Selection::names([many::name(TENSORS / 2)])),
        ("glob", layers),
        ("share_of_rank", share),
    ] {
        assert!(!plan(sources(), &selection).spans.is_empty());
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                sources,
                |sources| plan(sources, &selection),
                BatchSize::SmallInput,
            );
        });
    }
    let whole = plan(sources(), &Selection::all());
    let (facts, settings) = (Facts::neutral(1), Settings::default());
    group.bench_function("lower", |bencher| {
        bencher.iter(|| Schedule::lower(&whole, &facts, &settings).expect("a schedule"));
    });
    group.finish();
}

fn shard_index() -> Vec<u8> {
    let shard = |i: usize| {
        format!(
            "model-{:05}-of-{FILES:05}.safetensors",
            i * FILES / TENSORS + 1
        )
    };
    let map: Map<String, Value> = (0..TENSORS)
        .map(|i| (many::name(i), shard(i).into()))
        .collect();
    json!({"metadata": {"total_size": TENSORS * many::TENSOR_BYTES}, "weight_map": map})
        .to_string()
        .into_bytes()
}

fn partition_index() -> Vec<u8> {
    let entry = |i: usize| {
        let (begin, end) = many::range(i);
        let partition = i * FILES / TENSORS;
        json!([
            begin,
            end - begin,
            [4, 4],
            [4, 1],
            "torch.bfloat16",
            partition
        ])
    };
    let map: Map<String, Value> = (0..TENSORS).map(|i| (many::name(i), entry(i))).collect();
    Value::Object(map).to_string().into_bytes()
}

criterion_group!(benches, parsing, planning);
criterion_main!(benches);
