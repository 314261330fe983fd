//! Peak memory of loads: eager on every backend, and a stream under a budget.
//!
//! `cargo bench --bench memory [-- SIZE_MIB]` (default 2048). Each measurement is a process of its
//! own, whose peak (VmHWM) is taken after the load and compared with what is promised: eager at
//! most 1.02 times the bytes plus 64 MiB, a stream at most its budget, its largest tensor and
//! 64 MiB. Prints tab-separated rows and fails when a promise is broken.

#[path = "limits/peak.rs"]
mod peak;

use std::process::ExitCode;

use tensora::sample::{SampleSpec, write_sample};
use tensora::{BackendKind, Checkpoint, Layout};

use crate::peak::{Taken, peak_rss};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 256 * MIB;

fn main() -> ExitCode {
    if peak::is_child() {
        return ExitCode::SUCCESS;
    }
    let size = std::env::args().skip(1).find(|word| word != "--bench");
    let mib: u64 = size.map_or(2048, |size| size.parse().expect("a size in MiB"));
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
        let checkpoint = Checkpoint::open(&path).expect("our own sample");
        let bytes = checkpoint.total_bytes();
        let tensors = checkpoint.tensors().iter();
        let largest = tensors.map(|tensor| tensor.nbytes()).max().unwrap_or(0);
        let backends = BackendKind::CONCRETE.into_iter();
        for backend in backends.chain([BackendKind::Default]) {
            for (way, taken, limit) in [
                ("eager", Taken::Eager, bytes + bytes / 50 + 64 * MIB),
                ("stream", Taken::Stream(BUDGET), BUDGET + largest + 64 * MIB),
            ] {
                let peak = peak_rss(&path, backend, &taken);
                let ratio = peak as f64 / bytes as f64;
                println!("{layout}\t{backend}\t{way}\t{bytes}\t{peak}\t{limit}\t{ratio:.3}");
                broken += u32::from(peak > limit);
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
