//! `mmap`: private file mappings instead of reads, where the layout allows.
//!
//! The schedule decides what is mapped; what it packs (slices, misaligned tensors, sources that
//! are no files) is read through the page cache, which copies from the same pages and fails with
//! an error where touching a mapping would raise a signal.

use std::io;
use std::sync::Arc;

use crate::storage::backends::Backend;
use crate::storage::backends::positioned::{on_threads, read_claimed};
use crate::storage::crew::Crew;
use crate::storage::job::Job;
use crate::trace::What;

/// Stretch that is read at once where mappings cannot be populated, in bytes.
const SCRATCH: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct MmapBackend {
    /// Bring mapped pages in, so that bytes are in hand and a file that ends early is an error.
    populate: bool,
    crew: Arc<Crew>,
}

impl MmapBackend {
    /// Promises bytes in hand.
    pub(crate) fn eager(crew: Arc<Crew>) -> Self {
        let populate = true;
        Self { populate, crew }
    }

    /// Leaves mapped pages to whoever touches them first.
    pub(crate) fn lazy(crew: Arc<Crew>) -> Self {
        let populate = false;
        Self { populate, crew }
    }
}

impl Backend for MmapBackend {
    fn execute(&self, job: &Arc<Job>) {
        let in_hand = self.populate;
        on_threads(&self.crew, job, move |job, id| {
            if !job.is_mapped(id) {
                read_claimed(job, id);
            } else if in_hand {
                populate(job, id);
            } else {
                job.land_mapped(id);
            }
        });
    }
}

fn populate(job: &Job, id: u32) {
    let request = job.request(id);
    let what = || What::Populate {
        source: request.source,
        offset: request.offset,
        len: request.len,
    };
    let outcome = job.tracing.span(what, || match job.populate(id) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => read_through(job, id),
        other => other,
    });
    match outcome {
        Ok(()) => job.land_mapped(id),
        // EFAULT: no page behind the address, which is how a file that has become shorter shows.
        Err(error) => match job.source(id).probe() {
            Ok(now) if now.len < job.request(id).offset + job.request(id).needed => {
                job.fail_short(id, now.len)
            }
            _ => job.fail_read(id, error),
        },
    }
}

/// Without MADV_POPULATE_READ (before Linux 5.14, other systems): read the range, so that its pages
/// are in the page cache and a file that ends early is noticed.
fn read_through(job: &Job, id: u32) -> io::Result<()> {
    let request = job.request(id);
    let mut scratch = vec![0; SCRATCH.min(request.len as usize)];
    let mut done = 0;
    while done < request.needed {
        let want = scratch.len().min((request.needed - done) as usize);
        match job
            .source(id)
            .read_at(request.offset + done, &mut scratch[..want])
        {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count as u64,
            Err(error) if crate::storage::source::is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
