//! The same work on several threads.

use crate::error::Result;

/// Runs `work` on so many threads until all have ended; the first error in their order counts, and a
/// panic is raised here.
pub(crate) fn in_parallel(threads: usize, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        let outcomes: Vec<Result<()>> = joined
            .map(|outcome| outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        outcomes.into_iter().collect()
    })
}
