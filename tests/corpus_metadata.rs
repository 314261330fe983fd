//! Every case of the corpus through the public API: what is refused, with which kind and words,
//! and what is accepted, with which names, dtypes, shapes and bytes.

mod corpus;

use corpus::{Case, cases, says};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tensora::storage::read_exact_at;
use tensora::{Checkpoint, Error, Layout, TensorMeta};

/// The message and those below it, as a program prints them.
fn full_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        text.push_str(&format!(": {error}"));
        below = error.source();
    }
    text
}

#[test]
fn refused_cases_have_their_kind_and_name_the_facts() {
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| !case.accepted) {
        let error = match Checkpoint::open(&case.path) {
            Ok(_) => {
                wrong.push(format!("{}: accepted", case.name));
                continue;
            }
            Err(error) => error,
        };
        let kind = error.kind().to_string();
        // The message by itself, without the causes below it, must have the facts.
        let text = error.to_string();
        if kind != case.error_class && kind != case.also_allowed {
            wrong.push(format!(
                "{}: {kind} and not {}: {text}",
                case.name, case.error_class
            ));
        }
        if !says(&text, &case.must_name) {
            wrong.push(format!(
                "{}: does not say {}: {text}",
                case.name, case.must_name
            ));
        }
        if text.contains("..:") || full_text(&error).len() > 1500 {
            wrong.push(format!("{}: unreadable: {}", case.name, full_text(&error)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn accepted_cases_list_their_tensors_with_exact_bytes() {
    for case in cases().iter().filter(|case| case.accepted) {
        let checkpoint = Checkpoint::open(&case.path)
            .unwrap_or_else(|error| panic!("{}: {}", case.name, full_text(&error)));
        let layout = match case.format.as_str() {
            "sllm" => Layout::ServerlessLlm,
            _ => Layout::SafeTensors,
        };
        assert_eq!(checkpoint.layout(), layout, "{}", case.name);
        compare(case, &checkpoint);
    }
}

fn compare(case: &Case, checkpoint: &Checkpoint) {
    let name = &case.name;
    let text = std::fs::read(corpus::folder().join(format!("_expect/{name}.json"))).unwrap();
    let expected: Value = serde_json::from_slice(&text).unwrap();
    let tensors = expected.get("tensors").or(expected.get("sample"));
    let tensors = tensors.and_then(Value::as_object).unwrap();
    for (tensor, facts) in tensors {
        let meta = checkpoint
            .require(tensor)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(meta.dtype.name(), facts["dtype"], "{name}: {tensor}");
        let shape: Value = meta.shape.iter().copied().collect();
        assert_eq!(shape, facts["shape"], "{name}: {tensor}");
        if let Some(stride) = facts.get("stride") {
            let strides: Value = meta.strides.as_deref().unwrap().iter().copied().collect();
            assert_eq!(&strides, stride, "{name}: {tensor}");
            continue;
        }
        assert!(meta.strides.is_none(), "{name}: {tensor}");
        assert_eq!(meta.nbytes(), facts["nbytes"], "{name}: {tensor}");
        let digest = Sha256::digest(stored(checkpoint, meta));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, facts["sha256"], "{name}: {tensor}");
    }
    let names = |key: &str| -> Vec<String> {
        let list = expected.get(key).and_then(Value::as_array);
        let list = list.map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect()
    };
    for forbidden in names("forbidden") {
        assert!(
            checkpoint.tensor(&forbidden).is_none(),
            "{name}: {forbidden}"
        );
    }
    for optional in names("optional") {
        // Optional for a reader in general; ours hides what the index does not list.
        assert!(checkpoint.tensor(&optional).is_none(), "{name}: {optional}");
    }
    let count = match expected.get("count") {
        Some(count) => count.as_u64().unwrap() as usize,
        None => tensors.len(),
    };
    assert_eq!(checkpoint.tensors().len(), count, "{name}");
}

fn stored(checkpoint: &Checkpoint, meta: &TensorMeta) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extent in &meta.extents {
        let mut part = vec![0; extent.len as usize];
        let source = &checkpoint.sources()[extent.source as usize];
        read_exact_at(&**source, extent.offset, &mut part).unwrap();
        bytes.extend(part);
    }
    bytes
}

#[test]
fn twenty_thousand_tensors_are_listed_by_offset_with_their_bytes() {
    let checkpoint = Checkpoint::open(corpus::folder().join("st_20k_tensors")).unwrap();
    let mut bytes = Vec::new();
    for meta in checkpoint.tensors() {
        assert_eq!(checkpoint.tensor(&meta.name), Some(meta));
        bytes.push(meta.extents[0].offset);
    }
    assert!(bytes.is_sorted());
    let first = bytes[0];
    for (i, meta) in checkpoint.tensors().iter().enumerate() {
        assert_eq!(meta.extents[0].offset, first + i as u64);
        if i % 997 == 0 {
            assert_eq!(stored(&checkpoint, meta), [(i % 251) as u8]);
        }
    }
}

#[test]
fn metadata_is_readable_and_files_can_be_given_by_path() {
    let checkpoint = Checkpoint::open(corpus::folder().join("st_metadata_only")).unwrap();
    assert_eq!(checkpoint.metadata()["format"], "pt");
    assert_eq!(checkpoint.metadata()["k"], "v");
    assert_eq!(checkpoint.total_bytes(), 0);
    for path in [
        "idx_two_shards/model.safetensors.index.json",
        "idx_two_shards/model-00001-of-000002.safetensors",
        "sl_two_partitions/tensor_index.json",
        "dir_unicode_and_spaces/мои модели (v2) 模型/my model file.safetensors",
    ] {
        let path = corpus::folder().join(path);
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.root(), path.parent().unwrap());
        assert!(!checkpoint.tensors().is_empty());
    }
}
