//! `io-uring`: many reads in flight over many files.
//!
//! [`driver`] decides what to submit and what an answer means; it is the same over the kernel's
//! rings and over an emulated one, through which sources without descriptors, and the faults of
//! tests, come in.

pub(crate) mod driver;
mod emulated;
#[cfg(all(target_os = "linux", feature = "io-uring"))]
mod kernel;

use std::io;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::storage::backends::Backend;
use crate::storage::job::Job;

use self::driver::{Ring, drive};
use self::emulated::EmulatedRing;

#[derive(Debug)]
pub(crate) struct UringBackend;

impl Backend for UringBackend {
    fn execute(&self, job: &Arc<Job>) {
        let decision = job.schedule().decision();
        let rings = decision.workers.min(job.schedule().requests.len()).max(1);
        std::thread::scope(|scope| {
            for number in 1..rings {
                let named = std::thread::Builder::new().name(format!("tensora-ring-{number}"));
                if named
                    .spawn_scoped(scope, move || run_ring(job, number))
                    .is_err()
                {
                    tracing::warn!(rings = number, "fewer rings than planned: no more threads");
                    break;
                }
            }
            run_ring(job, 0);
        });
    }
}

fn run_ring(job: &Job, number: usize) {
    let depth = job.schedule().decision().queue_depth;
    match make_ring(job, depth) {
        Ok(mut ring) => drive(job, &mut *ring, depth),
        // Locked memory is counted per user: one ring may be granted and the next refused. The
        // rings that exist do the work.
        Err(error) if number > 0 => {
            tracing::warn!(%error, ring = number, "going on with fewer rings")
        }
        Err(error) => job.sink().fail(
            Error::new(
                ErrorKind::Io,
                format!("cannot make an io_uring of depth {depth}"),
            )
            .help("raise ulimit -l, use a smaller queue depth, or the default backend")
            .because(error),
        ),
    }
}

fn make_ring(job: &Job, depth: usize) -> io::Result<Box<dyn Ring>> {
    if job.sources().iter().any(|source| source.local().is_none()) {
        return Ok(Box::new(EmulatedRing::default()));
    }
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    return Ok(Box::new(kernel::KernelRing::new(depth)?));
    #[cfg(not(all(target_os = "linux", feature = "io-uring")))]
    {
        let _ = depth;
        Err(io::ErrorKind::Unsupported.into())
    }
}
