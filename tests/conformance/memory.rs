//! Memory: written without reaching the file, given back when dropped, bounded at its peak.

use tensora::{AccessMode, BackendKind, Checkpoint, Dtype};

use crate::child;
use crate::limits::sparse;
use crate::support::{Sample, Watchdog, backends, noise};

const MIB: u64 = 1 << 20;

#[test]
fn writing_to_tensors_never_reaches_the_file() {
    let _dog = Watchdog::new("copy on write");
    let list: &[(&str, Dtype, &[u64])] = &[
        ("a", Dtype::F32, &[50_000]),
        ("b", Dtype::U8, &[300_000]),
        ("c", Dtype::U8, &[3]),
    ];
    for pad in [0, 1] {
        let sample = Sample::single(list, pad);
        let before = std::fs::read(sample.path(0)).unwrap();
        let lazy = sample.checkpoint.lazy();
        let mut all: Vec<Vec<tensora::Tensor>> = backends()
            .into_iter()
            .map(|backend| {
                let loaded = sample.checkpoint.loader().backend(backend).load().unwrap();
                loaded.into_iter().collect()
            })
            .collect();
        all.push(lazy.select(tensora::Selection::all()).unwrap());
        for tensors in &mut all {
            for tensor in tensors {
                let clone = tensor.clone();
                assert!(tensor.bytes_mut().is_none(), "shared with a clone");
                drop(clone);
                let bytes = tensor.bytes_mut().unwrap();
                bytes.iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
        assert!(
            std::fs::read(sample.path(0)).unwrap() == before,
            "the file has changed"
        );
        let expected = sample.all();
        for tensors in &all {
            for tensor in tensors {
                let inverted: Vec<u8> = tensor.bytes().iter().map(|byte| !byte).collect();
                assert!(inverted == expected[tensor.name()].1, "{tensor:?}");
            }
        }
    }
}

#[test]
fn tied_tensors_are_never_written_through_each_other() {
    let index = serde_json::json!({
        "a": [0, 8192, [2048], [1], "torch.float32", 0],
        "b": [0, 8192, [2048], [1], "torch.float32", 0],
        "inner": [4096, 400, [100], [1], "torch.float32", 0],
    });
    let sample = Sample::new(&[
        ("tensor_index.json", serde_json::to_vec(&index).unwrap()),
        ("tensor.data_0", noise(5, 8192)),
    ]);
    for backend in backends() {
        let loaded = sample.checkpoint.loader().backend(backend).load().unwrap();
        let mut tensors: Vec<_> = loaded.into_iter().collect();
        let expected = sample.all();
        while let Some(mut tensor) = tensors.pop() {
            if let Some(bytes) = tensor.bytes_mut() {
                bytes.fill(0);
            }
            for other in &tensors {
                assert!(
                    other.bytes() == expected[other.name()].1,
                    "{backend}: {other:?}"
                );
            }
        }
    }
}

/// A sparse file of 16 tensors of 16 MiB, for children that only count.
fn file() -> (tempfile::TempDir, Checkpoint) {
    let names: Vec<String> = (0..16).map(|i| format!("t{i:02}")).collect();
    let shape = [16 * MIB];
    let list: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), Dtype::U8, &shape[..]))
        .collect();
    sparse(&list, &[])
}

fn kib(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn an_eager_load_peaks_at_its_bytes() {
    for backend in backends() {
        child::run("eager-peak", backend.name());
    }
}

pub fn eager_peak(backend: &str) {
    let backend: BackendKind = backend.parse().unwrap();
    let (_folder, checkpoint) = file();
    let loaded = checkpoint.loader().backend(backend).load().unwrap();
    assert_eq!(loaded.bytes(), 256 * MIB);
    let (peak, allowed) = (kib("VmHWM") * 1024, 256 * MIB * 105 / 100 + 64 * MIB);
    assert!(peak <= allowed, "{backend}: {peak} of {allowed} bytes");
}

#[test]
fn a_stream_peaks_at_its_budget() {
    for backend in backends() {
        child::run("stream-peak", backend.name());
    }
}

pub fn stream_peak(backend: &str) {
    let backend: BackendKind = backend.parse().unwrap();
    let (_folder, checkpoint) = file();
    let stream = checkpoint
        .loader()
        .backend(backend)
        .budget(32 * MIB)
        .stream()
        .unwrap();
    let bytes: u64 = stream.map(|tensor| tensor.unwrap().nbytes() as u64).sum();
    assert_eq!(bytes, 256 * MIB);
    let (peak, allowed) = (kib("VmHWM") * 1024, (32 + 16 + 64) * MIB);
    assert!(peak <= allowed, "{backend}: {peak} of {allowed} bytes");
}

#[test]
fn dropped_tensors_give_their_memory_back() {
    for backend in backends() {
        child::run("memory-returns", backend.name());
    }
}

pub fn memory_returns(backend: &str) {
    let backend: BackendKind = backend.parse().unwrap();
    let (_folder, checkpoint) = file();
    let loaded = checkpoint.loader().backend(backend).load().unwrap();
    let mut tensors: Vec<_> = loaded.into_iter().collect();
    let full = kib("VmRSS");
    assert!(full * 1024 > 250 * MIB, "{backend}: {full} KiB");
    // Every second one: half of the memory, in pieces.
    let mut keep = false;
    tensors.retain(|_| {
        keep = !keep;
        keep
    });
    let half = kib("VmRSS");
    assert!(
        (full - half) * 1024 > 120 * MIB,
        "{backend}: {full} to {half} KiB"
    );
    assert!(
        tensors
            .iter()
            .all(|tensor| tensor.bytes().iter().step_by(4096).all(|byte| *byte == 0))
    );
    drop(tensors);
    let none = kib("VmRSS");
    assert!(
        (full - none) * 1024 > 245 * MIB,
        "{backend}: {full} to {none} KiB"
    );
}

#[test]
fn aligned_memory_of_the_caller_is_read_into_around_the_page_cache() {
    const LEN: usize = 3 << 20;
    let index = serde_json::json!({ "t": [0, LEN, [LEN], [1], "torch.uint8", 0] });
    let sample = Sample::new(&[
        ("tensor.data_0", noise(5, LEN)),
        ("tensor_index.json", index.to_string().into_bytes()),
    ]);
    let expected = &sample.contents[0];
    for backend in backends() {
        let loader = sample.checkpoint.loader().backend(backend);
        // Memory that starts on a page.
        let mut owned = loader.clone().align(4096).load().unwrap().into_iter();
        let mut owned = owned.next().unwrap();
        let buffer = owned.bytes_mut().unwrap();
        buffer.fill(0xAA);
        let loader = loader.access(AccessMode::Direct);
        let report = loader.load_into([("t", &mut *buffer)]).unwrap();
        assert!(buffer == expected, "{backend}");
        if report.direct_bytes > 0 {
            assert_eq!(report.staged_bytes, 0, "{backend}");
        }
        // And memory that does not.
        let mut shifted = vec![0xAA; LEN + 1];
        loader.load_into([("t", &mut shifted[1..])]).unwrap();
        assert!(shifted[1..] == expected[..], "{backend}, shifted");
    }
}
