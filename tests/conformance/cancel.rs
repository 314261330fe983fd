//! Ending loads early: tokens before, during and after; streams and futures dropped half way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tensora::storage::{Fault, FaultSource, MemorySource, Source};
use tensora::{BackendKind, CancelToken, Checkpoint, Dtype, ErrorKind, Layout, Loader};

use crate::support::{Sample, Watchdog, backends, block_on, compare, next, safetensors, settings};

/// 64 tensors of 8 KiB: 128 reads of a chunk each.
fn names() -> Vec<String> {
    (0..64).map(|i| format!("t{i:02}")).collect()
}

fn list(names: &[String]) -> Vec<(&str, Dtype, &'static [u64])> {
    let shape: &'static [u64] = &[8192];
    names
        .iter()
        .map(|name| (name.as_str(), Dtype::U8, shape))
        .collect()
}

/// A checkpoint in memory that calls `on_read` with the number of each read of its data.
fn watched(
    on_read: impl Fn(u64) + Send + Sync + 'static,
) -> (Checkpoint, Arc<FaultSource>, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let count = AtomicU64::new(0);
    let bytes = safetensors(&list(&names()), 1, 0);
    let script = {
        let armed = Arc::clone(&armed);
        move |_, _, _| {
            if armed.load(Ordering::SeqCst) {
                on_read(count.fetch_add(1, Ordering::SeqCst));
            }
            Fault::None
        }
    };
    let memory = Arc::new(MemorySource::new("in memory.safetensors", bytes));
    let source = Arc::new(FaultSource::new(memory, script));
    let sources: Vec<Arc<dyn Source>> = vec![Arc::clone(&source) as Arc<dyn Source>];
    let checkpoint = Checkpoint::from_sources(Layout::SafeTensors, sources, None).unwrap();
    armed.store(true, Ordering::SeqCst);
    (checkpoint, source, armed)
}

/// The most reads that may start after a cancel: those already claimed.
fn in_flight_at_most(backend: BackendKind) -> u64 {
    let settings = settings(backend);
    (settings.workers.unwrap() * (settings.queue_depth.unwrap() + 1)) as u64
}

#[test]
fn a_token_that_was_used_refuses_every_load() {
    let sample = Sample::single(&list(&names()), 0);
    for backend in backends() {
        let token = CancelToken::default();
        let loader = sample
            .checkpoint
            .loader()
            .backend(backend)
            .cancel_with(token.clone());
        let loaded = loader.load().unwrap();
        token.cancel();
        assert!(token.is_cancelled());
        compare("cancelled afterwards", &loaded, &sample.all());
        let mut memory = vec![0; 8192];
        let errors = [
            loader.load().unwrap_err(),
            block_on(loader.load_async()).unwrap_err(),
            loader.stream().unwrap_err(),
            loader
                .clone()
                .select(tensora::Selection::names(["t00"]))
                .load_into([("t00", &mut memory[..])])
                .unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{backend}: {error}");
        }
    }
}

#[test]
fn a_token_ends_loads_that_are_running() {
    for backend in backends() {
        type Verb = fn(&Loader) -> Option<ErrorKind>;
        let verbs: [(&str, Verb); 4] = [
            ("load", |loader| {
                loader.load().err().map(|error| error.kind())
            }),
            ("async", |loader| {
                block_on(loader.load_async())
                    .err()
                    .map(|error| error.kind())
            }),
            ("stream", |loader| {
                loader
                    .stream()
                    .unwrap()
                    .find_map(Result::err)
                    .map(|error| error.kind())
            }),
            ("futures stream", |loader| {
                let mut stream = loader.stream().unwrap();
                while let Some(item) = block_on(next(&mut stream)) {
                    if let Err(error) = item {
                        assert!(block_on(next(&mut stream)).is_none());
                        return Some(error.kind());
                    }
                }
                None
            }),
        ];
        for (verb, run) in verbs {
            let what = format!("cancel during {verb}, {backend}");
            let _dog = Watchdog::new(&what);
            let token = CancelToken::default();
            let (checkpoint, source, _) = watched({
                let token = token.clone();
                move |number| {
                    // Later reads cancel too: the first of them may be put to sleep before it does.
                    if number >= 20 {
                        token.cancel();
                    }
                }
            });
            let before = source.reads();
            let loader = checkpoint
                .loader()
                .settings(settings(backend))
                .cancel_with(token);
            assert_eq!(run(&loader), Some(ErrorKind::Cancelled), "{what}");
            let reads = source.reads() - before;
            assert!(
                reads <= 21 + in_flight_at_most(backend),
                "{what}: {reads} reads"
            );
        }
    }
}

#[test]
fn a_stream_dropped_half_way_stops_reading() {
    for backend in backends() {
        for budget in [None, Some(1), Some(64 << 10)] {
            let what = format!("dropped stream, {backend}, budget {budget:?}");
            let _dog = Watchdog::new(&what);
            // Slow reads, so that there is a middle.
            let (checkpoint, source, _) = watched(|_| std::thread::sleep(Duration::from_millis(1)));
            let mut loader = checkpoint.loader().settings(settings(backend));
            if let Some(budget) = budget {
                loader = loader.budget(budget);
            }
            let mut stream = loader.stream().unwrap();
            let tensor = stream.next().unwrap().unwrap();
            drop(stream);
            let reads = source.reads();
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(source.reads(), reads, "{what}: reads after the drop");
            assert_eq!(tensor.nbytes(), 8192);
        }
    }
}

#[test]
fn a_future_dropped_half_way_cancels_its_load() {
    for backend in backends() {
        let what = format!("dropped future, {backend}");
        let _dog = Watchdog::new(&what);
        // Reads wait at the gate until the future is gone.
        let gate = Arc::new((Mutex::new((0_u64, false)), Condvar::new()));
        let (checkpoint, source, _) = watched({
            let gate = Arc::clone(&gate);
            move |_| {
                let mut state = gate.0.lock().unwrap();
                state.0 += 1;
                gate.1.notify_all();
                while !state.1 {
                    state = gate.1.wait(state).unwrap();
                }
            }
        });
        let before = source.reads();
        let loader = checkpoint.loader().settings(settings(backend));
        let mut future = Box::pin(loader.load_async());
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        let mut state = gate.0.lock().unwrap();
        while state.0 == 0 {
            state = gate.1.wait(state).unwrap();
        }
        drop(future);
        state.1 = true;
        gate.1.notify_all();
        drop(state);
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut reads = source.reads();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            if source.reads() == reads || Instant::now() > deadline {
                break;
            }
            reads = source.reads();
        }
        let reads = reads - before;
        assert!(
            reads <= 1 + in_flight_at_most(backend),
            "{what}: {reads} reads"
        );
    }
}

#[test]
fn a_future_that_is_never_polled_reads_nothing() {
    let (checkpoint, source, _) = watched(|_| {});
    let before = source.reads();
    let loader = checkpoint.loader();
    drop(loader.load_async());
    assert_eq!(source.reads(), before);
}

#[test]
fn one_token_ends_several_loads() {
    let _dog = Watchdog::new("one token, several loads");
    let token = CancelToken::default();
    let started = Arc::new(AtomicU64::new(0));
    let (checkpoint, _, _) = watched({
        let started = Arc::clone(&started);
        move |_| {
            started.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    std::thread::scope(|scope| {
        let loads: Vec<_> = backends()
            .into_iter()
            .map(|backend| {
                let loader = checkpoint
                    .loader()
                    .settings(settings(backend))
                    .cancel_with(token.clone());
                scope.spawn(move || loader.load())
            })
            .collect();
        while started.load(Ordering::SeqCst) < 8 {
            std::thread::yield_now();
        }
        token.cancel();
        for load in loads {
            assert_eq!(
                load.join().unwrap().unwrap_err().kind(),
                ErrorKind::Cancelled
            );
        }
    });
}
