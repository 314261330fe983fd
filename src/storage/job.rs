//! One load in execution: the state that a backend's workers share.
//!
//! Workers claim requests in the order of the schedule, read them, and hand them back. The job
//! allocates regions when they are admitted, keeps count of what each tensor still lacks, and
//! passes finished tensors to the sink.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{CopySpec, LandingSpec, Origin, Request, Schedule};
use crate::storage::local::Replaced;
use crate::storage::progress::{Progress, Step};
use crate::storage::region::{Landing, Region, Tenancy};
use crate::storage::staging::Staging;
use crate::storage::{Access, PAGE, Source};
use crate::trace::{Answer, Read, Stamp, Tracing, What};

/// Where finished tensors go, and who says when to wait or to stop.
pub(crate) trait Sink: Send + Sync {
    /// Takes `bytes` of the budget, if there is room.
    fn try_admit(&self, bytes: u64) -> bool;
    /// Blocks until there may be room, or the load has ended.
    fn wait_for_room(&self, bytes: u64);
    /// As `wait_for_room`, for tasks.
    fn poll_room(&self, bytes: u64, context: &Context<'_>) -> Poll<()>;
    /// Whether workers should stop.
    fn is_cancelled(&self) -> bool;
    /// Ends the load with an error; the first one counts.
    fn fail(&self, error: Error);
    /// The stored bytes of a tensor of the plan are complete.
    fn deliver(&self, tensor: u32, bytes: Tenancy) -> Result<()>;
    /// Its name, for messages.
    fn name(&self, tensor: u32) -> &str;
}

/// What a worker got when it asked for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Read request number `.0` of the schedule.
    Read(u32),
    /// The budget has no room for the next region of so many bytes.
    Full(u64),
    /// Nothing is left to start.
    End,
}

/// A claimed request with its destination.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) request: u32,
    pub(crate) progress: Progress,
    landing: Landing,
    /// When the read that is under way began, if that is traced.
    since: Option<Stamp>,
    _flying: Flying,
}

/// Counts a flight until it is dropped.
#[derive(Debug)]
struct Flying(Arc<AtomicUsize>);

impl Flying {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Flight {
    /// The bytes still to be read, and where they start in the source. Their read begins now.
    pub(crate) fn rest(&mut self, request: &Request) -> (u64, &mut [u8]) {
        if let Some(since) = &mut self.since {
            *since = Stamp::now();
        }
        let filled = self.progress.filled;
        (
            request.offset + filled,
            &mut self.landing.bytes()[filled as usize..],
        )
    }
}

/// What a job did, counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) direct_bytes: AtomicU64,
    pub(crate) mapped_bytes: AtomicU64,
    pub(crate) staged_bytes: AtomicU64,
    pub(crate) direct_refusals: AtomicU64,
    /// Reads that a broken ring never answered.
    pub(crate) leaked: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}

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

pub(crate) struct Job {
    schedule: Schedule,
    sources: Vec<Arc<dyn Source>>,
    lent: Vec<Option<Lent>>,
    sink: Box<dyn Sink>,
    cursor: Mutex<Cursor>,
    regions: Box<[OnceLock<Arc<Region>>]>,
    /// Stored bytes that each tensor still lacks.
    lacking: Box<[AtomicU64]>,
    /// Sources that have refused direct reads.
    refused: Box<[AtomicBool]>,
    staging: Staging,
    /// Flights handed out and not yet handed back, in place and staged.
    flying: Arc<AtomicUsize>,
    pub(crate) counters: Counters,
    pub(crate) tracing: Tracing,
}

#[derive(Debug, Default)]
struct Cursor {
    next: usize,
    /// Regions before this one are admitted.
    regions: usize,
}

impl Job {
    /// `lent[tensor]` is the caller's memory for it; empty when nothing is lent.
    pub(crate) fn new(
        schedule: Schedule,
        sources: Vec<Arc<dyn Source>>,
        lent: Vec<Option<Lent>>,
        sink: Box<dyn Sink>,
    ) -> Self {
        Self {
            cursor: Mutex::default(),
            regions: schedule.regions.iter().map(|_| OnceLock::new()).collect(),
            lacking: schedule
                .stored
                .iter()
                .map(|&bytes| AtomicU64::new(bytes))
                .collect(),
            refused: sources.iter().map(|_| AtomicBool::new(false)).collect(),
            staging: Staging::new(schedule.staging_bytes),
            flying: Arc::default(),
            counters: Counters::default(),
            tracing: Tracing::default(),
            schedule,
            sources,
            lent,
            sink,
        }
    }

    /// The same job, recorded by `tracing`.
    pub(crate) fn traced(mut self, tracing: Tracing) -> Self {
        self.tracing = tracing;
        self
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    pub(crate) fn request(&self, id: u32) -> &Request {
        &self.schedule.requests[id as usize]
    }

    pub(crate) fn source(&self, id: u32) -> &Arc<dyn Source> {
        &self.sources[self.request(id).source as usize]
    }

    pub(crate) fn sources(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    pub(crate) fn sink(&self) -> &dyn Sink {
        &*self.sink
    }

    /// Reads handed out and not yet handed back.
    pub(crate) fn in_flight(&self) -> usize {
        self.flying.load(Ordering::Acquire)
    }

    /// So many reads will never be handed back: the ring that holds them is broken, and their
    /// memory stays reserved for ever.
    pub(crate) fn leak(&self, reads: usize) {
        if reads > 0 && !self.lent.is_empty() {
            // The caller's memory cannot be kept from the caller, and the kernel may still write
            // to it: there is no sound way to go on.
            tracing::error!(reads, "a broken io_uring holds memory of the caller");
            std::process::abort();
        }
        Counters::add(&self.counters.leaked, reads as u64);
    }

    /// The next request to start. Never blocks on the budget.
    pub(crate) fn claim(&self) -> Claim {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sink.is_cancelled() {
            return Claim::End;
        }
        let Some(request) = self.schedule.requests.get(cursor.next) else {
            return Claim::End;
        };
        let region = request.region as usize;
        // Requests are grouped by region; regions without requests do not exist.
        if region >= cursor.regions {
            let charge = self.schedule.regions[region].charge;
            if !self.sink.try_admit(charge) {
                return Claim::Full(charge);
            }
            let memory = || match self.schedule.regions[region].origin {
                Origin::Arena => "arena",
                Origin::File { .. } => "mapping",
                Origin::Lent { .. } => "lent",
            };
            let what = || What::Allocate {
                bytes: self.schedule.regions[region].len,
                memory: memory(),
            };
            if let Err(error) = self.tracing.span(what, || self.allocate(region)) {
                self.sink.fail(error);
                return Claim::End;
            }
            cursor.regions = region + 1;
        }
        cursor.next += 1;
        Claim::Read(cursor.next as u32 - 1)
    }

    /// Blocks until there may be room in the budget for `bytes`, or the load has ended.
    pub(crate) fn wait_for_room(&self, bytes: u64) {
        let wait = || self.sink.wait_for_room(bytes);
        self.tracing.span(|| What::Room { bytes }, wait);
    }

    /// As [`wait_for_room`](Self::wait_for_room), for tasks.
    pub(crate) async fn room(&self, bytes: u64) {
        let room = std::future::poll_fn(|context| self.sink.poll_room(bytes, context));
        self.tracing.room(bytes, room).await;
    }

    /// The destination of a claimed request.
    pub(crate) fn start(&self, id: u32) -> Result<Flight> {
        let request = self.request(id);
        let refused = self.refused[request.source as usize].load(Ordering::Relaxed);
        let access = if refused {
            Access::Buffered
        } else {
            request.access
        };
        let landing = match &request.landing {
            LandingSpec::InPlace { at } => {
                let range = *at as usize..(*at + request.len) as usize;
                // SAFETY: requests of a region do not overlap, and each is claimed once; tenants
                // move in when nothing of their slot is lacking, hence not before this one lands.
                unsafe { self.region(request.region).landing(range) }
            }
            LandingSpec::Staged { .. } => {
                let buffer = self.staging_buffer()?;
                // SAFETY: a staging buffer has one user at a time and never tenants.
                unsafe { buffer.landing(0..request.len as usize) }
            }
        };
        Ok(Flight {
            request: id,
            progress: Progress::new(access),
            landing,
            since: self.tracing.stamp(),
            _flying: Flying::new(&self.flying),
        })
    }

    /// Takes the answer to one read of `flight` and says whether to go on with it. Failures go to
    /// the sink.
    pub(crate) fn advance(&self, flight: &mut Flight, answer: io::Result<usize>) -> bool {
        let request = self.request(flight.request);
        self.tracing.read(flight.since, || Read {
            source: request.source,
            offset: request.offset + flight.progress.filled,
            len: request.len - flight.progress.filled,
            access: flight.progress.access,
            answer: match &answer {
                Ok(count) => Answer::Bytes(*count as u64),
                Err(error) => Answer::Error(error.to_string()),
            },
        });
        if let Ok(count) = answer {
            Counters::add(&self.counters.reads, 1);
            Counters::add(&self.counters.read_bytes, count as u64);
            if flight.progress.access == Access::Direct {
                Counters::add(&self.counters.direct_bytes, count as u64);
            }
        }
        match flight.progress.advance(request, answer) {
            Step::Again => true,
            Step::Refused => {
                Counters::add(&self.counters.direct_refusals, 1);
                if !self.refused[request.source as usize].swap(true, Ordering::Relaxed) {
                    let path = self.source(flight.request).path();
                    tracing::info!(path = %crate::text::path(path), "direct reads refused; reading through the page cache");
                }
                true
            }
            Step::Done => false,
            Step::EndOfFile => {
                self.fail_short(flight.request, request.offset + flight.progress.filled);
                false
            }
            Step::Failed(error) => {
                self.fail_read(flight.request, error);
                false
            }
        }
    }

    /// Takes a flight back after `advance` said that it is over. Its tensors may be complete now.
    pub(crate) fn land(&self, mut flight: Flight) {
        let request = self.request(flight.request);
        if flight.progress.filled < request.needed {
            return; // it failed, and the sink knows
        }
        let region = self.region(request.region);
        match &request.landing {
            LandingSpec::InPlace { at } => {
                drop(flight);
                self.account(request.region, *at..*at + request.needed);
            }
            LandingSpec::Staged { copies } => {
                let copies = &self.schedule.copies[copies.start as usize..copies.end as usize];
                let what = || What::Copy {
                    bytes: copies.iter().map(|copy| copy.run * copy.count).sum(),
                    pieces: copies.iter().map(|copy| copy.count).sum(),
                };
                self.tracing.span(what, || {
                    for copy in copies {
                        scatter(copy, flight.landing.bytes(), region);
                    }
                });
                self.staging.give_back(flight.landing.into_region());
                for copy in copies {
                    Counters::add(&self.counters.staged_bytes, copy.run * copy.count);
                    self.arrived(copy.tensor, copy.run * copy.count);
                }
            }
        }
    }

    /// Brings a claimed request of a file mapping into memory.
    pub(crate) fn populate(&self, id: u32) -> io::Result<()> {
        let request = self.request(id);
        let LandingSpec::InPlace { at } = request.landing else {
            return Ok(());
        };
        self.region(request.region)
            .populate(at as usize..(at + request.len) as usize)
    }

    /// Takes back a claimed request of a file mapping that was populated.
    pub(crate) fn land_mapped(&self, id: u32) {
        let request = self.request(id);
        if let LandingSpec::InPlace { at } = request.landing {
            Counters::add(&self.counters.mapped_bytes, request.len);
            self.account(request.region, at..at + request.needed);
        }
    }

    /// Whether request `id` is a part of a file mapping.
    pub(crate) fn is_mapped(&self, id: u32) -> bool {
        matches!(
            self.schedule.regions[self.request(id).region as usize].origin,
            Origin::File { .. }
        )
    }

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

    fn region(&self, region: u32) -> &Arc<Region> {
        self.regions[region as usize]
            .get()
            .expect("requests are claimed after their region is admitted")
    }

    fn allocate(&self, index: usize) -> Result<()> {
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

    fn staging_buffer(&self) -> Result<Arc<Region>> {
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
    fn account(&self, region: u32, range: Range<u64>) {
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

    fn arrived(&self, tensor: u32, bytes: u64) {
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

fn scatter(copy: &CopySpec, from: &[u8], region: &Arc<Region>) {
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

/// The error for `action` that failed on `source`.
fn source_error(action: &str, source: &dyn Source, error: io::Error) -> Error {
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

fn no_memory(bytes: u64) -> Error {
    let what = format!("cannot reserve {bytes} bytes of memory");
    Error::new(ErrorKind::OutOfMemory, what)
        .help("stream with a smaller budget, or select fewer tensors")
}
