//! SHA-256 of tensors, on every core.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use tensora::{Dtype, Tensor};

/// A SHA-256 digest; as text, 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha([u8; 32]);

impl Sha {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Sha {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a tensor is, and the digest of its bytes: contiguous, row-major, little-endian.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub dtype: Dtype,
    pub shape: Box<[u64]>,
    pub nbytes: u64,
    pub sha256: Sha,
}

/// Entries by name.
pub type Digests = BTreeMap<Box<str>, Entry>;

impl Entry {
    /// Hashes the bytes, unless the tensor carries their digest.
    pub fn of(tensor: &Tensor) -> Self {
        Self {
            dtype: tensor.dtype(),
            shape: tensor.shape().into(),
            nbytes: tensor.nbytes() as u64,
            sha256: match tensor.sha256() {
                Some(carried) => Sha(*carried),
                None => Sha::of(tensor.bytes()),
            },
        }
    }
}

/// The digests of loaded tensors.
pub fn of_all<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Digests {
    let tensors: Vec<&Tensor> = tensors.into_iter().collect();
    let digests = Mutex::new(Digests::new());
    in_parallel(tensors.len(), |index| {
        let entry = Entry::of(tensors[index]);
        insert(&digests, tensors[index].name(), entry);
    });
    digests.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// One digest over all of them: equal where names, types, shapes and bytes are.
pub fn of_digests(digests: &Digests) -> Sha {
    let mut all = Sha256::new();
    for (name, entry) in digests {
        all.update(format!(
            "{name:?} {} {:?} {}\n",
            entry.dtype, entry.shape, entry.sha256
        ));
    }
    Sha(all.finalize().into())
}

pub fn insert(digests: &Mutex<Digests>, name: &str, entry: Entry) {
    let mut digests = digests.lock().unwrap_or_else(PoisonError::into_inner);
    digests.insert(name.into(), entry);
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
