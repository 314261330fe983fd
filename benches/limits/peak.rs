//! Peak memory of a load or a conversion in a process of its own.
#![allow(dead_code)] // Each bench takes what it needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use tensora::converters::{ConvertOptions, convert};
use tensora::facts::process::{current_rss_bytes, usage};
use tensora::{BackendKind, Checkpoint};

/// How tensors are taken.
#[derive(Debug, Clone)]
pub enum Taken {
    /// All at once.
    Eager,
    /// One after the other, under a budget in bytes, each dropped before the next.
    Stream(u64),
    /// Converted into the other layout, under a budget in bytes, into a folder.
    Converted(u64, PathBuf),
}

/// Peak resident bytes (VmHWM) of a process that loads the checkpoint.
///
/// The program must hand its arguments to [`is_child`] before anything else.
pub fn peak_rss(path: &Path, backend: BackendKind, taken: &Taken) -> u64 {
    let (budget, out) = match taken {
        Taken::Eager => (String::new(), Path::new("")),
        Taken::Stream(budget) => (budget.to_string(), Path::new("")),
        Taken::Converted(budget, out) => (budget.to_string(), &**out),
    };
    let child = Command::new(std::env::current_exe().expect("our own path"))
        .args([CHILD, backend.name(), &budget])
        .args([path, out])
        .output()
        .expect("a process of our own");
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{errors}");
    let peak = String::from_utf8_lossy(&child.stdout);
    peak.trim().parse().expect("one number")
}

const CHILD: &str = "--peak-of";

/// Loads and prints the peak where the arguments say that this process is there for that.
pub fn is_child() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, flag, backend, budget, path, out] = &arguments[..] else {
        return false;
    };
    if flag != CHILD {
        return false;
    }
    let checkpoint = Checkpoint::open(path).expect("a sample");
    let backend: BackendKind = backend.parse().expect("a backend");
    let loader = checkpoint.loader().backend(backend);
    match budget.parse() {
        Err(_) => {
            let tensors = loader.load().expect("a load");
            let least = Some(tensors.bytes() / 2);
            assert!(current_rss_bytes() >= least, "the bytes are in memory");
        }
        Ok(budget) if out.is_empty() => {
            for tensor in loader.budget(budget).stream().expect("a stream") {
                std::hint::black_box(tensor.expect("a tensor"));
            }
        }
        Ok(budget) => {
            let options = ConvertOptions {
                backend,
                budget,
                ..ConvertOptions::default()
            };
            convert(&checkpoint, out, &options).expect("a conversion");
        }
    }
    println!("{}", usage().peak_rss_bytes.expect("Linux tells"));
    true
}
