//! How close loads come to what the machine can do: every line is a ratio of two ways that took
//! turns in this process, over files of its own.
//!
//! `cargo bench --bench limits [-- --quick] [--size MIB] [--dir DIR] [--only WORD]`
//!
//! Fresh memory is memory that the process had not touched before. Before each timed run as much
//! memory as it needs is touched and given back, so that a virtual machine's host does not decide
//! who pays for the first touch. Cold means that the files' pages were evicted, and the residency
//! that was left is checked; warm means that every page is resident; half, the first half of what
//! is read of each file.

mod lines;
mod measure;
mod options;
mod peak;
mod raw;
mod rivals;
mod subjects;

use std::process::ExitCode;

use crate::lines::Over;
use crate::measure::Bench;
use crate::options::Options;
use crate::subjects::Subjects;

fn main() -> ExitCode {
    if peak::is_child() {
        return ExitCode::SUCCESS;
    }
    let options = Options::from_args();
    println!(
        "# limits: {} MiB a checkpoint, {} repetitions, {} cores, huge pages {:?}",
        options.mib,
        options.repetitions(),
        std::thread::available_parallelism().map_or(1, usize::from),
        tensora::Facts::probe(&[], &[]).huge_pages,
    );
    println!("measure\tstate\tours\trival\tratio\tgoal\tverdict");
    // What is larger than the checkpoint is all of it.
    let regret_mib: &[u64] = match options.quick {
        true => &[64, 512],
        false => &[64, 512, u64::MAX >> 20],
    };
    let subjects = Subjects::new(&options.folder, options.mib << 20);
    let mut bench = Bench::new(options.repetitions(), options.only.clone());

    let one = subjects.one_file();
    lines::against_the_machine(&mut bench, &one);
    lines::against_plain_loops(&mut bench, &one);
    lines::at_once(&mut bench, &one);
    let eight = subjects.eight_shards();
    lines::against_parallel_reads(&mut bench, &eight);
    let partitions = subjects.eight_partitions();
    lines::between_layouts(&mut bench, &eight, &partitions);
    let small = subjects.small_tensors(20_000);
    for (name, checkpoint) in [
        ("one file", &one),
        ("8 shards", &eight),
        ("8 partitions", &partitions),
        ("20,000 tensors", &small),
    ] {
        for &mib in regret_mib {
            lines::regret(&mut bench, name, checkpoint, mib << 20);
        }
    }
    drop((eight, partitions, small));
    subjects.forget_all_but_one_file();
    lines::slices(&mut bench, "a dense model", &one, 0, Over::AtMost(1.05));
    let long = subjects.rows(64 << 10);
    lines::slices(&mut bench, "rows of 64 KiB", &long, 1, Over::AtMost(1.05));
    for kib in [1, 4] {
        let short = subjects.rows(kib << 10);
        let name = format!("rows of {kib} KiB");
        lines::slices(&mut bench, &name, &short, 1, Over::Whatever);
    }
    lines::headers(&mut bench, &subjects.many_tensors(46_000));
    let large = subjects.large(4096 << 20);
    lines::first_tensor(&mut bench, &large);
    lines::peaks(&mut bench, &large);
    println!("# {} lines missed their goal", bench.missed());
    if bench.missed() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
