//! What is compared with what, and how well it must do.

use tensora::{BackendKind, Checkpoint, Loader, Selection, Slice, Split};

use crate::measure::{self, Bench, Case, Extent, Goal, State, Way};
use crate::peak::{Taken, peak_rss};
use crate::{raw, rivals};

fn loader(checkpoint: &Checkpoint, backend: BackendKind) -> Loader {
    checkpoint.loader().backend(backend)
}

/// A load that drops its tensors after the clock has stopped.
fn load(loader: Loader) -> Way<'static> {
    Way::new(move || Box::new(loader.load().expect("a load")))
}

pub fn against_the_machine(bench: &mut Bench, one: &Checkpoint) {
    let files = measure::files_of(one);
    let bytes = one.total_bytes();
    let ours = || load(loader(one, BackendKind::Default));

    let raw = raw::direct_ways(&files[0].path);
    let best = bench.best(
        &Case::new("raw direct reads", State::Cold, &files, bytes),
        raw,
    );
    if let Some(best) = best {
        let fresh = raw::direct(&files[0].path, best);
        bench.compare(
            &Case::new("default / best raw direct read", State::Cold, &files, bytes),
            ours(),
            fresh,
            Goal::AtLeast(0.95),
        );
        let reused = raw::direct_reused(&files[0].path, best);
        bench.compare(
            &Case::new(
                "default / the same into reused memory",
                State::Cold,
                &files,
                bytes,
            ),
            ours(),
            reused,
            Goal::Shown,
        );
    }
    let native = || rivals::native(&files);
    bench.compare(
        &Case::new("default / native", State::Cold, &files, bytes),
        ours(),
        native(),
        Goal::AtLeast(1.6),
    );
    bench.compare(
        &Case::new("default / native", State::Warm, &files, bytes),
        ours(),
        native(),
        Goal::AtLeast(5.0),
    );
    let copy = raw::parallel_copy(&files[0].path);
    bench.compare(
        &Case::new(
            "default / parallel copy of a resident map",
            State::Warm,
            &files,
            bytes,
        ),
        ours(),
        copy,
        Goal::AtLeast(0.90),
    );
    bench.cpu(
        &Case::new("CPU seconds per GB", State::Cold, &files, bytes),
        ours(),
        raw::direct(&files[0].path, best.unwrap_or(raw::SHAPES[2])),
        0.08,
    );
    bench.cpu(
        &Case::new("CPU seconds per GB", State::Warm, &files, bytes),
        ours(),
        raw::parallel_copy(&files[0].path),
        0.12,
    );
    bench.pages("default", one);
}

pub fn against_plain_loops(bench: &mut Bench, one: &Checkpoint) {
    let files = measure::files_of(one);
    let bytes = one.total_bytes();
    for (state, goal) in [(State::Cold, 1.5), (State::Warm, 4.0)] {
        let sync = load(loader(one, BackendKind::Sync));
        let plain = rivals::pread_into_vec(&files[0].path);
        bench.compare(
            &Case::new("sync / loop of pread into a Vec", state, &files, bytes),
            sync,
            plain,
            Goal::AtLeast(goal),
        );
        let tokio = load(loader(one, BackendKind::Async));
        bench.compare(
            &Case::new("async / tokio::fs::read", state, &files, bytes),
            tokio,
            rivals::tokio_read(&files),
            Goal::AtLeast(goal),
        );
    }
}

pub fn against_parallel_reads(bench: &mut Bench, eight: &Checkpoint) {
    let files = measure::files_of(eight);
    let bytes = eight.total_bytes();
    let ours = || load(loader(eight, BackendKind::Default));
    for (state, goal) in [(State::Cold, 1.0), (State::Warm, 3.0)] {
        let parallel = rivals::native_parallel(&files);
        bench.compare(
            &Case::new("default / native-parallel, 8 shards", state, &files, bytes),
            ours(),
            parallel,
            Goal::AtLeast(goal),
        );
    }
    for state in [State::Cold, State::Warm] {
        let parallel = rivals::native_parallel(&files);
        bench.compare_cpu(
            &Case::new("default / native-parallel, CPU", state, &files, bytes),
            ours(),
            parallel,
            0.25,
        );
    }
}

pub fn between_layouts(bench: &mut Bench, eight: &Checkpoint, partitions: &Checkpoint) {
    let files: Vec<Extent> = [eight, partitions]
        .into_iter()
        .flat_map(measure::files_of)
        .collect();
    for state in [State::Cold, State::Warm] {
        let ours = load(loader(partitions, BackendKind::Default));
        let theirs = load(loader(eight, BackendKind::Default));
        bench.compare(
            &Case::new(
                "ServerlessLLM / SafeTensors",
                state,
                &files,
                eight.total_bytes(),
            ),
            ours,
            theirs,
            Goal::AtLeast(0.95),
        );
    }
}

/// `default` against the best explicit backend that returns owned memory, over the first tensors of
/// about `limit` bytes.
pub fn regret(bench: &mut Bench, name: &str, checkpoint: &Checkpoint, limit: u64) {
    let mut bytes = 0;
    let mut names = Vec::new();
    for tensor in checkpoint.tensors() {
        if bytes >= limit {
            break;
        }
        bytes += tensor.nbytes();
        names.push(&*tensor.name);
    }
    let selection = if bytes == checkpoint.total_bytes() {
        Selection::all()
    } else {
        Selection::names(names)
    };
    let of = |backend| loader(checkpoint, backend).select(selection.clone());
    let extents = measure::extents_of(&of(BackendKind::Default));
    for state in [State::Cold, State::Warm, State::Half] {
        let explicit = [BackendKind::Sync, BackendKind::Async, BackendKind::IoUring];
        let ways = explicit
            .iter()
            .map(|&backend| (backend.name().to_owned(), load(of(backend))))
            .collect();
        let measure = format!("regret, {name}, {} MiB", bytes >> 20);
        bench.regret(
            &Case::new(measure, state, &extents, bytes),
            load(of(BackendKind::Default)),
            ways,
            0.10,
        );
    }
}

pub fn at_once(bench: &mut Bench, one: &Checkpoint) {
    const LOADS: usize = 4;
    let files = measure::files_of(one);
    let quarter: Vec<Selection> = (0..LOADS)
        .map(|part| {
            let names = one
                .tensors()
                .iter()
                .skip(part)
                .step_by(LOADS)
                .map(|tensor| &*tensor.name);
            Selection::names(names)
        })
        .collect();
    for state in [State::Cold, State::Warm] {
        let (checkpoint, parts) = (one.clone(), quarter.clone());
        let four = Way::new(move || {
            let loads: Vec<_> = std::thread::scope(|scope| {
                let running: Vec<_> = parts
                    .iter()
                    .map(|part| {
                        scope.spawn(|| {
                            checkpoint
                                .loader()
                                .select(part.clone())
                                .load()
                                .expect("a load")
                        })
                    })
                    .collect();
                running
                    .into_iter()
                    .map(|load| load.join().expect("no panic"))
                    .collect()
            });
            Box::new(loads)
        });
        let whole = load(loader(one, BackendKind::Default));
        bench.compare(
            &Case::new("4 loads at once / one", state, &files, one.total_bytes()),
            four,
            whole,
            Goal::AtLeast(0.9),
        );
    }
}

/// Rank 0 of 8 of every tensor, against reading all of them. Times, not rates: a part must not take
/// longer than the whole.
pub fn slices(bench: &mut Bench, name: &str, checkpoint: &Checkpoint, dim: usize, over: Over) {
    let shard = Slice::Shard {
        dim,
        rank: 0,
        world: 8,
        split: Split::Balanced,
    };
    let two_d = || {
        let tensors = checkpoint.tensors().iter();
        let two_d = tensors.filter(|tensor| tensor.shape.len() == 2);
        Selection::names(two_d.map(|tensor| &*tensor.name))
    };
    let sliced = two_d().with_slice("*", shard).expect("a pattern");
    let part = checkpoint.loader().select(sliced);
    let all = checkpoint.loader().select(two_d());
    let extents = measure::extents_of(&all);
    let needed = part.plan().expect("a plan").figures().needed_bytes;
    let measure = format!("rank 0 of 8 on dim {dim}, {name}: bytes read / needed");
    let read = || {
        State::Cold.prepare(&extents);
        let loaded = part.load().expect("a load");
        loaded.report().read_bytes as f64 / needed as f64
    };
    match over {
        Over::AtMost(most) => bench.count(&measure, read, most),
        Over::Whatever => {}
    }
    let measure = format!("rank 0 of 8 on dim {dim}, {name}: time / reading all");
    bench.compare(
        &Case::new(measure, State::Cold, &extents, 0),
        load(part.clone()),
        load(all),
        Goal::AtMost(1.0),
    );
}

/// How much more than what is needed may be read.
pub enum Over {
    AtMost(f64),
    /// Rows are so short that skipping the rest of each would take longer.
    Whatever,
}

/// Opening a checkpoint of many tensors, against the parser of the `safetensors` crate.
pub fn headers(bench: &mut Bench, many: &Checkpoint) {
    const OPENINGS: usize = 20;
    let files = measure::files_of(many);
    let path = files[0].path.clone();
    let ours = Way::new(move || {
        let open = || Checkpoint::open(&path).expect("our own sample");
        Box::new((0..OPENINGS).map(|_| open()).collect::<Vec<_>>())
    });
    let path = files[0].path.clone();
    let theirs = Way::new(move || {
        let open = || {
            let file = std::fs::File::open(&path).expect("our own file");
            // SAFETY: nothing writes to the file while the bench runs.
            let bytes = unsafe { memmap2::Mmap::map(&file) }.expect("a mapping");
            safetensors::SafeTensors::read_metadata(&bytes).expect("our own sample")
        };
        Box::new((0..OPENINGS).map(|_| open()).collect::<Vec<_>>())
    });
    bench.compare(
        &Case::new(
            "open to metadata / safetensors crate, 46,000 tensors, time",
            State::Warm,
            &files,
            0,
        ),
        ours,
        theirs,
        Goal::AtMost(0.5),
    );
}

/// Peak memory of processes that load with `default`.
pub fn peaks(bench: &mut Bench, checkpoint: &Checkpoint) {
    const MIB: f64 = 1048576.0;
    const BUDGET: u64 = 256 << 20;
    let bytes = checkpoint.total_bytes() as f64;
    let tensors = checkpoint.tensors().iter();
    let largest = tensors.map(|tensor| tensor.nbytes()).max().unwrap_or(0) as f64;
    let peak = |taken| peak_rss(checkpoint.root(), BackendKind::Default, &taken) as f64;
    bench.count(
        "peak RSS of an eager load / (1.02 x bytes + 64 MiB)",
        || peak(Taken::Eager) / (1.02 * bytes + 64.0 * MIB),
        1.0,
    );
    bench.count(
        "peak RSS of a stream of 256 MiB / (budget + largest tensor + 64 MiB)",
        || peak(Taken::Stream(BUDGET)) / (BUDGET as f64 + largest + 64.0 * MIB),
        1.0,
    );
}

/// Time to the first tensor.
pub fn first_tensor(bench: &mut Bench, checkpoint: &Checkpoint) {
    bench.first_tensor("first tensor / whole load", checkpoint, 0.05);
}
