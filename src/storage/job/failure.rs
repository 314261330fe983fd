//! What a job says when a read fails.

use std::io;

use super::Job;
use crate::error::{Error, ErrorKind};
use crate::schedule::{LandingSpec, Request};
use crate::storage::Source;
use crate::storage::local::Replaced;

impl Job {
    /// Ends the load: the source of request `id` ends at `end`.
    pub(crate) fn fail_short(&self, id: u32, end: u64) {
        let request = self.request(id);
        // A read that begins behind the end only knows that it got nothing.
        let end = match self.source(id).probe() {
            Ok(now) => end.min(now.len),
            Err(_) => end,
        };
        let error = crate::storage::source::truncated(
            &**self.source(id),
            request.offset + request.needed,
            end,
        );
        self.sink
            .fail(error.tensor(self.sink.name(self.tensor_at(request, end))));
    }

    /// Ends the load: request `id` cannot be read.
    pub(crate) fn fail_read(&self, id: u32, error: io::Error) {
        let request = self.request(id);
        let range = format!(
            "read bytes {}..{} of",
            request.offset,
            request.offset + request.needed
        );
        let error = source_error(&range, &**self.source(id), error);
        self.sink
            .fail(error.tensor(self.sink.name(self.tensor_at(request, request.offset))));
    }

    /// The tensor that holds byte `offset` of a request, or a neighbour.
    fn tensor_at(&self, request: &Request, offset: u64) -> u32 {
        match &request.landing {
            LandingSpec::Staged { copies } => {
                let copies = &self.schedule.copies[copies.start as usize..copies.end as usize];
                let at = offset.saturating_sub(request.offset);
                let after = copies.partition_point(|copy| copy.from <= at);
                copies[after.saturating_sub(1)].tensor
            }
            LandingSpec::InPlace { at } => {
                let spec = &self.schedule.regions[request.region as usize];
                let at = (at + offset.saturating_sub(request.offset)) as usize;
                let slot = spec
                    .slots
                    .partition_point(|slot| slot.bytes.end <= at)
                    .min(spec.slots.len() - 1);
                spec.tenants[slot][0]
            }
        }
    }
}

/// The error for `action` that failed on `source`.
pub(super) fn source_error(action: &str, source: &dyn Source, error: io::Error) -> Error {
    if error.get_ref().is_some_and(|inner| inner.is::<Replaced>()) {
        return Error::new(
            ErrorKind::SourceChanged,
            "another file has taken its place during the load",
        )
        .at(source.path())
        .help("load again when nothing writes to it");
    }
    Error::io(action, source.path(), error)
}

/// The error where so many bytes of memory cannot be had.
pub(crate) fn no_memory(bytes: u64) -> Error {
    let what = format!("cannot reserve {bytes} bytes of memory");
    Error::new(ErrorKind::OutOfMemory, what)
        .help("stream with a smaller budget, or select fewer tensors")
}
