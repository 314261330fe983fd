//! Peak memory of loads: eager on every backend, and a stream under a budget.
//!
//! `cargo bench --bench memory [-- SIZE_MIB]` (default 2048). Each measurement is a process of its
//! own, whose peak (VmHWM) is taken after the load and compared with what is promised: eager at
//! most 1.05 times the bytes plus 64 MiB, a stream at most its budget, its largest tensor and
//! 64 MiB. Prints tab-separated rows and fails when a promise is broken.

use std::process::{Command, ExitCode};

use tensora::facts::process::{current_rss_bytes, usage};
use tensora::sample::{SampleSpec, write_sample};
use tensora::{BackendKind, Checkpoint, Layout};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 256 * MIB;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    if arguments.first().is_some_and(|first| first == "--measure") {
        arguments.remove(0);
        measure(&arguments[0], &arguments[1], &arguments[2]);
        return ExitCode::SUCCESS;
    }
    let mib = arguments
        .first()
        .map_or(2048, |size| size.parse().expect("a size in MiB"));
    let folder = tempfile::Builder::new()
        .prefix("tensora-memory-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a scratch folder");
    println!("layout\tbackend\tway\tbytes\tpeak_rss_bytes\tlimit_bytes\tratio");
    let mut broken = 0;
    for layout in [Layout::SafeTensors, Layout::ServerlessLlm] {
        let path = folder.path().join(layout.name());
        let spec = SampleSpec {
            total_bytes: mib * MIB,
            layout,
            ..SampleSpec::default()
        };
        write_sample(&path, &spec).expect("a sample");
        for backend in BackendKind::CONCRETE
            .into_iter()
            .chain([BackendKind::Default])
        {
            for way in ["eager", "stream"] {
                broken += u32::from(!run(&path, layout, backend, way));
            }
        }
        std::fs::remove_dir_all(&path).expect("our own folder");
    }
    println!("# {broken} promises broken");
    if broken == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// One measurement in a process of its own; whether the promise held.
fn run(path: &std::path::Path, layout: Layout, backend: BackendKind, way: &str) -> bool {
    let checkpoint = Checkpoint::open(path).expect("our own sample");
    let bytes = checkpoint.total_bytes();
    let largest = checkpoint
        .tensors()
        .iter()
        .map(|tensor| tensor.nbytes())
        .max()
        .unwrap_or(0);
    let limit = match way {
        "eager" => bytes + bytes / 20 + 64 * MIB,
        _ => BUDGET + largest + 64 * MIB,
    };
    let child = Command::new(std::env::current_exe().expect("our own path"))
        .args(["--measure", way, backend.name()])
        .arg(path)
        .output()
        .expect("a process of our own");
    assert!(
        child.status.success(),
        "{}",
        String::from_utf8_lossy(&child.stderr)
    );
    let peak: u64 = String::from_utf8_lossy(&child.stdout)
        .trim()
        .parse()
        .expect("one number");
    let ratio = peak as f64 / bytes as f64;
    println!("{layout}\t{backend}\t{way}\t{bytes}\t{peak}\t{limit}\t{ratio:.3}");
    peak <= limit
}

/// In the child: loads and prints the peak.
fn measure(way: &str, backend: &str, path: &str) {
    let backend = backend.parse().expect("a backend");
    let loader = Checkpoint::open(path)
        .expect("a sample")
        .loader()
        .backend(backend);
    match way {
        "eager" => {
            let tensors = loader.load().expect("a load");
            assert!(
                current_rss_bytes() >= Some(tensors.bytes() / 2),
                "the bytes are in memory"
            );
        }
        _ => {
            for tensor in loader.budget(BUDGET).stream().expect("a stream") {
                std::hint::black_box(tensor.expect("a tensor"));
            }
        }
    }
    println!("{}", usage().peak_rss_bytes.expect("Linux tells"));
}
