//! The four ways to execute a schedule. A backend only reads: what, where to and in which order
//! was settled before.

mod mmap;
mod positioned;
mod tokio;
pub(crate) mod uring;

use std::sync::Arc;

use crate::storage::job::Job;

pub(crate) use self::mmap::MmapBackend;
pub(crate) use self::positioned::SyncBackend;
pub(crate) use self::tokio::TokioBackend;
pub(crate) use self::uring::UringBackend;

/// Executes a job to its end: when `execute` returns, nothing is in flight, and the sink has every
/// tensor or the first error.
pub(crate) trait Backend: Send + Sync {
    /// Reads everything, blocking. Failures go to the job's sink.
    fn execute(&self, job: &Arc<Job>);
}
