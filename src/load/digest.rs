//! Digests of tensors, computed while others are still being read.
//!
//! Reading threads hand finished tensors to hashing threads of the load, which pass them on to the
//! taker: nobody who reads, and nobody who takes, ever waits for a hash of another tensor. What
//! waits here was not taken and counts against the budget like everything else.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::error::{Error, ErrorKind};
use crate::load::delivery::{Delivery, Parcel};

/// Which digest every delivered tensor carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Digests {
    /// None.
    #[default]
    None,
    /// SHA-256 of the bytes, as [`Tensor::sha256`](crate::Tensor::sha256). One core hashes 1 to
    /// 2 GB/s where it has instructions for it; a tensor is hashed by one core.
    #[cfg(feature = "digest")]
    Sha256,
}

impl Digests {
    fn of(self, bytes: &[u8]) -> Option<Box<[u8; 32]>> {
        match self {
            Self::None => {
                let _ = bytes;
                None
            }
            #[cfg(feature = "digest")]
            Self::Sha256 => {
                use sha2::Digest as _;
                Some(Box::new(sha2::Sha256::digest(bytes).into()))
            }
        }
    }
}

/// Between the sink and the delivery of a load.
#[derive(Debug)]
pub(super) struct Hashing {
    digests: Digests,
    /// Each is hashed by one thread, so that more threads would find no work.
    tensors: usize,
    delivery: Arc<Delivery>,
    waiting: Mutex<Waiting>,
    /// A tensor to hash, or the end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    parcels: VecDeque<Parcel>,
    closed: bool,
}

impl Hashing {
    pub(super) fn new(digests: Digests, tensors: usize, delivery: &Arc<Delivery>) -> Self {
        Self {
            digests,
            tensors,
            delivery: Arc::clone(delivery),
            waiting: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes a finished tensor. Never blocks on a hash.
    pub(super) fn push(&self, parcel: Parcel) {
        if self.digests == Digests::None {
            return self.delivery.push(parcel);
        }
        self.lock().parcels.push_back(parcel);
        self.changed.notify_one();
    }

    /// Runs `read`, with threads beside it that hash what it pushes; when it returns, everything
    /// is hashed, and with the delivery.
    pub(super) fn during(&self, read: impl FnOnce()) {
        if self.digests == Digests::None {
            return read();
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for number in 1..=cores.min(self.tensors) {
                let named = std::thread::Builder::new().name(format!("tensora-hash-{number}"));
                match named.spawn_scoped(scope, || self.hash_until_closed()) {
                    Ok(_) => {}
                    Err(error) if number == 1 => {
                        let what = "cannot start a thread that hashes";
                        self.delivery
                            .fail(Error::new(ErrorKind::Io, what).because(error));
                    }
                    // Those that there are do the work.
                    Err(_) => break,
                }
            }
            let _close = CloseOnDrop(self);
            read();
        });
    }

    fn hash_until_closed(&self) {
        let _guard = FailOnPanic(&self.delivery);
        loop {
            let mut waiting = self.lock();
            let parcel = loop {
                if let Some(parcel) = waiting.parcels.pop_front() {
                    break parcel;
                }
                if waiting.closed {
                    return;
                }
                waiting = self
                    .changed
                    .wait(waiting)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            drop(waiting);
            // After a failure or a cancel nothing is handed out any more.
            if !self.delivery.is_cancelled() {
                self.finish(parcel);
            }
        }
    }

    fn finish(&self, mut parcel: Parcel) {
        let digest = self.digests.of(parcel.tensor.bytes());
        parcel.tensor.set_digest(digest);
        self.delivery.push(parcel);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of the reading, also by a panic, lets the hashing threads end.
struct CloseOnDrop<'a>(&'a Hashing);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

/// A tensor that is lost with its thread must not be missing in silence.
struct FailOnPanic<'a>(&'a Delivery);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .fail(Error::new(ErrorKind::Io, "a hashing thread panicked"));
        }
    }
}
