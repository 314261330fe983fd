//! Golden files of both dialects, made by `golden/make.py` from the descriptions of the layouts: we
//! read them, and we write them.

use std::path::{Path, PathBuf};

use tensora::converters::{ConvertOptions, convert};
use tensora::formats::serverlessllm::Dialect;
use tensora::{Checkpoint, Layout};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn tensors(path: &Path) -> Vec<(String, String, Vec<u64>, Vec<u8>)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let tensors = checkpoint.load().unwrap();
    let mut all: Vec<_> = tensors
        .iter()
        .map(|tensor| {
            let (name, dtype) = (tensor.name().to_owned(), tensor.dtype().to_string());
            (
                name,
                dtype,
                tensor.shape().to_vec(),
                tensor.bytes().to_vec(),
            )
        })
        .collect();
    all.sort();
    all
}

fn index(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("tensor_index.json")).unwrap()).unwrap()
}

#[test]
fn all_of_them_hold_the_same_tensors() {
    let expected = tensors(&golden("source.safetensors"));
    assert_eq!(expected.len(), 6);
    for name in ["six", "six_packed", "five", "five_padded"] {
        assert_eq!(tensors(&golden(name)), expected, "{name}");
    }
}

#[test]
fn what_we_write_is_what_they_hold() {
    let source = Checkpoint::open(golden("source.safetensors")).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    for (name, dialect, packed) in [
        ("six", Dialect::Local, false),
        ("six_packed", Dialect::Local, true),
        ("five", Dialect::Global, false),
    ] {
        let out = scratch.path().join(name);
        let options = ConvertOptions {
            dialect,
            packed,
            partitions: Some(1),
            companions: false,
            ..ConvertOptions::default()
        };
        convert(&source, &out, &options).unwrap();
        let data = |folder: &Path| std::fs::read(folder.join("tensor.data_0")).unwrap();
        assert_eq!(data(&out), data(&golden(name)), "{name}");
        assert_eq!(index(&out), index(&golden(name)), "{name}");
    }
}

#[test]
fn they_all_come_back_as_safetensors_with_their_metadata() {
    let expected = tensors(&golden("source.safetensors"));
    let source = Checkpoint::open(golden("source.safetensors")).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    for name in ["six", "five", "five_padded"] {
        let out = scratch.path().join(name);
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        convert(&checkpoint, &out, &ConvertOptions::default()).unwrap();
        assert_eq!(tensors(&out), expected, "{name}");
    }
    let (there, back) = (scratch.path().join("there"), scratch.path().join("back"));
    convert(&source, &there, &ConvertOptions::default()).unwrap();
    let there = Checkpoint::open(there).unwrap();
    assert_eq!(there.layout(), Layout::ServerlessLlm);
    convert(&there, &back, &ConvertOptions::default()).unwrap();
    let back = Checkpoint::open(back).unwrap();
    assert_eq!(back.metadata(), source.metadata());
    assert_eq!(back.metadata()["note"], "golden");
}
