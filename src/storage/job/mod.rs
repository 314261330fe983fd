//! One load in execution: the state that a backend's workers share.
//!
//! Workers claim requests in the order of the schedule, read them, and hand them back. The job
//! allocates regions when they are admitted, keeps count of what each tensor still lacks, and
//! passes finished tensors to the sink.
#![allow(unsafe_code)]

pub(crate) mod failure;
mod flight;
mod memory;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

pub(crate) use self::flight::Flight;
use self::flight::{Counters, Flying};
pub(crate) use self::memory::Lent;
use self::memory::scatter;
use crate::error::{Error, Result};
use crate::schedule::{LandingSpec, Origin, Request, Schedule};
use crate::storage::progress::{Progress, Step};
use crate::storage::region::{Region, Tenancy};
use crate::storage::staging::Staging;
use crate::storage::{Access, Source};
use crate::trace::{Answer, Read, Tracing, What};

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
}
