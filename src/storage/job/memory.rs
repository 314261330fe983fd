//! The memory of a job: regions, staging buffers, and which tensors are complete in them.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Job;
use super::failure::{no_memory, source_error};
use crate::error::Result;
use crate::schedule::{CopySpec, Origin};
use crate::storage::region::Region;
use crate::storage::{Access, PAGE};
use crate::trace::What;

/// Memory of the caller for one tensor.
#[derive(Debug)]
pub(crate) struct Lent {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a pointer to bytes that only the load touches while it runs.
unsafe impl Send for Lent {}
// SAFETY: as for Send.
unsafe impl Sync for Lent {}

impl Lent {
    /// Lends `buffer` to a job.
    ///
    /// # Safety
    /// The buffer must stay borrowed, and untouched by others, until the job and the tensors that
    /// it delivered are gone or will not be read any more.
    pub(crate) unsafe fn new(buffer: &mut [u8]) -> Self {
        Self {
            base: NonNull::from(&mut *buffer).cast(),
            len: buffer.len(),
        }
    }

    /// How many bytes into a page it starts.
    pub(crate) fn bytes_into_page(&self) -> u64 {
        (self.base.as_ptr().addr() % PAGE) as u64
    }
}

impl Job {
    pub(super) fn region(&self, region: u32) -> &Arc<Region> {
        self.regions[region as usize]
            .get()
            .expect("requests are claimed after their region is admitted")
    }

    pub(super) fn allocate(&self, index: usize) -> Result<()> {
        let spec = &self.schedule.regions[index];
        let len = usize::try_from(spec.len).map_err(|_| no_memory(spec.len))?;
        let region = match spec.origin {
            Origin::Arena => Region::arena(len, &spec.slots)
                .map_err(|error| no_memory(spec.len).because(error))?,
            Origin::File { source, offset } => {
                let source = &self.sources[source as usize];
                let map = || -> io::Result<_> {
                    let file = source
                        .local()
                        .ok_or(io::ErrorKind::Unsupported)?
                        .descriptor(Access::Buffered)?;
                    // Size first: touching a page past the end of the file is a signal, not an error.
                    let now = file.metadata()?.len();
                    Ok((now, Region::map_file(&file, offset, len, &spec.slots)?))
                };
                let (now, region) = map().map_err(|error| source_error("map", &**source, error))?;
                if now < offset + spec.len {
                    return Err(crate::storage::source::truncated(
                        &**source,
                        offset + spec.len,
                        now,
                    ));
                }
                region
            }
            Origin::Lent { tensor } => {
                let lent = self.lent[tensor as usize]
                    .as_ref()
                    .expect("regions are lent for what was lent");
                assert_eq!(lent.len, len, "lent memory was measured before the load");
                // SAFETY: the contract of `Lent::new`; each is used for one region.
                unsafe { Region::lent(lent.base, len, &spec.slots) }
            }
        };
        self.regions[index]
            .set(region)
            .expect("the cursor admits each region once");
        Ok(())
    }

    pub(super) fn staging_buffer(&self) -> Result<Arc<Region>> {
        self.staging.take(|bytes| {
            let memory = "staging";
            self.tracing
                .span(
                    || What::Allocate { bytes, memory },
                    || Region::arena(bytes as usize, &[]),
                )
                .map_err(|error| no_memory(bytes).because(error))
        })
    }

    /// Staging buffers made so far.
    #[cfg(test)]
    pub(crate) fn staging_buffers(&self) -> usize {
        self.staging.made()
    }

    /// Credits `range` of a region to the tensors that lie in it.
    pub(super) fn account(&self, region: u32, range: Range<u64>) {
        let spec = &self.schedule.regions[region as usize];
        let first = spec
            .slots
            .partition_point(|slot| slot.bytes.end as u64 <= range.start);
        for (slot, tenants) in spec.slots[first..].iter().zip(&spec.tenants[first..]) {
            if slot.bytes.start as u64 >= range.end {
                break;
            }
            for &tensor in tenants {
                let place = self.schedule.places[tensor as usize].expect("tenants have places");
                let stored = self.schedule.stored[tensor as usize];
                let start = place.offset.max(range.start);
                let end = (place.offset + stored).min(range.end);
                if start < end {
                    self.arrived(tensor, end - start);
                }
            }
        }
    }

    pub(super) fn arrived(&self, tensor: u32, bytes: u64) {
        let lacking = &self.lacking[tensor as usize];
        // Release: what was written is seen by whoever takes the count to zero (Acquire).
        if lacking.fetch_sub(bytes, Ordering::AcqRel) != bytes {
            return;
        }
        let place = self.schedule.places[tensor as usize].expect("tensors with bytes have places");
        let range =
            place.offset as usize..(place.offset + self.schedule.stored[tensor as usize]) as usize;
        // SAFETY: nothing is lacking, so all writing to the tensor's bytes has ended, and the
        // counter made it visible; a count reaches zero once.
        let tenancy = unsafe { self.region(place.region).move_in(place.slot, range) };
        let deliver = || self.sink.deliver(tensor, tenancy);
        if let Err(error) = self.tracing.span(|| What::Deliver { tensor }, deliver) {
            self.sink.fail(error);
        }
    }
}

pub(super) fn scatter(copy: &CopySpec, from: &[u8], region: &Arc<Region>) {
    let range = copy.to as usize..(copy.to + copy.run * copy.count) as usize;
    // SAFETY: fragments of a plan go to disjoint parts of tensors, and tenants move in after the
    // last of them.
    let mut landing = unsafe { region.landing(range) };
    let run = copy.run as usize;
    for (row, to) in landing.bytes().chunks_exact_mut(run).enumerate() {
        let start = (copy.from + row as u64 * copy.stride) as usize;
        to.copy_from_slice(&from[start..start + run]);
    }
}
