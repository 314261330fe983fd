//! Round trips, ties and metadata, on small checkpoints.

mod folders;
mod guards;
mod interrupted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::converters::{
    CheckpointWriter, OutputTensor, SafetensorsOptions, Sharding, WriteOptions, plan_safetensors,
};
use crate::dtype::Dtype;
use crate::error::ErrorKind;
use crate::formats::Layout;
use crate::formats::serverlessllm::Dialect;
use crate::storage::{MemorySource, Source};

fn bytes_of(index: usize, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i as usize * 7 + index * 31) as u8)
        .collect()
}

/// SafeTensors in three files, with metadata, a configuration and names that hurt.
fn sample(folder: &Path, dtypes: &[Dtype]) -> Checkpoint {
    let mut tensors: Vec<_> = dtypes
        .iter()
        .map(|dtype| OutputTensor::new(format!("all.{dtype}"), *dtype, [3, 8]))
        .collect();
    tensors.push(OutputTensor::new("scalar", Dtype::F32, []));
    tensors.push(OutputTensor::new("none", Dtype::F32, [0, 7]));
    tensors.push(OutputTensor::new(
        "wide \"\\\n\u{1f980}../..",
        Dtype::U8,
        [700_000],
    ));
    let options = SafetensorsOptions {
        sharding: Sharding::Count(3),
        metadata: BTreeMap::from([("a\"".into(), "b\n".into())]),
        ..Default::default()
    };
    let plan = plan_safetensors(tensors, &options).unwrap();
    let writer = CheckpointWriter::create(folder, plan, WriteOptions::default()).unwrap();
    writer
        .write_all(|index, sink| sink.write(&bytes_of(index, sink.remaining())))
        .unwrap();
    writer.finish().unwrap();
    std::fs::write(folder.join("config.json"), b"{}").unwrap();
    Checkpoint::open(folder).unwrap()
}

fn torch_dtypes() -> Vec<Dtype> {
    let all = Dtype::ALL.iter().copied();
    all.filter(|dtype| dtype.torch_name().is_some() && dtype.bits() >= 8)
        .collect()
}

/// Names, types, shapes and bytes.
type Everything = BTreeMap<String, (Dtype, Vec<u64>, Vec<u8>)>;

fn everything(checkpoint: &Checkpoint) -> Everything {
    let tensors = checkpoint.load().unwrap();
    let of = |tensor: &crate::Tensor| {
        (
            tensor.dtype(),
            tensor.shape().to_vec(),
            tensor.bytes().to_vec(),
        )
    };
    tensors
        .iter()
        .map(|tensor| (tensor.name().to_owned(), of(tensor)))
        .collect()
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect()
}

/// A budget that makes several pieces of the largest tensor.
fn small() -> ConvertOptions {
    ConvertOptions {
        budget: 8 << 20,
        ..ConvertOptions::default()
    }
}

#[test]
fn every_dtype_goes_there_and_back_with_metadata_and_companions() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let source = sample(&path("a"), &torch_dtypes());
    let expected = everything(&source);
    let back = ConvertOptions {
        partitions: Some(2),
        ..small()
    };
    for (dialect, packed) in [
        (Dialect::Local, false),
        (Dialect::Local, true),
        (Dialect::Global, false),
    ] {
        let name = format!("{dialect:?}{packed}");
        let there = ConvertOptions {
            dialect,
            packed,
            partitions: Some(4),
            ..small()
        };
        let report = convert(&source, path(&name), &there).unwrap();
        assert_eq!(report.to, Layout::ServerlessLlm);
        assert_eq!(
            report.data_files,
            if dialect == Dialect::Local {
                4
            } else {
                report.data_files
            }
        );
        let copy = Checkpoint::open(path(&name)).unwrap();
        assert_eq!(everything(&copy), expected, "{name}");
        assert!(path(&name).join("config.json").is_file());
        // The same input and options give the same bytes, whoever reads and in whatever pieces.
        let again = format!("{name} again");
        let other = ConvertOptions {
            backend: BackendKind::Mmap,
            budget: 64 << 20,
            ..there
        };
        convert(&source, path(&again), &other).unwrap();
        assert_eq!(files(&path(&name)), files(&path(&again)));

        let returned = format!("{name} back");
        convert(&copy, path(&returned), &back).unwrap();
        let returned = Checkpoint::open(path(&returned)).unwrap();
        assert_eq!(everything(&returned), expected, "{name}");
        assert_eq!(returned.metadata(), source.metadata());
        assert_eq!(returned.sources().len(), 2);
    }
}

#[test]
fn all_22_dtypes_are_sharded_anew_and_what_partitions_cannot_hold_is_refused_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), Dtype::ALL);
    let out = scratch.path().join("b");
    let one = ConvertOptions {
        to: Some(Layout::SafeTensors),
        ..small()
    };
    convert(&source, &out, &one).unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    assert_eq!(copy.sources().len(), 1);
    assert_eq!(everything(&copy), everything(&source));
    assert_eq!(copy.tensors()[0].extents[0].offset % 4096, 0);

    let error = convert(&source, scratch.path().join("deep/c"), &small()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.contains("all.F6_E2M3") && text.contains("for F6_E2M3"),
        "{text}"
    );
    assert!(!scratch.path().join("deep").exists());
}

fn tied() -> Checkpoint {
    let index = br#"{"a": [0, 16, [4], [1], "torch.float32", 0],
        "b": [0, 16, [2, 2], [2, 1], "torch.float32", 0],
        "t": [16, 24, [3, 2], [1, 3], "torch.float32", 0],
        "u": [16, 24, [3, 2], [1, 3], "torch.float32", 0],
        "v": [16, 24, [2, 3], [3, 1], "torch.float32", 0]}"#;
    let bytes: Vec<u8> = (0..40).collect();
    let source: Arc<dyn Source> = Arc::new(MemorySource::new("tensor.data_0", bytes));
    Checkpoint::from_sources(Layout::ServerlessLlm, vec![source], Some(index)).unwrap()
}

#[test]
fn ties_stay_where_they_can_and_are_named_where_they_cannot() {
    let scratch = tempfile::tempdir().unwrap();
    let source = tied();
    for dialect in [Dialect::Local, Dialect::Global] {
        let out = scratch.path().join(format!("{dialect:?}"));
        let options = ConvertOptions {
            to: Some(Layout::ServerlessLlm),
            dialect,
            packed: dialect == Dialect::Local,
            ..small()
        };
        let report = convert(&source, &out, &options).unwrap();
        // a and b; t and u, made contiguous; v.
        assert_eq!(
            report.file_bytes
                - std::fs::metadata(out.join("tensor_index.json"))
                    .unwrap()
                    .len(),
            16 + 24 + 24
        );
        assert_eq!(report.doubled_bytes, 0);
        assert_eq!(
            everything(&Checkpoint::open(&out).unwrap()),
            everything(&source)
        );
    }
    let out = scratch.path().join("st");
    let report = convert(&source, &out, &small()).unwrap();
    let names: Vec<&str> = report.untied.iter().map(|name| &**name).collect();
    assert_eq!(names, ["a", "b", "t", "u"]);
    assert_eq!(report.doubled_bytes, 16 + 24);
    assert_eq!(
        everything(&Checkpoint::open(&out).unwrap()),
        everything(&source)
    );
}

#[test]
fn options_that_would_be_ignored_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &[]);
    let safetensors = ConvertOptions {
        to: Some(Layout::SafeTensors),
        ..small()
    };
    for options in [
        ConvertOptions {
            dialect: Dialect::Global,
            ..safetensors.clone()
        },
        ConvertOptions {
            packed: true,
            ..safetensors.clone()
        },
        ConvertOptions {
            max_shard_bytes: Some(1),
            ..small()
        },
        ConvertOptions {
            packed: true,
            dialect: Dialect::Global,
            ..small()
        },
        ConvertOptions {
            partitions: Some(0),
            ..small()
        },
    ] {
        let error = Conversion::plan(&source, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let forced = ConvertOptions {
        force: true,
        ..safetensors
    };
    let error = convert(&source, scratch.path().join("a"), &forced).unwrap_err();
    assert!(error.to_string().contains("read from"), "{error}");
}

#[cfg(feature = "digest")]
#[test]
fn an_input_that_fails_to_read_names_its_tensor_and_file_and_leaves_nothing() {
    use crate::storage::{Fault, FaultSource};
    let index = br#"{"fine": [0, 64, [64], [1], "u8", 0], "bad": [64, 64, [64], [1], "u8", 1]}"#;
    let source = |id: usize| -> Arc<dyn Source> {
        let name = format!("tensor.data_{id}");
        Arc::new(MemorySource::new(name, vec![1; 128]))
    };
    let faulty = FaultSource::new(source(1), |_, _, _| Fault::Errno(5));
    let sources = vec![source(0), Arc::new(faulty)];
    let checkpoint = Checkpoint::from_sources(Layout::ServerlessLlm, sources, Some(index)).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("deep/out");
    let error = convert(&checkpoint, &out, &small()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(error.tensor_name(), Some("bad"), "{error}");
    assert!(error.to_string().contains("tensor.data_1"), "{error}");
    assert!(!scratch.path().join("deep").exists());
}
