//! Round trips, ties, metadata, interrupted runs and failing writes, on small checkpoints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::converters::{
    CheckpointWriter, OutputTensor, SafetensorsOptions, Sharding, WriteOptions, plan_safetensors,
};
use crate::dtype::Dtype;
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
        ConvertOptions {
            resume: true,
            force: true,
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

#[test]
fn writes_that_fail_leave_nothing_and_under_resume_a_part_that_is_refused_and_continued() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let out = scratch.path().join("out");
    let options = ConvertOptions {
        partitions: Some(5),
        ..small()
    };
    let resume = ConvertOptions {
        resume: true,
        ..options.clone()
    };
    let wanted = scratch.path().join("wanted");
    convert(&source, &wanted, &options).unwrap();
    for writes in 0..Conversion::plan(&source, &options).unwrap().pieces.len() as i64 {
        for options in [&options, &resume] {
            let conversion = Conversion::plan(&source, options).unwrap();
            conversion.writes_left.store(writes, Ordering::Relaxed);
            let folder = conversion.claim(&out).unwrap();
            let error = conversion.run(&folder, &|_| {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.path().unwrap().starts_with(&out), "{error}");
            drop(folder);
            if options.resume {
                let error = Checkpoint::open(&out).unwrap_err();
                assert!(error.to_string().contains("--resume"), "{error}");
            } else {
                assert!(!out.exists());
            }
        }
        let report = convert(&source, &out, &resume).unwrap();
        if writes > 4 {
            assert!(report.resumed_bytes > 0);
        }
        assert_eq!(files(&out), files(&wanted));
        // And once more: there is nothing to do.
        if cfg!(feature = "digest") && writes == 0 {
            let report = convert(&source, &out, &resume).unwrap();
            assert_eq!(report.resumed_bytes, source.total_bytes());
        }
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn an_earlier_checkpoint_is_whole_until_it_is_replaced_and_then_gone() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let out = scratch.path().join("out");
    convert(
        &source,
        &out,
        &ConvertOptions {
            partitions: Some(9),
            ..small()
        },
    )
    .unwrap();
    std::fs::write(out.join("notes.txt"), b"mine").unwrap();
    let three = ConvertOptions {
        partitions: Some(3),
        ..small()
    };
    let error = convert(&source, &out, &three).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    let forced = ConvertOptions {
        force: true,
        ..three
    };
    let conversion = Conversion::plan(&source, &forced).unwrap();
    conversion.writes_left.store(3, Ordering::Relaxed);
    let folder = conversion.claim(&out).unwrap();
    conversion.run(&folder, &|_| {}).unwrap_err();
    drop(folder);
    assert_eq!(Checkpoint::open(&out).unwrap().sources().len(), 9);
    convert(&source, &out, &forced).unwrap();
    let names: Vec<_> = files(&out).into_keys().collect();
    let expected = [
        "config.json",
        "notes.txt",
        "safetensors_metadata.json",
        "tensor.data_0",
        "tensor.data_1",
        "tensor.data_2",
        "tensor_index.json",
    ];
    assert_eq!(names, expected);
    // The other layout in the same folder takes the place of this one.
    let copy = ConvertOptions {
        to: Some(Layout::SafeTensors),
        force: true,
        ..small()
    };
    convert(&source, &out, &copy).unwrap();
    let names: Vec<_> = files(&out).into_keys().collect();
    assert_eq!(names, ["config.json", "model.safetensors", "notes.txt"]);
}

#[test]
fn a_crash_after_each_step_of_the_commit_is_refused_by_name_and_continued() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let options = ConvertOptions {
        partitions: Some(3),
        ..small()
    };
    let resume = ConvertOptions {
        resume: true,
        ..options.clone()
    };
    let wanted = scratch.path().join("wanted");
    convert(&source, &wanted, &options).unwrap();
    let print = Conversion::plan(&source, &resume).unwrap().fingerprint;
    let names: Vec<String> = files(&wanted).into_keys().collect();
    // Files go to their places one after the other; the mark is there all the while.
    for placed in 0..=names.len() {
        let out = scratch.path().join(format!("out{placed}"));
        std::fs::create_dir(&out).unwrap();
        let mark = out.join(INCOMPLETE_FILE);
        let mut file = std::fs::File::create(&mark).unwrap();
        journal::begin(&mut file, &mark, print).unwrap();
        for (at, name) in names.iter().enumerate() {
            let to = if at < placed {
                out.join(name)
            } else {
                parts::part_path(&out, name)
            };
            std::fs::copy(wanted.join(name), to).unwrap();
        }
        for path in [out.clone(), out.join("tensor_index.json")] {
            let error = Checkpoint::open(path).unwrap_err();
            assert!(error.to_string().contains("interrupted"), "{error}");
        }
        let error = convert(&source, &out, &options).unwrap_err();
        assert!(error.to_string().contains("--resume"), "{error}");
        convert(&source, &out, &resume).unwrap();
        assert_eq!(files(&out), files(&wanted));
    }
}

#[test]
fn a_commit_that_lost_a_file_or_is_older_than_a_journal_begins_anew() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let resume = ConvertOptions {
        partitions: Some(3),
        resume: true,
        ..small()
    };
    let wanted = scratch.path().join("wanted");
    convert(&source, &wanted, &resume).unwrap();
    let print = Conversion::plan(&source, &resume).unwrap().fingerprint;
    for lost in ["tensor.data_1", "tensor_index.json", "config.json", ""] {
        let out = scratch.path().join(format!("without{lost}"));
        std::fs::create_dir(&out).unwrap();
        let mark = out.join(INCOMPLETE_FILE);
        let mut file = std::fs::File::create(&mark).unwrap();
        journal::begin(&mut file, &mark, print).unwrap();
        for name in files(&wanted).into_keys().filter(|name| name != lost) {
            std::fs::copy(wanted.join(&name), parts::part_path(&out, &name)).unwrap();
        }
        if lost.is_empty() {
            // A run with other options came as far as to write other bytes.
            let journal = out.join(JOURNAL_FILE);
            let mut file = std::fs::File::create(&journal).unwrap();
            journal::begin(&mut file, &journal, Fingerprint::new()).unwrap();
            let part = parts::part_path(&out, "tensor.data_0");
            let len = part.metadata().unwrap().len();
            std::fs::write(part, vec![1; len as usize]).unwrap();
        }
        convert(&source, &out, &resume).unwrap();
        assert_eq!(files(&out), files(&wanted));
    }
}

#[cfg(feature = "digest")]
#[test]
fn verifying_finds_a_changed_byte_and_names_its_tensor() {
    let scratch = tempfile::tempdir().unwrap();
    let source = sample(&scratch.path().join("a"), &torch_dtypes());
    let out = scratch.path().join("out");
    let options = ConvertOptions {
        verify: true,
        ..small()
    };
    assert!(convert(&source, &out, &options).unwrap().verified);
    let resume = ConvertOptions {
        resume: true,
        ..options
    };
    convert(&source, &out, &resume).unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    let place = copy.tensor("all.F32").unwrap().extents[0];
    drop(copy);
    let file = out.join("tensor.data_0");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[place.offset as usize + 5] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    for verify in [true, false] {
        // Without --verify, too: nobody else says that this is what was to be written.
        let resume = ConvertOptions {
            verify,
            ..resume.clone()
        };
        let error = convert(&source, &out, &resume).unwrap_err();
        assert_eq!(error.tensor_name(), Some("all.F32"), "{error}");
    }
}

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
