//! What can be in a checkpoint and what can be asked of it, on every backend and by every verb.

use tensora::{BackendKind, Dtype, Selection, Slice, Split, Steps};

use crate::support::{
    Expected, Sample, Watchdog, backends, check_every_verb, check_lazy, noise, safetensors,
    settings,
};

/// Runs a selection of a sample through every backend and verb.
#[track_caller]
fn check(what: &str, sample: &Sample, selection: &Selection, expected: &Expected) {
    let _dog = Watchdog::new(what);
    for backend in backends() {
        let loader = sample
            .checkpoint
            .loader()
            .select(selection.clone())
            .settings(settings(backend));
        check_every_verb(&format!("{what}, {backend}"), &loader, expected);
    }
    check_lazy(what, &sample.checkpoint, selection.clone(), expected);
}

/// Tensors around every boundary: none, one byte, a page and its neighbours, several chunks.
const SIZES: &[(&str, Dtype, &[u64])] = &[
    ("empty", Dtype::F32, &[0, 7]),
    ("one", Dtype::U8, &[1]),
    ("scalar", Dtype::F64, &[]),
    ("4095", Dtype::I8, &[4095]),
    ("4096", Dtype::U8, &[4096]),
    ("4097", Dtype::U8, &[4097]),
    ("more", Dtype::BF16, &[300, 211]),
    ("packed", Dtype::F4, &[6, 10]),
    ("last", Dtype::F32, &[1]),
    ("empty too", Dtype::U8, &[0]),
];

#[test]
fn sizes_around_pages_and_chunks() {
    let sample = Sample::single(SIZES, 0);
    check("sizes", &sample, &Selection::all(), &sample.all());
}

#[test]
fn headers_that_leave_every_element_misaligned() {
    for pad in [1, 3, 4, 4090] {
        let sample = Sample::single(SIZES, pad);
        let what = format!("header {pad} off");
        check(&what, &sample, &Selection::all(), &sample.all());
    }
}

#[test]
fn nothing_but_empty_tensors() {
    let sample = Sample::single(&[("a", Dtype::F32, &[0]), ("b", Dtype::U8, &[3, 0])], 0);
    check("empty", &sample, &Selection::all(), &sample.all());
    let sample = Sample::new(&[("model.safetensors", safetensors(&[], 1, 0))]);
    check("no tensors", &sample, &Selection::all(), &sample.all());
}

#[test]
fn one_slice_of_every_dimension() {
    let shape = [6, 10, 30];
    let sample = Sample::single(
        &[
            ("before", Dtype::U8, &[100]),
            ("w", Dtype::F16, &shape),
            ("after", Dtype::F32, &[5]),
        ],
        2,
    );
    for dim in 0..3 {
        let rows = shape[dim];
        let whole = || vec![None; 3];
        let mut slices = Vec::new();
        for range in [0..rows, 0..1, rows - 1..rows, 1..rows - 1, 2..2] {
            let mut ranges = whole();
            ranges[dim] = Some(range);
            slices.push(Slice::Ranges(ranges));
        }
        for (world, split) in [(2, Split::Even), (4, Split::Balanced), (7, Split::Balanced)] {
            for rank in [0, world - 1] {
                slices.push(Slice::Shard {
                    dim,
                    rank,
                    world,
                    split,
                });
            }
        }
        for slice in slices {
            let what = format!("{slice:?}");
            let selection = Selection::all().with_slice("w", slice.clone()).unwrap();
            let expected = sample.parts(|name| Some((name == "w").then(|| slice.clone())));
            check(&what, &sample, &selection, &expected);
        }
    }
}

#[test]
fn slices_of_several_dimensions_and_of_long_rows() {
    let sample = Sample::single(
        &[
            ("cube", Dtype::U8, &[7, 9, 11, 5]),
            ("wide", Dtype::F32, &[3, 40_000]),
        ],
        1,
    );
    let cube = Slice::Ranges(vec![Some(1..6), None, Some(2..9), Some(1..4)]);
    let wide = Slice::Ranges(vec![None, Some(9_999..30_001)]);
    let selection = Selection::all()
        .with_slice("cube", cube.clone())
        .and_then(|selection| selection.with_slice("w*", wide.clone()))
        .unwrap();
    let expected = sample.parts(|name| {
        Some(Some(if name == "cube" {
            cube.clone()
        } else {
            wide.clone()
        }))
    });
    check("several dimensions", &sample, &selection, &expected);
}

#[test]
fn slices_with_steps() {
    let shape = [6, 10, 31];
    let index = serde_json::json!({
        "w": [64, 3720, shape, [310, 31, 1], "torch.float16"],
        "view": [3785, 3720, [31, 10, 6], [1, 31, 310], "torch.float16"],
        "wide": [7505, 480_000, [3, 40_000], [40_000, 1], "torch.float32"],
    });
    // The second partition begins within "w", the third within "wide".
    let parts = Sample::new(&[
        ("tensor_index.json", serde_json::to_vec(&index).unwrap()),
        ("tensor.data_0", noise(1, 1999)),
        ("tensor.data_1", noise(2, 200_003)),
        ("tensor.data_2", noise(3, 300_000)),
    ]);
    let file = Sample::single(
        &[
            ("w", Dtype::F16, &shape),
            ("wide", Dtype::F32, &[3, 40_000]),
            ("packed", Dtype::F4, &[7, 10]),
        ],
        3,
    );
    let of = |start, count, step| Some(Steps { start, count, step });
    let slices = [
        ("w", vec![of(1, 3, 2), None, None]),
        ("w", vec![None, of(0, 5, 2), None]),
        ("w", vec![None, None, of(2, 10, 3)]),
        ("w", vec![of(0, 2, 5), of(9, 1, 1), of(0, 2, 30)]),
        ("w", vec![of(0, 3, 2), of(1, 3, 3), of(1, 15, 2)]),
        ("w", vec![of(4, 2, 1), of(0, 0, 1), None]),
        ("wide", vec![of(0, 2, 2), of(9, 13_000, 3)]),
        ("wide", vec![None, of(1, 3, 15_000)]),
        ("wide", vec![of(0, 2, 2), None]),
        ("view", vec![of(0, 11, 3), None, of(1, 3, 2)]),
        ("view", vec![of(30, 1, 1), of(0, 4, 3), None]),
        ("packed", vec![of(0, 4, 2), None]),
    ];
    for (name, steps) in slices {
        let slice = Slice::Steps(steps);
        let selection = Selection::names([name])
            .with_slice(name, slice.clone())
            .unwrap();
        for (what, sample) in [("one file", &file), ("partitions", &parts)] {
            if sample.checkpoint.tensor(name).is_none() {
                continue;
            }
            let expected = sample.parts(|other| (other == name).then(|| Some(slice.clone())));
            let what = format!("{name} of {what}, {slice:?}");
            check(&what, sample, &selection, &expected);
        }
    }
}

#[test]
fn selections_by_name_glob_and_expression() {
    let tensors: Vec<(String, Dtype, [u64; 1])> = (0..40)
        .map(|i| (format!("layers.{i}.w[0]*"), Dtype::F32, [37 * i % 900]))
        .collect();
    let list: Vec<(&str, Dtype, &[u64])> = tensors
        .iter()
        .map(|(name, dtype, shape)| (name.as_str(), *dtype, &shape[..]))
        .collect();
    let sample = Sample::new(&[
        (
            "model-00001-of-00002.safetensors",
            safetensors(&list[..20], 1, 0),
        ),
        (
            "model-00002-of-00002.safetensors",
            safetensors(&list[20..], 2, 5),
        ),
    ]);
    let names = ["layers.7.w[0]*", "layers.33.w[0]*"];
    let by_name = sample.parts(|name| names.contains(&name).then_some(None));
    check("names", &sample, &Selection::names(names), &by_name);
    let glob = Selection::glob("layers.{1,3?}.*").unwrap();
    let chosen = |name: &str| {
        name.starts_with("layers.1.") || name.starts_with("layers.3") && name.len() == 15
    };
    check(
        "glob",
        &sample,
        &glob,
        &sample.parts(|name| chosen(name).then_some(None)),
    );
    let regex = Selection::regex(r"\.2\d\.")
        .unwrap()
        .or(Selection::names(["layers.0.w[0]*"]));
    let chosen =
        |name: &str| name.starts_with("layers.2") && name.len() == 15 || name == "layers.0.w[0]*";
    check(
        "regex",
        &sample,
        &regex,
        &sample.parts(|name| chosen(name).then_some(None)),
    );
}

#[test]
fn partitions_with_ties_and_transposed_views() {
    let index = serde_json::json!({
        "tied.a": [0, 8000, [50, 40], [40, 1], "torch.float32", 0],
        "tied.b": [0, 8000, [50, 40], [40, 1], "torch.float32", 0],
        "inside": [400, 400, [100], [1], "torch.float32", 0],
        "transposed": [8000, 12000, [60, 100], [1, 60], "torch.bfloat16", 0],
        "expanded": [20000, 40, [1000, 10], [0, 1], "torch.float32", 0],
        "misaligned": [20041, 4096, [1024], [1], "torch.float32", 0],
        "other": [0, 9999, [9999], [1], "torch.uint8", 1],
        "empty": [0, 0, [0, 3], [3, 1], "torch.float16", 1],
    });
    let sample = Sample::new(&[
        ("tensor_index.json", serde_json::to_vec(&index).unwrap()),
        ("tensor.data_0", noise(5, 24_200)),
        ("tensor.data_1", noise(6, 10_000)),
    ]);
    check("partitions", &sample, &Selection::all(), &sample.all());
    for name in ["transposed", "expanded", "tied.b"] {
        for ranges in [
            vec![Some(3..17), None],
            vec![None, Some(2..9)],
            vec![Some(1..2), Some(9..10)],
        ] {
            let slice = Slice::Ranges(ranges);
            let selection = Selection::all().with_slice(name, slice.clone()).unwrap();
            let expected = sample.parts(|other| Some((other == name).then(|| slice.clone())));
            check(&format!("{name} {slice:?}"), &sample, &selection, &expected);
        }
    }
}

#[test]
fn tensors_that_cross_partitions() {
    // Five elements: offsets over the partitions one after the other.
    let index = serde_json::json!({
        "within": [64, 4000, [1000], [1], "torch.float32"],
        "crossing": [4064, 40_000, [100, 100], [100, 1], "torch.float32"],
        "view": [44_064, 10_000, [50, 100], [1, 50], "torch.float16"],
        "tied": [4064, 40_000, [100, 100], [100, 1], "torch.float32"],
    });
    let sample = Sample::new(&[
        ("tensor_index.json", serde_json::to_vec(&index).unwrap()),
        ("tensor.data_0", noise(1, 10_001)),
        ("tensor.data_1", noise(2, 123)),
        ("tensor.data_2", noise(3, 37_000)),
        ("tensor.data_3", noise(4, 10_000)),
    ]);
    check("crossing", &sample, &Selection::all(), &sample.all());
    for slice in [
        Slice::Ranges(vec![Some(3..99), None]),
        Slice::Ranges(vec![None, Some(50..51)]),
        Slice::Shard {
            dim: 1,
            rank: 2,
            world: 3,
            split: Split::Balanced,
        },
    ] {
        let selection = Selection::all()
            .with_slice("crossing", slice.clone())
            .unwrap();
        let expected = sample.parts(|name| Some((name == "crossing").then(|| slice.clone())));
        check(
            &format!("crossing {slice:?}"),
            &sample,
            &selection,
            &expected,
        );
    }
}

#[test]
fn mappings_serve_aligned_files_without_a_copy() {
    let sample = Sample::single(
        &[("a", Dtype::U8, &[300_000]), ("b", Dtype::F32, &[1000])],
        0,
    );
    let loaded = sample
        .checkpoint
        .loader()
        .backend(BackendKind::Mmap)
        .load()
        .unwrap();
    assert_eq!(loaded.report().staged_bytes, 0);
    assert_eq!(loaded.report().reads, 0);
    assert!(loaded.report().mapped_bytes >= 304_000);
}
