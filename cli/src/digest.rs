//! Digests of everything that was loaded, on every core, and one over all of them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tensora::Tensor;
use tensora::integrity::{Entries, Entry, Sha256};

/// The digests of loaded tensors.
pub fn of_all<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Entries {
    let tensors: Vec<&Tensor> = tensors.into_iter().collect();
    let entries = Mutex::new(Entries::new());
    in_parallel(tensors.len(), |index| {
        let entry = Entry::of(tensors[index]);
        insert(&entries, tensors[index].name(), entry);
    });
    entries.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// One digest over all of them: equal where names, types, shapes and bytes are.
pub fn of_entries(entries: &Entries) -> Sha256 {
    let mut all = String::new();
    for (name, entry) in entries {
        let Entry { dtype, shape, .. } = entry;
        // Writing to a string cannot fail.
        let _ = writeln!(all, "{name:?} {dtype} {shape:?} {}", entry.sha256);
    }
    Sha256::of(all.as_bytes())
}

pub fn insert(entries: &Mutex<Entries>, name: &str, entry: Entry) {
    let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
    entries.insert(name.into(), entry);
}

/// Calls `each` for every number below `count`, on as many threads as there are cores.
pub fn in_parallel(count: usize, each: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..cores().min(count) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    each(index);
                }
            });
        }
    });
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
