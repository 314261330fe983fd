//! `io-uring`: many reads in flight over many files.
//!
//! [`driver`] decides what to submit and what an answer means; it is the same over the kernel's
//! rings and over an emulated one, through which sources without descriptors, and the faults of
//! tests, come in. The kernel's rings read through a window of registered files.
//!
//! Staging buffers are not registered with the kernel, and completion work is not deferred
//! (`DEFER_TASKRUN`): both were measured on staged loads of short rows, cold and warm, and the times
//! with and without could not be told apart.

pub(crate) mod driver;
mod emulated;
#[cfg(all(target_os = "linux", feature = "io-uring"))]
mod kernel;
#[cfg(any(test, all(target_os = "linux", feature = "io-uring")))]
mod window;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, ErrorKind};
use crate::storage::backends::Backend;
use crate::storage::job::Job;
use crate::storage::local::is_out_of_descriptors;

use self::driver::{Ring, drive};
use self::emulated::EmulatedRing;

#[derive(Debug)]
pub(crate) struct UringBackend;

impl Backend for UringBackend {
    fn execute(&self, job: &Arc<Job>) {
        let decision = job.schedule().decision();
        let rings = decision.workers.min(job.schedule().requests.len()).max(1);
        let crew = Crew::default();
        std::thread::scope(|scope| {
            for number in 1..rings {
                let named = std::thread::Builder::new().name(format!("tensora-ring-{number}"));
                if named.spawn_scoped(scope, || crew.join(job)).is_err() {
                    tracing::warn!(rings = number, "fewer rings than planned: no more threads");
                    break;
                }
            }
            crew.join(job);
        });
        crew.check(job);
    }
}

/// The rings of a job. Locked memory and descriptors are counted per user and per process: one
/// ring may be granted and the next refused, and then those that exist do the work.
#[derive(Default)]
struct Crew {
    made: AtomicUsize,
    refusal: Mutex<Option<io::Error>>,
    /// Whether one of them has said that files cannot be registered.
    said: Arc<AtomicBool>,
}

impl Crew {
    /// Makes a ring and drives it to the end of the job.
    fn join(&self, job: &Job) {
        match make_ring(job, &self.said) {
            Ok(mut ring) => {
                self.made.fetch_add(1, Ordering::Relaxed);
                drive(job, &mut *ring, job.schedule().decision().queue_depth);
            }
            Err(error) => {
                tracing::warn!(%error, "going on with fewer rings");
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }
    }

    /// Fails the job when there was no ring at all.
    fn check(self, job: &Job) {
        let refusal = self
            .refusal
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        if let (0, Some(error)) = (self.made.into_inner(), refusal) {
            let depth = job.schedule().decision().queue_depth;
            let help = if is_out_of_descriptors(&error) {
                "raise ulimit -n, close files, or use the default backend"
            } else {
                "raise ulimit -l, use a smaller queue depth, or the default backend"
            };
            job.sink().fail(
                Error::new(
                    ErrorKind::Io,
                    format!("cannot make an io_uring of depth {depth}"),
                )
                .help(help)
                .because(error),
            );
        }
    }
}

fn make_ring(job: &Job, said: &Arc<AtomicBool>) -> io::Result<Box<dyn Ring>> {
    if job.sources().iter().any(|source| source.local().is_none()) {
        return Ok(Box::new(EmulatedRing::default()));
    }
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    {
        // A file may be read both ways, which are two files to the kernel.
        let files = job.sources().len() * 2;
        let slots = window::slots_for(files, crate::storage::local::descriptor_limit());
        let depth = job.schedule().decision().queue_depth;
        Ok(Box::new(kernel::KernelRing::new(depth, slots, said)?))
    }
    #[cfg(not(all(target_os = "linux", feature = "io-uring")))]
    {
        let _ = said;
        Err(io::ErrorKind::Unsupported.into())
    }
}
