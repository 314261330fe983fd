//! Every setting on every backend.

use tensora::{AccessMode, Checkpoint, Dtype, ErrorKind, Order, Settings};

use crate::support::{
    Sample, Watchdog, backends, block_on, check_every_verb, compare, next, safetensors, settings,
};

/// Two shards with large and small tensors in turn, so that in-place and packed memory, and the
/// orders of files and of names, differ.
fn mixed() -> Sample {
    let first: &[(&str, Dtype, &[u64])] = &[
        ("z", Dtype::F32, &[100]),
        ("b", Dtype::U8, &[300_001]),
        ("a", Dtype::U8, &[17]),
        ("d", Dtype::BF16, &[1000]),
    ];
    let second: &[(&str, Dtype, &[u64])] = &[
        ("c", Dtype::U8, &[31]),
        ("y", Dtype::F64, &[40_000]),
        ("e", Dtype::U8, &[5]),
        ("empty", Dtype::U8, &[0]),
    ];
    Sample::new(&[
        ("model-00001-of-00002.safetensors", safetensors(first, 1, 0)),
        (
            "model-00002-of-00002.safetensors",
            safetensors(second, 2, 3),
        ),
    ])
}

#[test]
fn workers_depths_chunks_access_and_alignment() {
    let _dog = Watchdog::new("settings");
    let sample = mixed();
    let expected = sample.all();
    for backend in backends() {
        for (workers, depth, chunk, access, align) in [
            (1, 1, 4096, AccessMode::Auto, None),
            (1, 32, 4096, AccessMode::Direct, None),
            (2, 3, 4099, AccessMode::Direct, Some(64)),
            (5, 2, 65_536, AccessMode::Buffered, Some(4096)),
            (16, 64, 1 << 30, AccessMode::Direct, Some(4096)),
            (3, 4096, 10_000, AccessMode::Auto, Some(1)),
        ] {
            let settings = Settings {
                backend,
                access,
                workers: Some(workers),
                queue_depth: Some(depth),
                chunk_bytes: Some(chunk),
                align,
                ..Settings::default()
            };
            let what = format!("{settings:?}");
            let loader = sample.checkpoint.loader().settings(settings);
            check_every_verb(&what, &loader, &expected);
            for tensor in &loader.load().unwrap() {
                let address = tensor.bytes().as_ptr() as usize;
                let promised = align.unwrap_or(1) as usize;
                assert!(
                    tensor.bytes().is_empty() || address.is_multiple_of(promised),
                    "{what}: {tensor:?} at {address:#x}"
                );
            }
        }
    }
}

#[test]
fn tiny_budgets_let_everything_through_in_either_order() {
    let sample = mixed();
    let expected = sample.all();
    for backend in backends() {
        for budget in [1, 4096, 300_000, 1 << 20] {
            for order in [Order::Arrival, Order::Name] {
                let what = format!("{backend}, budget {budget}, {order:?}");
                let _dog = Watchdog::new(&what);
                let loader = sample
                    .checkpoint
                    .loader()
                    .settings(settings(backend))
                    .budget(budget)
                    .order(order);
                let tensors: Vec<_> = loader.stream().unwrap().map(Result::unwrap).collect();
                compare(&what, &tensors, &expected);
                let mut stream = loader.stream().unwrap();
                let mut tensors = Vec::new();
                while let Some(tensor) = block_on(next(&mut stream)) {
                    tensors.push(tensor.unwrap());
                }
                compare(&what, &tensors, &expected);
                if order == Order::Name {
                    assert!(tensors.is_sorted_by_key(|tensor| tensor.name().to_owned()));
                }
            }
        }
    }
}

#[test]
fn a_budget_bounds_what_is_read_ahead() {
    // 40 tensors of 1 MiB under 4 MiB: with one taken, no more than the budget may have been read.
    let names: Vec<String> = (0..40).map(|i| format!("t{i:02}")).collect();
    let list: Vec<(&str, Dtype, &[u64])> = names
        .iter()
        .map(|name| (name.as_str(), Dtype::U8, &[1 << 20][..]))
        .collect();
    let sample = Sample::single(&list, 0);
    for backend in backends() {
        let loader = sample.checkpoint.loader().backend(backend).budget(4 << 20);
        let mut stream = loader.stream().unwrap();
        stream.next().unwrap().unwrap();
        // Readers have had all the time they want when they do not go on any more.
        let mut before = 0;
        loop {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let report = stream.report();
            let now = report.read_bytes + report.mapped_bytes;
            if now == before {
                break;
            }
            before = now;
        }
        assert!(before <= (6 << 20), "{backend}: {before} bytes read ahead");
        assert_eq!(stream.remaining(), 39);
        assert_eq!(stream.count(), 39);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_with_their_number() {
    let sample = mixed();
    for (settings, number) in [
        (
            Settings {
                workers: Some(0),
                ..Settings::default()
            },
            "0",
        ),
        (
            Settings {
                workers: Some(5000),
                ..Settings::default()
            },
            "5000",
        ),
        (
            Settings {
                queue_depth: Some(0),
                ..Settings::default()
            },
            "0",
        ),
        (
            Settings {
                queue_depth: Some(9999),
                ..Settings::default()
            },
            "9999",
        ),
        (
            Settings {
                chunk_bytes: Some(17),
                ..Settings::default()
            },
            "17",
        ),
        (
            Settings {
                chunk_bytes: Some(1 << 31),
                ..Settings::default()
            },
            "2147483648",
        ),
        (
            Settings {
                budget: Some(0),
                ..Settings::default()
            },
            "0",
        ),
        (
            Settings {
                align: Some(3),
                ..Settings::default()
            },
            "3",
        ),
        (
            Settings {
                align: Some(8192),
                ..Settings::default()
            },
            "8192",
        ),
    ] {
        let error = sample
            .checkpoint
            .loader()
            .settings(settings)
            .schedule()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(number), "{error}");
    }
}

#[test]
fn load_into_wants_exactly_the_selected_buffers() {
    let sample = Sample::single(&[("a", Dtype::U8, &[10]), ("b", Dtype::F32, &[5])], 0);
    let loader = sample.checkpoint.loader();
    let (mut ten, mut twenty, mut other) = ([0; 10], [0; 20], [0; 20]);
    type Buffers<'a> = Vec<(&'a str, &'a mut [u8])>;
    let refused = |buffers: Buffers<'_>, words: &str| {
        let error = loader.load_into(buffers).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(vec![("a", &mut ten)], "\"b\"");
    refused(vec![("a", &mut ten), ("b", &mut twenty[..19])], "19");
    refused(
        vec![("a", &mut ten), ("b", &mut twenty), ("c", &mut other)],
        "\"c\"",
    );
    refused(
        vec![("b", &mut other), ("b", &mut twenty), ("a", &mut ten)],
        "two buffers",
    );
}

#[test]
fn loads_at_once_on_one_engine() {
    let _dog = Watchdog::new("loads at once");
    let sample = mixed();
    let expected = sample.all();
    std::thread::scope(|scope| {
        for backend in backends() {
            for _ in 0..3 {
                let (sample, expected) = (&sample, &expected);
                scope.spawn(move || {
                    for _ in 0..5 {
                        let loader = sample.checkpoint.loader().settings(settings(backend));
                        let loaded = loader.load().unwrap();
                        compare(&format!("at once, {backend}"), &loaded, expected);
                        let streamed: Vec<_> = loader
                            .budget(4096)
                            .stream()
                            .unwrap()
                            .map(Result::unwrap)
                            .collect();
                        compare(&format!("at once, {backend}"), &streamed, expected);
                    }
                });
            }
        }
    });
}

#[test]
fn async_loads_on_a_runtime_of_one_thread() {
    let _dog = Watchdog::new("one thread");
    let sample = mixed();
    let expected = sample.all();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    for backend in backends() {
        let loader = sample.checkpoint.loader().settings(settings(backend));
        runtime.block_on(async {
            // Several at once on the one thread: none may block it.
            let loads: Vec<_> = (0..4)
                .map(|_| {
                    let loader = loader.clone();
                    tokio::task::spawn(async move { loader.load_async().await })
                })
                .collect();
            for load in loads {
                let loaded = load.await.unwrap().unwrap();
                compare(&format!("one thread, {backend}"), &loaded, &expected);
            }
            let mut stream = loader.clone().budget(1).stream().unwrap();
            let mut tensors = Vec::new();
            while let Some(tensor) = next(&mut stream).await {
                tensors.push(tensor.unwrap());
            }
            compare(&format!("one thread, {backend}"), &tensors, &expected);
            // Blocking verbs work there too, if somebody must.
            compare("blocking in a task", &loader.load().unwrap(), &expected);
        });
    }
}

#[test]
fn tensors_outlive_everything_else() {
    let sample = mixed();
    let expected = sample.all();
    for backend in backends() {
        let checkpoint = Checkpoint::open(sample.folder.path()).unwrap();
        let loaded = checkpoint.loader().backend(backend).load().unwrap();
        drop(checkpoint);
        let tensors: Vec<_> = loaded.into_iter().collect();
        compare("outlive", &tensors, &expected);
    }
}
