//! Large ranges and many files.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensora::{BackendKind, Checkpoint, Dtype, Engine, Selection, Settings, Slice};

use crate::child;
use crate::log::Log;
use crate::support::{Sample, Watchdog, backends, check_every_verb, compare, safetensors};

const GIB: u64 = 1 << 30;

/// A sparse file: a header for `tensors`, holes for their bytes, and 8 marked bytes at each of
/// `marks`, counted from the start of the data.
pub fn sparse(tensors: &[(&str, Dtype, &[u64])], marks: &[u64]) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, dtype, shape) in tensors {
        let end = at + dtype.nbytes(shape).unwrap();
        let entry =
            serde_json::json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [at, end]});
        header.insert((*name).to_owned(), entry);
        at = end;
    }
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(4096 - 8, b' ');
    let file = File::create(&path).unwrap();
    file.set_len(4096 + at).unwrap();
    file.write_all_at(&(text.len() as u64).to_le_bytes(), 0)
        .unwrap();
    file.write_all_at(&text, 8).unwrap();
    for mark in marks {
        file.write_all_at(&(mark + 1).to_le_bytes(), 4096 + mark)
            .unwrap();
    }
    let checkpoint = Checkpoint::options()
        .engine(Engine::new())
        .open(&path)
        .unwrap();
    (folder, checkpoint)
}

#[test]
fn a_tensor_beyond_two_gibibytes_is_mapped_and_sliced() {
    let _dog = Watchdog::new("beyond 2 GiB");
    let columns = GIB + 4096;
    let marks = [
        0,
        columns - 8,
        2 * GIB - 4,
        2 * columns + 100,
        3 * columns - 8,
    ];
    let (_folder, checkpoint) = sparse(&[("w", Dtype::U8, &[3, columns])], &marks);
    let lazy = checkpoint.lazy().tensor("w").unwrap();
    assert_eq!(lazy.bytes().len() as u64, 3 * columns);
    for mark in marks {
        let at = mark as usize;
        assert_eq!(lazy.bytes()[at..at + 8], (mark + 1).to_le_bytes());
    }
    for backend in backends() {
        let load = |ranges| {
            let selection = Selection::all()
                .with_slice("w", Slice::Ranges(ranges))
                .unwrap();
            checkpoint
                .loader()
                .backend(backend)
                .select(selection)
                .load()
                .unwrap()
        };
        // The last bytes of each row: three runs a gibibyte apart.
        let loaded = load(vec![None, Some(columns - 8..columns)]);
        let bytes = loaded.get("w").unwrap().bytes();
        assert_eq!(bytes[..8], (columns - 7).to_le_bytes(), "{backend}");
        assert_eq!(bytes[8..16], [0; 8], "{backend}");
        assert_eq!(bytes[16..], (3 * columns - 7).to_le_bytes(), "{backend}");
        let row = 2 * GIB - 4 - columns;
        let loaded = load(vec![Some(1..2), Some(row..row + 8)]);
        let bytes = loaded.get("w").unwrap().bytes();
        assert_eq!(bytes, (2 * GIB - 3).to_le_bytes(), "{backend}");
    }
}

#[test]
fn a_span_beyond_two_gibibytes_streams_under_a_budget() {
    const TENSOR: u64 = 128 << 20;
    let names: Vec<String> = (0..17).map(|i| format!("t{i:02}")).collect();
    let shape = [TENSOR];
    let list: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), Dtype::U8, &shape[..]))
        .collect();
    let marks: Vec<u64> = (0..17)
        .flat_map(|i| [i * TENSOR, (i + 1) * TENSOR - 8])
        .collect();
    let (_folder, checkpoint) = sparse(&list, &marks);
    assert!(checkpoint.total_bytes() > 2 * GIB);
    assert_eq!(checkpoint.loader().plan().unwrap().spans.len(), 1);
    for backend in backends() {
        let _dog = Watchdog::new(&format!("a long span, {backend}"));
        let settings = Settings {
            backend,
            budget: Some(128 << 20),
            ..Settings::default()
        };
        let mut count = 0;
        for tensor in checkpoint.loader().settings(settings).stream().unwrap() {
            let tensor = tensor.unwrap();
            let number: u64 = tensor.name()[1..].parse().unwrap();
            let (first, last) = (number * TENSOR, (number + 1) * TENSOR - 8);
            let bytes = tensor.bytes();
            assert_eq!(bytes[..8], (first + 1).to_le_bytes(), "{backend}");
            assert_eq!(
                bytes[bytes.len() - 8..],
                (last + 1).to_le_bytes(),
                "{backend}"
            );
            count += 1;
        }
        assert_eq!(count, 17, "{backend}");
    }
}

/// 200 shards of two tensors each.
pub fn many() -> Sample {
    let files: Vec<(String, Vec<u8>)> = (0..200_u64)
        .map(|shard| {
            let (a, b) = (format!("{shard}.a"), format!("{shard}.b"));
            let list: [(&str, Dtype, &[u64]); 2] =
                [(&a, Dtype::F32, &[50]), (&b, Dtype::U8, &[5000])];
            let name = format!("model-{:05}-of-00200.safetensors", shard + 1);
            (name, safetensors(&list, shard + 1, 0))
        })
        .collect();
    let files: Vec<_> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    Sample::new(&files)
}

#[test]
fn two_hundred_files_with_few_descriptors() {
    let sample = many();
    let folder = sample.folder.path().to_str().unwrap();
    child::run("few-descriptors", folder);
}

pub fn few_descriptors(folder: &str) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: Some(64),
        maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let log = Log::listen();
    let checkpoint = Checkpoint::options()
        .engine(Engine::new())
        .open(folder)
        .unwrap();
    let contents: Vec<Vec<u8>> = checkpoint
        .sources()
        .iter()
        .map(|source| std::fs::read(source.path()).unwrap())
        .collect();
    let expected = crate::support::expected(&checkpoint, &contents, |_| Some(None));
    for backend in backends() {
        let what = format!("64 descriptors, {backend}");
        let loader = checkpoint.loader().backend(backend);
        check_every_verb(&what, &loader, &expected);
        // More reads at once than there are descriptors.
        for access in [tensora::AccessMode::Buffered, tensora::AccessMode::Direct] {
            let settings = Settings {
                backend,
                access,
                workers: Some(if backend == BackendKind::IoUring {
                    2
                } else {
                    100
                }),
                queue_depth: Some(200),
                ..Settings::default()
            };
            let loaded = checkpoint.loader().settings(settings).load();
            let loaded = loaded.unwrap_or_else(|error| {
                panic!("{what}, {access:?}: {}", crate::support::full_text(&error))
            });
            compare(&what, &loaded, &expected);
        }
    }
    // Mapped tensors keep no descriptor.
    let lazy = checkpoint.lazy();
    let tensors = lazy.select(Selection::all()).unwrap();
    compare("64 descriptors, lazy", &tensors, &expected);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    assert!(open < 40, "{open} descriptors are open");
    // A window of registered files that grew with the checkpoint would break the limit.
    assert_eq!(log.take("cannot be registered"), [""; 0]);
}

#[test]
fn a_slice_of_a_tensor_of_terabytes_costs_its_own_bytes() {
    let columns = 1 << 42;
    let marks = [columns - 16, 2 * columns - 16];
    let (_folder, checkpoint) = sparse(&[("w", Dtype::F64, &[2, columns / 8])], &marks);
    let range = columns / 8 - 2..columns / 8;
    let slice = Slice::Ranges(vec![None, Some(range)]);
    let selection = Selection::all().with_slice("w", slice).unwrap();
    for backend in backends() {
        let loader = checkpoint
            .loader()
            .backend(backend)
            .select(selection.clone());
        let loaded = loader.load().unwrap();
        let bytes = loaded.get("w").unwrap().bytes();
        assert_eq!(bytes[..8], (columns - 15).to_le_bytes(), "{backend}");
        assert_eq!(bytes[16..24], (2 * columns - 15).to_le_bytes(), "{backend}");
    }
}
