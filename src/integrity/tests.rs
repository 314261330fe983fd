//! Digests of every kind of tensor, under every budget and by every backend, and what a manifest
//! finds.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::checkpoint::Checkpoint;
use crate::error::ErrorKind;
use crate::load::CancelToken;
use crate::sample::{SampleSpec, write_sample};
use crate::settings::Settings;
use crate::storage::BackendKind;

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

/// Two partitions, with every kind of tensor. Gives the digests that they must have.
fn partitions(folder: &Path) -> Entries {
    let (first, second) = (3000 * KIB, 1500 * KIB);
    let bytes = noise(first + second);
    std::fs::write(folder.join("tensor.data_0"), &bytes[..first]).unwrap();
    std::fs::write(folder.join("tensor.data_1"), &bytes[first..]).unwrap();
    let at = 2000 * KIB + 8;
    let across = 2100 * KIB;
    let view = 4200 * KIB;
    // Entries of five elements: offsets count through both partitions.
    let index = serde_json::json!({
        "large": [0, 1900 * KIB, [1900, 1024], [1024, 1], "torch.uint8"],
        "tied": [0, 1900 * KIB, [1900 * KIB], [1], "torch.uint8"],
        "overlapping": [4, 1000 * KIB, [1000 * KIB], [1], "torch.int8"],
        "across": [at, across, [across / 2], [1], "torch.float16"],
        "view": [view, 600, [30, 20], [1, 30], "torch.uint8"],
        "large_view": [first, 800 * KIB, [1024, 800], [1, 1024], "torch.uint8"],
        "scalar": [16, 4, [], [], "torch.float32"],
        "empty": [0, 0, [0, 5], [5, 1], "torch.float32"],
    });
    std::fs::write(folder.join("tensor_index.json"), index.to_string()).unwrap();
    let transposed = |start: usize, rows: usize, columns: usize| -> Vec<u8> {
        let cell = |at| bytes[start + at / columns + at % columns * rows];
        (0..rows * columns).map(cell).collect()
    };
    let expected: [(&str, &str, &[u64], Vec<u8>); 8] = [
        ("large", "U8", &[1900, 1024], bytes[..1900 * KIB].to_vec()),
        ("tied", "U8", &[1900 << 10], bytes[..1900 * KIB].to_vec()),
        (
            "overlapping",
            "I8",
            &[1000 << 10],
            bytes[4..][..1000 * KIB].to_vec(),
        ),
        (
            "across",
            "F16",
            &[across as u64 / 2],
            bytes[at..][..across].to_vec(),
        ),
        ("view", "U8", &[30, 20], transposed(view, 30, 20)),
        (
            "large_view",
            "U8",
            &[1024, 800],
            transposed(first, 1024, 800),
        ),
        ("scalar", "F32", &[], bytes[16..20].to_vec()),
        ("empty", "F32", &[0, 5], Vec::new()),
    ];
    let entry = |(name, dtype, shape, bytes): (&str, &str, &[u64], Vec<u8>)| {
        let entry = Entry {
            dtype: serde_json::from_value(dtype.into()).unwrap(),
            shape: shape.into(),
            nbytes: bytes.len() as u64,
            sha256: Sha256::of(&bytes),
        };
        (name.into(), entry)
    };
    expected.into_iter().map(entry).collect()
}

fn options(backend: BackendKind, budget: u64) -> HashOptions {
    let settings = Settings {
        backend,
        budget: Some(budget),
        ..Settings::default()
    };
    HashOptions {
        settings,
        ..HashOptions::default()
    }
}

/// Hashes under many budgets and by every backend that runs here.
#[track_caller]
fn check(checkpoint: &Checkpoint, expected: &Entries) {
    let mut backends = 0;
    for backend in BackendKind::CONCRETE {
        if let Err(error) = checkpoint.loader().backend(backend).schedule() {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            continue;
        }
        backends += 1;
        // Six MiB are enough for two lanes.
        for budget in [1, 300_000, MIB, 3 * MIB + 1, 6 * MIB, 16 * MIB, 512 * MIB] {
            let seen = AtomicU64::new(0);
            let add = |bytes| {
                seen.fetch_add(bytes, Ordering::Relaxed);
            };
            let found = hash(checkpoint, &options(backend, budget), &add).unwrap();
            assert!(found == *expected, "{backend} under {budget}");
            assert_eq!(seen.into_inner(), checkpoint.total_bytes());
        }
    }
    assert!(backends >= 3);
}

#[test]
fn digests_depend_on_neither_budget_nor_backend() {
    let folder = tempfile::tempdir().unwrap();
    let expected = partitions(folder.path());
    check(&Checkpoint::open(folder.path()).unwrap(), &expected);
}

/// A SafeTensors checkpoint of some tensors, large and small.
fn sample(folder: &Path) -> Checkpoint {
    let spec = SampleSpec {
        total_bytes: 6 * MIB,
        ..SampleSpec::default()
    };
    write_sample(folder, &spec).unwrap();
    Checkpoint::open(folder).unwrap()
}

fn plainly(checkpoint: &Checkpoint) -> Entries {
    let entry = |tensor: &crate::Tensor| (tensor.name().into(), Entry::of(tensor));
    checkpoint.load().unwrap().iter().map(entry).collect()
}

#[test]
fn digests_of_safetensors_are_those_of_plain_loads() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = sample(folder.path());
    check(&checkpoint, &plainly(&checkpoint));
}

#[test]
fn progress_comes_within_a_large_tensor() {
    let folder = tempfile::tempdir().unwrap();
    partitions(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let steps = Mutex::new(Vec::new());
    let add = |bytes| steps.lock().unwrap().push(bytes);
    hash(&checkpoint, &options(BackendKind::Sync, MIB), &add).unwrap();
    let steps = steps.into_inner().unwrap();
    // The second name of a tensor is done at once, and a view comes whole.
    let tied = 1900 * KIB as u64;
    assert_eq!(steps.iter().filter(|&&step| step == tied).count(), 1);
    let view = 800 * KIB as u64;
    assert!(steps.iter().all(|&step| step <= view || step == tied));
    assert!(steps.len() > 8 + 4, "{steps:?}");
}

#[test]
fn what_fails_within_a_tensor_names_the_tensor_and_its_file() {
    // Not mmap, whose readers a file that shrinks ends by a signal.
    for backend in [BackendKind::Sync, BackendKind::Async, BackendKind::IoUring] {
        let folder = tempfile::tempdir().unwrap();
        partitions(folder.path());
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        if checkpoint.loader().backend(backend).schedule().is_err() {
            continue;
        }
        let path = folder.path().join("tensor.data_0");
        let shorten = || File::options().write(true).open(&path)?.set_len(0);
        let truncated = |error: crate::Error| {
            let kinds = [ErrorKind::Truncated, ErrorKind::SourceChanged];
            assert!(kinds.contains(&error.kind()), "{backend}: {error}");
            assert_eq!(error.path(), Some(&*path), "{backend}: {error}");
            error
        };
        // Once a piece of a large tensor was hashed; others are still to be read then.
        let options = options(backend, MIB);
        let add = |bytes| {
            if (4096..=MIB / 4).contains(&bytes) {
                shorten().unwrap();
            }
        };
        let error = truncated(hash(&checkpoint, &options, &add).unwrap_err());
        let tensor = error.tensor_name().unwrap_or_default();
        let large = ["large", "tied", "overlapping", "across"];
        assert!(large.contains(&tensor), "{backend}: {error}");
        // And before the first byte is read.
        truncated(hash(&checkpoint, &options, &|_| {}).unwrap_err());
    }
}

#[test]
fn options_that_make_no_sense_and_cancels_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = sample(folder.path());
    let error = hash(&checkpoint, &options(BackendKind::Sync, 0), &|_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    for at in [0, 3 * MIB] {
        let cancel = CancelToken::default();
        let options = HashOptions {
            cancel: cancel.clone(),
            ..options(BackendKind::Sync, MIB)
        };
        let seen = AtomicU64::new(0);
        let add = |bytes| {
            if seen.fetch_add(bytes, Ordering::Relaxed) + bytes > at {
                cancel.cancel();
            }
        };
        let error = hash(&checkpoint, &options, &add).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    }
}

#[test]
fn a_manifest_is_written_read_and_compared_tensor_by_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = partitions(folder.path());
    let path = folder.path().join("m.json");
    Manifest::new(expected.clone()).write(&path).unwrap();
    let manifest = Manifest::read(&path).unwrap();
    assert_eq!(manifest.tensors, expected);
    let verified = |manifest: Option<Manifest>, deep| {
        let options = VerifyOptions {
            deep,
            manifest,
            hash: options(BackendKind::Default, MIB),
            ..VerifyOptions::default()
        };
        verify(folder.path(), &options, &|_| {}).unwrap()
    };
    let report = verified(Some(manifest.clone()), false);
    assert!(report.ok && report.read && report.compared, "{report:?}");
    assert!(report.unused.is_empty());
    let report = verified(None, false);
    assert!(report.ok && !report.read && !report.compared);
    assert_eq!(report.tensors, 8);

    // The last byte of a tensor that goes over from one partition to the other.
    let data = folder.path().join("tensor.data_1");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[1100 * KIB + 7] ^= 1;
    std::fs::write(&data, &bytes).unwrap();
    let report = verified(Some(manifest), false);
    let names: Vec<_> = report
        .problems
        .iter()
        .map(|p| p.tensor.as_deref())
        .collect();
    assert_eq!(names, [Some("across")]);
    assert!(report.problems[0].problem.contains("hash to"));
    assert!(
        verified(None, true).ok,
        "without a manifest, all that counts is reading"
    );

    // What one has and the other has not.
    let mut entry = expected.remove("scalar").unwrap();
    entry.shape = [1].into();
    expected.insert("scalars".into(), entry);
    let report = verified(Some(Manifest::new(expected)), false);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["ok"], false);
    let problems = json["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 3);
    assert_eq!(problems[1]["problem"], "it is missing");
    assert_eq!(problems[2]["tensor"], "scalar");
}

#[test]
fn files_that_an_index_leaves_out_are_told_and_those_beside_a_single_file_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let spec = SampleSpec {
        total_bytes: MIB,
        shards: 2,
        ..SampleSpec::default()
    };
    write_sample(folder.path(), &spec).unwrap();
    let shard = folder.path().join("model-00001-of-00002.safetensors");
    let extra = folder.path().join("extra.safetensors");
    std::fs::copy(&shard, &extra).unwrap();
    let unused = |path: &Path| {
        let report = verify(path, &VerifyOptions::default(), &|_| {}).unwrap();
        report.unused
    };
    let index = folder.path().join("model.safetensors.index.json");
    assert_eq!(unused(folder.path()), [&*extra]);
    assert_eq!(unused(&index), [&*extra]);
    assert!(unused(&shard).is_empty());
}

#[test]
fn what_does_not_open_is_a_problem_with_every_file_that_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let spec = SampleSpec {
        total_bytes: MIB,
        shards: 3,
        ..SampleSpec::default()
    };
    write_sample(folder.path(), &spec).unwrap();
    let mut damaged = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() - 1).unwrap();
            damaged += 1;
        }
    }
    let report = verify(folder.path(), &VerifyOptions::default(), &|_| {}).unwrap();
    assert!(!report.ok);
    assert_eq!((report.problems.len(), damaged), (3, 3), "{report:?}");
    let nowhere = folder.path().join("nowhere");
    let report = verify(nowhere, &VerifyOptions::default(), &|_| {}).unwrap();
    assert_eq!(report.problems.len(), 1);
}

#[test]
fn a_read_that_fails_midway_is_a_problem_in_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let spec = SampleSpec {
        total_bytes: MIB,
        ..SampleSpec::default()
    };
    write_sample(folder.path(), &spec).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    // Cut short after it was opened, as a disk may fail then.
    let path = checkpoint.sources()[0].path().to_owned();
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(1000).unwrap();
    let options = VerifyOptions {
        deep: true,
        ..VerifyOptions::default()
    };
    let report = verify_checkpoint(&checkpoint, &options, &|_| {}).unwrap();
    assert!(!report.ok && !report.read, "{report:?}");
    assert_eq!(report.problems.len(), 1, "{report:?}");
}

#[test]
fn what_is_no_manifest_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.json");
    for (text, what) in [
        ("{}", "no manifest"),
        (r#"{"format": "else", "tensors": {}}"#, "\"else\""),
        (
            r#"{"format": "tensora-manifest-1", "tensors": {"a": {"dtype": "U8", "shape": [], "nbytes": 1, "sha256": "00"}}}"#,
            "64 hexadecimal digits",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Manifest::read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadIndex, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(error.path(), Some(&*path));
    }
    let error = Manifest::read(folder.path().join("none")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = Manifest::default().write("/").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
