//! Without a trace, tracing allocates nothing: counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tensora::{AccessMode, BackendKind, Checkpoint, Loader, Settings, Trace};

struct Counting;

thread_local! {
    /// Allocations of this thread, and their bytes.
    static COUNT: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

fn count(bytes: usize) {
    // A thread that ends has no cell any more, and is not measured.
    let _ = COUNT.try_with(|cell| {
        let (calls, all) = cell.get();
        cell.set((calls + 1, all + bytes as u64));
    });
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations and bytes of `work` on this thread.
fn counted<T>(work: impl FnOnce() -> T) -> (u64, u64) {
    let before = COUNT.get();
    let outcome = work();
    let after = COUNT.get();
    drop(outcome);
    (after.0 - before.0, after.1 - before.1)
}

/// What reading allocates beside planning and scheduling, which know nothing of traces. One worker:
/// the calling thread.
fn reading(loader: &Loader) -> (u64, u64) {
    // Whatever is made once is made now.
    loader.load().unwrap();
    let schedule = counted(|| loader.schedule().unwrap());
    let load = counted(|| loader.load().unwrap());
    (load.0 - schedule.0, load.1 - schedule.1)
}

#[test]
fn an_untraced_load_allocates_nothing_for_its_reads() {
    let folder = tempfile::tempdir().unwrap();
    let mut header =
        br#"{"t":{"dtype":"U8","shape":[4194304],"data_offsets":[0,4194304]}}"#.to_vec();
    header.resize(4096 - 8, b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(4096 + (4 << 20), 7);
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let reads_of = |chunk| {
        checkpoint.loader().settings(Settings {
            backend: BackendKind::Sync,
            access: AccessMode::Buffered,
            workers: Some(1),
            chunk_bytes: Some(chunk),
            ..Settings::default()
        })
    };
    let (few, many) = (reads_of(64 << 10), reads_of(4 << 10));
    let reads = |loader: &Loader| loader.load().unwrap().report().reads;
    assert_eq!((reads(&few), reads(&many)), (64, 1024));
    assert_eq!(reading(&few), reading(&many), "960 more reads");

    // The counter sees traces where there are any.
    let traced = |loader: &Loader| reading(&loader.clone().trace(&Trace::new()));
    let (few, many) = (traced(&few), traced(&many));
    assert!(many.1 - few.1 > 960 * 64, "{few:?} {many:?}");
}
