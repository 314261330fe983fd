//! Sources that misbehave below every backend.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tensora::storage::{Fault, FaultSource, MemorySource, Source};
use tensora::{BackendKind, Checkpoint, Dtype, Error, ErrorKind, Layout, Loader, Selection, Slice};

use crate::child;
use crate::support::{
    Expected, Watchdog, backends, block_on, check_every_verb, expected, full_text, next,
    safetensors, settings,
};

const TENSORS: &[(&str, Dtype, &[u64])] = &[
    ("first", Dtype::F32, &[3000]),
    ("odd", Dtype::U8, &[777]),
    ("middle", Dtype::BF16, &[100, 100]),
    ("long", Dtype::U8, &[300_000]),
    ("last", Dtype::F64, &[1000]),
];

struct Faulty {
    checkpoint: Checkpoint,
    source: Arc<FaultSource>,
    expected: Expected,
    /// End of the data, in bytes.
    len: u64,
    armed: Arc<AtomicBool>,
}

/// A checkpoint in memory that opens well and is read as `script` says from then on. Reads are
/// numbered from the moment of opening.
fn faulty(script: impl Fn(u64, u64, usize) -> Fault + Send + Sync + 'static) -> Faulty {
    let bytes = safetensors(TENSORS, 9, 0);
    let len = bytes.len() as u64;
    let armed = Arc::new(AtomicBool::new(false));
    let opened_after = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let watched = {
        let (armed, opened_after) = (Arc::clone(&armed), Arc::clone(&opened_after));
        move |number, offset, len| {
            if armed.load(Ordering::SeqCst) {
                script(number - opened_after.load(Ordering::SeqCst), offset, len)
            } else {
                Fault::None
            }
        }
    };
    let memory = Arc::new(MemorySource::new("faulty.safetensors", bytes.clone()));
    let source = Arc::new(FaultSource::new(memory, watched));
    let sources: Vec<Arc<dyn Source>> = vec![Arc::clone(&source) as Arc<dyn Source>];
    let checkpoint = Checkpoint::from_sources(Layout::SafeTensors, sources, None).unwrap();
    opened_after.store(source.reads(), Ordering::SeqCst);
    armed.store(true, Ordering::SeqCst);
    let expected = expected(&checkpoint, &[bytes], |_| Some(None));
    Faulty {
        checkpoint,
        source,
        expected,
        len,
        armed,
    }
}

/// The error of every verb, one after the other.
fn errors(loader: &Loader) -> Vec<(&'static str, Error)> {
    let mut errors = Vec::new();
    errors.push(("load", loader.load().unwrap_err()));
    errors.push(("async", block_on(loader.load_async()).unwrap_err()));
    let mut stream = loader.clone().budget(1).stream().unwrap();
    errors.push(("stream", stream.find_map(Result::err).unwrap()));
    assert!(stream.next().is_none(), "an error is the last item");
    let mut stream = loader.stream().unwrap();
    errors.push((
        "futures stream",
        loop {
            if let Err(error) = block_on(next(&mut stream)).unwrap() {
                break error;
            }
        },
    ));
    let mut buffers: Vec<_> = TENSORS
        .iter()
        .map(|(name, dtype, shape)| (*name, vec![0; dtype.nbytes(shape).unwrap() as usize]))
        .collect();
    let buffers = buffers
        .iter_mut()
        .map(|(name, buffer)| (*name, &mut buffer[..]));
    errors.push(("load_into", loader.load_into(buffers).unwrap_err()));
    errors
}

#[track_caller]
fn check_error(what: &str, error: &Error, kind: ErrorKind, words: &str) {
    let text = full_text(error);
    assert_eq!(error.kind(), kind, "{what}: {text}");
    assert!(
        error.to_string().contains("faulty.safetensors"),
        "{what}: {text}"
    );
    let tensor = error
        .tensor_name()
        .unwrap_or_else(|| panic!("{what}: no tensor in {text}"));
    assert!(
        TENSORS.iter().any(|(name, ..)| *name == tensor),
        "{what}: {text}"
    );
    assert!(text.contains(words), "{what}: {words:?} in {text}");
}

#[test]
fn short_reads_of_every_size_and_interruptions_change_nothing() {
    type Script = fn(u64, u64, usize) -> Fault;
    let scripts: [(&str, Script); 5] = [
        ("one byte at a time, mostly", |n, _, _| match n % 50 {
            0 => Fault::None,
            _ => Fault::Short(1 + (n % 7) as usize * 500),
        }),
        ("random lengths", |n, offset, _| {
            Fault::Short(1 + ((n ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize)
        }),
        ("EINTR", |n, _, _| match n % 3 {
            0 => Fault::None,
            _ => Fault::Errno(4),
        }),
        ("EAGAIN", |n, _, _| match n % 5 {
            0 => Fault::Short(1000),
            _ => Fault::Errno(11),
        }),
        ("interruptions by kind", |n, _, _| match n % 4 {
            0 => Fault::Error(io::ErrorKind::Interrupted),
            1 => Fault::Error(io::ErrorKind::WouldBlock),
            _ => Fault::Short(3333),
        }),
    ];
    for (name, script) in scripts {
        for backend in backends() {
            let what = format!("{name}, {backend}");
            let _dog = Watchdog::new(&what);
            let faulty = faulty(script);
            let loader = faulty.checkpoint.loader().settings(settings(backend));
            check_every_verb(&what, &loader, &faulty.expected);
            let slice = Slice::Ranges(vec![None, Some(30..40)]);
            let selection = Selection::names(["middle"])
                .with_slice("middle", slice)
                .unwrap();
            let loaded = loader.select(selection).load().unwrap();
            assert_eq!(loaded.get("middle").unwrap().nbytes(), 100 * 20);
        }
    }
}

#[test]
fn an_error_at_any_read_ends_the_load_with_file_and_tensor() {
    for backend in backends() {
        let clean = faulty(|_, _, _| Fault::None);
        let loader = clean.checkpoint.loader().settings(settings(backend));
        let before = clean.source.reads();
        loader.load().unwrap();
        let reads = clean.source.reads() - before;
        assert!(reads > 60, "{backend}: {reads} reads");
        for failing in [0, 1, reads / 2, reads - 1] {
            let what = format!("EIO at read {failing} of {reads}, {backend}");
            let _dog = Watchdog::new(&what);
            let faulty = faulty(move |number, _, _| {
                if number == failing {
                    Fault::Errno(5)
                } else {
                    Fault::None
                }
            });
            let error = faulty
                .checkpoint
                .loader()
                .settings(settings(backend))
                .load()
                .unwrap_err();
            check_error(&what, &error, ErrorKind::Io, "Input/output error");
            // What failed once may work the next time; nothing is left of the failure.
            let loader = faulty.checkpoint.loader().settings(settings(backend));
            check_every_verb(&what, &loader, &faulty.expected);
        }
    }
}

#[test]
fn errors_at_a_place_are_reported_by_every_verb() {
    for backend in backends() {
        let what = format!("EIO at a place, {backend}");
        let _dog = Watchdog::new(&what);
        let faulty = faulty(|_, offset, len| {
            let bad = 60_000;
            if offset <= bad && bad < offset + len as u64 {
                Fault::Errno(5)
            } else {
                Fault::None
            }
        });
        let loader = faulty.checkpoint.loader().settings(settings(backend));
        for (verb, error) in errors(&loader) {
            check_error(
                &format!("{what}, {verb}"),
                &error,
                ErrorKind::Io,
                "Input/output error",
            );
        }
    }
}

#[test]
fn an_interruption_that_never_ends_is_an_error_and_not_a_hang() {
    for backend in backends() {
        let what = format!("EAGAIN for ever, {backend}");
        let _dog = Watchdog::new(&what);
        let faulty = faulty(|_, _, _| Fault::Errno(11));
        let loader = faulty.checkpoint.loader().settings(settings(backend));
        let error = loader.load().unwrap_err();
        check_error(&what, &error, ErrorKind::Io, "temporarily unavailable");
    }
}

#[test]
fn a_source_that_ends_early_is_truncated_with_both_numbers() {
    for backend in backends() {
        for missing in [1, 7_000, 60_000, 310_000] {
            let what = format!("{missing} bytes missing, {backend}");
            let _dog = Watchdog::new(&what);
            let probe = faulty(|_, _, _| Fault::None);
            let end = probe.len - missing;
            let faulty = faulty(move |_, _, _| Fault::EndAt(end));
            let loader = faulty.checkpoint.loader().settings(settings(backend));
            for (verb, error) in errors(&loader) {
                let what = format!("{what}, {verb}");
                check_error(&what, &error, ErrorKind::Truncated, &faulty.len.to_string());
                let meta = faulty
                    .checkpoint
                    .require(error.tensor_name().unwrap())
                    .unwrap();
                assert!(meta.extents[0].end() > end, "{what}: {error}");
            }
        }
    }
}

#[test]
fn other_errors_keep_their_words() {
    for (fault, kind, words) in [
        (
            Fault::Error(io::ErrorKind::PermissionDenied),
            ErrorKind::Io,
            "permission denied",
        ),
        (
            Fault::Error(io::ErrorKind::NotFound),
            ErrorKind::NotFound,
            "not found",
        ),
        (Fault::Errno(12), ErrorKind::Io, "Cannot allocate memory"),
        (Fault::Errno(125), ErrorKind::Io, "canceled"),
        (Fault::Errno(22), ErrorKind::Io, "Invalid argument"),
    ] {
        for backend in backends() {
            let what = format!("{fault:?}, {backend}");
            let _dog = Watchdog::new(&what);
            let faulty = faulty(move |_, _, _| fault);
            let loader = faulty.checkpoint.loader().settings(settings(backend));
            check_error(&what, &loader.load().unwrap_err(), kind, words);
        }
    }
}

#[test]
fn a_source_that_panics_ends_a_stream_with_an_error() {
    for backend in backends() {
        let what = format!("a panicking source, {backend}");
        let _dog = Watchdog::new(&what);
        let faulty = faulty(|number, _, _| {
            assert!(number != 9, "(this panic is a part of the test)");
            Fault::None
        });
        let loader = faulty.checkpoint.loader().settings(settings(backend));
        let mut stream = loader.stream().unwrap();
        let error = stream.find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Io, "{what}: {error}");
        assert!(error.to_string().contains("panicked"), "{what}: {error}");
        drop(stream);
        // The engine is none the worse.
        check_every_verb(&what, &loader, &faulty.expected);
    }
}

#[test]
fn sources_without_descriptors_are_never_read_past_an_explicit_choice() {
    let clean = faulty(|_, _, _| Fault::None);
    for backend in backends() {
        let schedule = clean
            .checkpoint
            .loader()
            .backend(backend)
            .schedule()
            .unwrap();
        let expected = match backend {
            BackendKind::Default => BackendKind::Sync,
            explicit => explicit,
        };
        assert_eq!(schedule.decision().backend, expected);
    }
}

#[test]
fn loads_leave_no_threads() {
    child::run("no-threads-left", "");
}

pub fn no_threads_left() {
    for backend in backends() {
        for failing in [u64::MAX, 0, 30] {
            let faulty = faulty(move |number, _, _| {
                if number >= failing {
                    Fault::Errno(5)
                } else {
                    Fault::None
                }
            });
            let loader = faulty.checkpoint.loader().settings(settings(backend));
            assert_eq!(loader.load().is_ok(), failing == u64::MAX);
            assert_eq!(block_on(loader.load_async()).is_ok(), failing == u64::MAX);
            drop(loader.stream().unwrap().next());
            faulty.armed.store(false, Ordering::SeqCst);
            assert!(loader.load().is_ok());
        }
    }
    // The thread of an async load ends just after its answer was taken: the watchdog sets the limit.
    while !ours().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Threads of the library, those of the async runtime excepted, which belong to the engine.
fn ours() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("tensora") && !name.starts_with("tensora-async"))
        .collect()
}
