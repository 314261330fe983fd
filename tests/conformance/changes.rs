//! Files that change under a checkpoint: before the load, during it, between two of them.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use tensora::{BackendKind, Dtype, Error, ErrorKind, Selection};

use crate::child;
use crate::support::{
    Sample, Watchdog, backends, block_on, compare, full_text, safetensors, settings,
};

const TENSORS: &[(&str, Dtype, &[u64])] = &[
    ("a", Dtype::F32, &[1000]),
    ("b", Dtype::U8, &[5_000_001]),
    ("c", Dtype::U8, &[100]),
    ("d", Dtype::BF16, &[600_000]),
];

fn sample() -> Sample {
    static FILES: OnceLock<[(&str, Vec<u8>); 2]> = OnceLock::new();
    Sample::new(FILES.get_or_init(|| {
        let (front, back) = TENSORS.split_at(2);
        [
            ("model-00001-of-00002.safetensors", safetensors(front, 1, 0)),
            ("model-00002-of-00002.safetensors", safetensors(back, 2, 0)),
        ]
    }))
}

/// Every verb's answer to a sample that was changed by `change` after it was opened, and once
/// more after it had been loaded.
fn refused(what: &str, allowed: &[ErrorKind], change: impl Fn(&Path)) {
    for backend in backends() {
        for loaded_before in [false, true] {
            let what = format!("{what}, {backend}, loaded before: {loaded_before}");
            let _dog = Watchdog::new(&what);
            let sample = sample();
            let loader = sample.checkpoint.loader().settings(settings(backend));
            if loaded_before {
                loader.load().unwrap();
            }
            let path = sample.path(1);
            change(&path);
            let check = |verb: &str, error: Error| {
                let text = full_text(&error);
                assert!(allowed.contains(&error.kind()), "{what}, {verb}: {text}");
                assert_eq!(error.path(), Some(&*path), "{what}, {verb}: {text}");
            };
            check("load", loader.load().unwrap_err());
            check("async", block_on(loader.load_async()).unwrap_err());
            let error = match loader.stream() {
                Err(error) => error,
                Ok(mut stream) => stream.find_map(Result::err).unwrap(),
            };
            check("stream", error);
            let mut memory = [0; 100];
            let one = loader.clone().select(Selection::names(["c"]));
            check(
                "load_into",
                one.load_into([("c", &mut memory[..])]).unwrap_err(),
            );
            check("lazy", sample.checkpoint.lazy().tensor("c").unwrap_err());
            check("alone", sample.checkpoint.read("c").unwrap_err());
            // The other file is as it was.
            let untouched = loader.select(Selection::names(["a"])).load().unwrap();
            assert_eq!(untouched.len(), 1);
        }
    }
}

#[test]
fn a_file_replaced_by_rename_is_refused() {
    refused("replaced", &[ErrorKind::SourceChanged], |path| {
        let copy = path.with_extension("new");
        std::fs::copy(path, &copy).unwrap();
        std::fs::rename(copy, path).unwrap();
    });
}

#[test]
fn a_file_that_has_grown_is_refused() {
    refused("grown", &[ErrorKind::SourceChanged], |path| {
        let file = OpenOptions::new().append(true).open(path).unwrap();
        std::io::Write::write_all(&mut &file, b"more").unwrap();
    });
}

#[test]
fn a_file_with_another_time_is_refused() {
    refused("touched", &[ErrorKind::SourceChanged], |path| {
        let file = OpenOptions::new().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(5))
            .unwrap();
    });
}

#[test]
fn a_stream_tells_of_a_change_with_the_next_tensor() {
    let sample = sample();
    let mut stream = sample.checkpoint.loader().budget(1).stream().unwrap();
    stream.next().unwrap().unwrap();
    for at in 0..2 {
        let file = OpenOptions::new()
            .append(true)
            .open(sample.path(at))
            .unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(5))
            .unwrap();
    }
    // Longer than the files are believed to stay as they are.
    std::thread::sleep(Duration::from_millis(100));
    let error = stream.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SourceChanged);
    assert!(stream.next().is_none());
}

#[test]
fn a_file_that_has_gone_is_not_found() {
    refused("deleted", &[ErrorKind::NotFound], |path| {
        std::fs::remove_file(path).unwrap()
    });
}

#[test]
fn a_link_that_was_pointed_elsewhere_is_refused() {
    refused("another target", &[ErrorKind::SourceChanged], |path| {
        let other = path.with_extension("other");
        std::fs::copy(path, &other).unwrap();
        std::fs::remove_file(path).unwrap();
        std::os::unix::fs::symlink(other, path).unwrap();
    });
}

#[test]
fn truncation_is_an_error_and_never_a_signal() {
    for backend in backends() {
        child::run("truncate", backend.name());
    }
}

/// Cuts files at every stage of a load. A signal would end this process.
pub fn truncate(backend: &str) {
    let backend: BackendKind = backend.parse().unwrap();
    let allowed = [ErrorKind::Truncated, ErrorKind::SourceChanged];
    let check = |what: &str, error: &Error| {
        assert!(
            allowed.contains(&error.kind()),
            "{what}: {}",
            full_text(error)
        );
    };
    let cut = |path: &Path, len: u64| {
        let file: File = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(len).unwrap();
    };
    // Before the load, down to nothing, within a page, and by one byte.
    for len in [0, 4097, 5_004_000] {
        let sample = sample();
        cut(&sample.path(0), len);
        let loader = sample.checkpoint.loader().settings(settings(backend));
        check("before", &loader.load().unwrap_err());
        check(
            "before, lazy",
            &sample.checkpoint.lazy().tensor("b").unwrap_err(),
        );
        check("before, alone", &sample.checkpoint.read("b").unwrap_err());
    }
    // While a stream waits for its taker.
    let sample = sample();
    let loader = sample
        .checkpoint
        .loader()
        .settings(settings(backend))
        .budget(1);
    let mut stream = loader.stream().unwrap();
    stream.next().unwrap().unwrap();
    cut(&sample.path(1), 1000);
    check("while streaming", &stream.find_map(Result::err).unwrap());
    // At some moment of a load that does not wait.
    let mut caught = 0;
    for round in 0..20 {
        let sample = self::sample();
        let path = sample.path(0);
        let expected = sample.all();
        let loader = sample.checkpoint.loader().settings(settings(backend));
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(round * 120));
                cut(&path, 2_000_000);
            });
            loader.load()
        });
        match outcome {
            Err(error) => {
                check("during", &error);
                caught += 1;
            }
            // It was over before the cut. What is mapped then is the reader's own risk.
            Ok(loaded) if backend != BackendKind::Mmap => {
                compare("before the cut", &loaded, &expected);
            }
            Ok(_) => {}
        }
    }
    assert!(caught > 0, "no load met the cut");
}
