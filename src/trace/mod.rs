//! Traces: what a load did, when, and on which thread.
//!
//! A load that is given a [`Trace`] writes down its reads, copies, populated pages, allocations,
//! waits and deliveries. The trace can be looked at as a picture ([`Trace::write_chrome`], for
//! Perfetto and the trace viewers of browsers) or as an account of time ([`Trace::summary`]). A
//! load without one pays for an `Option` that is looked at.
//!
//! # What cannot be told apart
//! The system answers a read as a whole, so an account from outside of the kernel has its limits:
//!
//! - A read through the page cache copies, faults the pages that it copies to, and waits for the
//!   disk where pages are absent. Time on the processor is called *copy*, faults included; time
//!   off it is called *disk wait* if the thread went to sleep. Faults are counted, not timed.
//! - A read around the page cache faults and pins its destination, then waits. Time on the
//!   processor is called *fault*, although submitting is in it.
//! - Asleep means the disk, but also a lock on the address space, and after the answer the wait for
//!   a core to go on with. On a busy machine disk waits are too long by that. A thread that never
//!   slept and was sent off its core is *idle*.
//! - A ring's reads overlap. Their own durations go from submission to answer, the time in the
//!   ring's queues included; the account has the time that the ring's thread spent submitting and
//!   waiting, whose processor time is split by bytes read through and around the page cache. Threads
//!   of the kernel that work for a ring are not seen.
//! - Where the system has no clock for threads, whole durations count as one or the other.
//!
//! Tracing costs some system calls and a lock for each event, about two microseconds, and some 100
//! bytes of memory.

mod chrome;
mod record;
mod summary;

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub(crate) use record::{Answer, Read, Recorder, Stamp, Tracing, What};
pub use summary::{TimeSpent, TraceSummary, WorkerSummary};

/// A recording of one load or of several. Clones are handles to the same recording.
#[derive(Debug, Clone)]
pub struct Trace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Times in the trace count from here.
    epoch: Instant,
    loads: Mutex<Vec<Arc<Recorder>>>,
}

impl Trace {
    /// An empty trace, to be given to [`Loader::trace`](crate::Loader::trace). Times count from
    /// now.
    pub fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                epoch: Instant::now(),
                loads: Mutex::default(),
            }),
        }
    }

    /// Writes everything recorded so far in the trace-event format, which `ui.perfetto.dev`,
    /// `chrome://tracing` and others show: one process for each load, one thread for each worker,
    /// times in microseconds. Reads of a ring, which overlap, are asynchronous events.
    ///
    /// # Errors
    /// Those of `writer`.
    pub fn write_chrome(&self, writer: &mut impl Write) -> io::Result<()> {
        chrome::write(&self.loads(), &self.summary(), writer)
    }

    /// Whether bytes begin as those that [`write_chrome`](Self::write_chrome) writes.
    pub fn is_begun_by(bytes: &[u8]) -> bool {
        bytes.starts_with(chrome::START)
    }

    /// Where the time went, so far.
    pub fn summary(&self) -> TraceSummary {
        summary::of(&self.loads())
    }

    pub(crate) fn epoch(&self) -> Instant {
        self.inner.epoch
    }

    pub(crate) fn add(&self, load: Arc<Recorder>) {
        self.inner
            .loads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(load);
    }

    fn loads(&self) -> Vec<Arc<Recorder>> {
        self.inner
            .loads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}
