//! Reads under way, and what they are counted in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::schedule::Request;
use crate::storage::progress::Progress;
use crate::storage::region::Landing;
use crate::trace::Stamp;

/// A claimed request with its destination.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) request: u32,
    pub(crate) progress: Progress,
    pub(super) landing: Landing,
    /// When the read that is under way began, if that is traced.
    pub(super) since: Option<Stamp>,
    pub(super) _flying: Flying,
}

/// Counts a flight until it is dropped.
#[derive(Debug)]
pub(super) struct Flying(Arc<AtomicUsize>);

impl Flying {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Flight {
    /// The bytes still to be read, and where they start in the source. Their read begins now.
    pub(crate) fn rest(&mut self, request: &Request) -> (u64, &mut [u8]) {
        if let Some(since) = &mut self.since {
            *since = Stamp::now();
        }
        let filled = self.progress.filled;
        (
            request.offset + filled,
            &mut self.landing.bytes()[filled as usize..],
        )
    }
}

/// What a job did, counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) direct_bytes: AtomicU64,
    pub(crate) mapped_bytes: AtomicU64,
    pub(crate) staged_bytes: AtomicU64,
    pub(crate) direct_refusals: AtomicU64,
    /// Reads that a broken ring never answered.
    pub(crate) leaked: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}
