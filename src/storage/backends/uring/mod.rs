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
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::{Error, ErrorKind, is_out_of_descriptors};
use crate::storage::backends::Backend;
use crate::storage::crew::{Crew, Left};
use crate::storage::job::Job;

use self::driver::{Ring, drive};
use self::emulated::EmulatedRing;

#[derive(Debug)]
pub(crate) struct UringBackend {
    crew: Arc<Crew>,
}

impl UringBackend {
    /// Rings beside the calling thread's are driven by threads of `crew`.
    pub(crate) fn new(crew: Arc<Crew>) -> Self {
        Self { crew }
    }
}

impl Backend for UringBackend {
    fn execute(&self, job: &Arc<Job>) {
        let decision = job.schedule().decision();
        let depth = decision.queue_depth;
        let rings = decision.workers.min(job.schedule().requests.len()).max(1);
        // Whether one of the rings has said that files cannot be registered.
        let said = Arc::new(AtomicBool::new(false));
        let mut ring = match make_ring(job, &said) {
            Ok(ring) => ring,
            Err(error) => return job.sink().fail(no_ring(depth, error)),
        };
        let help = {
            let job = Arc::clone(job);
            // Locked memory and descriptors are counted per user and per process: one ring may be
            // granted and the next refused, and then those that exist do the work. A ring belongs
            // to one thread: who pauses and comes back makes another.
            move || match make_ring(&job, &said) {
                Ok(mut ring) => drive(&job, &mut *ring, depth, |_| false),
                Err(error) => {
                    tracing::warn!(%error, "going on with fewer rings");
                    Left::Done
                }
            }
        };
        self.crew.work(rings - 1, help, |helpers| {
            drive(job, &mut *ring, depth, |bytes| {
                job.wait_for_room(bytes);
                helpers.call_again();
                true
            });
        });
    }
}

fn no_ring(depth: usize, error: io::Error) -> Error {
    let help = if is_out_of_descriptors(&error) {
        "raise ulimit -n, close files, or use the default backend"
    } else {
        "raise ulimit -l, use a smaller queue depth, or the default backend"
    };
    let what = format!("cannot make an io_uring of depth {depth}");
    Error::new(ErrorKind::Io, what).help(help).because(error)
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
