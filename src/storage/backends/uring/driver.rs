//! The state machine of a ring: which reads are in flight, and what each answer leads to.

use std::io;
use std::time::Duration;

use crate::error::is_out_of_descriptors;
use crate::storage::crew::Left;
use crate::storage::job::{Claim, Flight, Job};
use crate::storage::{Access, Source};
use crate::trace::What;

#[cfg(all(test, target_os = "linux"))]
mod tests;

/// How long a broken ring may be silent before what it holds is given up.
const ABANDON_STEP: Duration = Duration::from_millis(1);
const ABANDON_STEPS: u32 = 1000;

/// Bytes that Linux moves in one read at most: 2 GiB less a page.
const LONGEST_READ: usize = 0x7fff_f000;

/// A queue of reads with answers out of order.
pub(crate) trait Ring {
    /// Bytes that one read may have; longer ones are read in parts.
    fn longest(&self) -> usize {
        LONGEST_READ
    }

    /// Queues a read of `source` at `offset` into `buffer`. The ring may write to the buffer until
    /// it returns `token` from [`reap`](Ring::reap); the caller keeps it alive and untouched until
    /// then.
    ///
    /// # Errors
    /// The read cannot be queued; it has no answer to wait for.
    fn push(
        &mut self,
        token: u64,
        source: &dyn Source,
        access: Access,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<()>;

    /// Submits what was queued and waits for at least one answer.
    fn wait(&mut self) -> io::Result<()>;

    /// An answer that has arrived: the token, and bytes read or a negative errno.
    fn reap(&mut self) -> Option<(u64, i32)>;

    /// Asks for the reads in flight to end early. Their answers are still to be reaped.
    fn cancel(&mut self, tokens: &mut dyn Iterator<Item = u64>);
}

/// Reads what the job has to give through `ring`, at most `depth` reads at once. Returns when nothing
/// is in flight.
///
/// `full` is asked when the budget has no room for so many bytes and nothing is in flight that could
/// make some: it waits and says `true`, or says `false` to leave the rest to others.
pub(crate) fn drive(
    job: &Job,
    ring: &mut dyn Ring,
    depth: usize,
    mut full: impl FnMut(u64) -> bool,
) -> Left {
    let mut flights = Flights::new(depth);
    let mut cancel_asked = false;
    loop {
        let last_claim = fill(job, ring, &mut flights);
        if flights.count == 0 && flights.parked.is_empty() {
            match last_claim {
                Claim::Full(bytes) if full(bytes) => {}
                Claim::Full(_) => return Left::Paused,
                Claim::Read(_) => {}
                Claim::End => return Left::Done,
            }
            continue;
        }
        if !cancel_asked && job.sink().is_cancelled() {
            cancel_asked = true;
            ring.cancel(&mut flights.tokens());
        }
        if flights.count > 0
            && let Err(error) = job.tracing.span(|| What::Await, || ring.wait())
            && !is_retryable(&error)
        {
            job.fail_read(flights.any_request(), error);
            abandon(job, ring, flights);
            return Left::Done;
        }
        while let Some((token, result)) = ring.reap() {
            // Tokens that are not in flight belong to cancellations.
            let Some((slot, flight)) = flights.take(token) else {
                continue;
            };
            go_on(job, ring, &mut flights, slot, flight, answer_of(result));
        }
    }
}

fn answer_of(result: i32) -> io::Result<usize> {
    match u32::try_from(result) {
        Ok(count) => Ok(count as usize),
        Err(_) => Err(io::Error::from_raw_os_error(result.saturating_neg())),
    }
}

/// The ring is broken. What it has taken still arrives without being waited for; what does not is
/// leaked, because nobody knows whether it is still being written to.
fn abandon(job: &Job, ring: &mut dyn Ring, mut flights: Flights) {
    flights.parked.clear();
    let mut silence = 0;
    while flights.count > 0 && silence < ABANDON_STEPS {
        match ring.reap() {
            Some((token, result)) => {
                silence = 0;
                if let Some((slot, flight)) = flights.take(token) {
                    go_on(job, ring, &mut flights, slot, flight, answer_of(result));
                }
            }
            None => {
                silence += 1;
                std::thread::sleep(ABANDON_STEP);
            }
        }
    }
    job.leak(flights.count);
}

/// Starts reads until the depth is reached or there is nothing to claim; the last claim says which.
///
/// Reads that were put aside for want of a descriptor come first, and while there are any nothing
/// is claimed.
fn fill(job: &Job, ring: &mut dyn Ring, flights: &mut Flights) -> Claim {
    for (slot, flight) in std::mem::take(&mut flights.parked) {
        if job.sink().is_cancelled() {
            flights.free.push(slot);
        } else {
            submit(job, ring, flights, slot, flight);
        }
    }
    if !flights.parked.is_empty() {
        return Claim::Read(0);
    }
    loop {
        let Some(slot) = flights.free.last().copied() else {
            return Claim::Read(0);
        };
        let id = match job.claim() {
            Claim::Read(id) => id,
            other => return other,
        };
        match job.start(id) {
            Ok(flight) => {
                flights.free.pop();
                submit(job, ring, flights, slot, flight);
                if !flights.parked.is_empty() {
                    return Claim::Read(0);
                }
            }
            Err(error) => job.sink().fail(error),
        }
    }
}

/// Submits the rest of a flight. A read that cannot be queued is answered on the spot.
fn submit(job: &Job, ring: &mut dyn Ring, flights: &mut Flights, slot: usize, mut flight: Flight) {
    loop {
        let request = job.request(flight.request);
        let source = job.source(flight.request);
        let access = flight.progress.access;
        let token = flights.token(slot);
        let (offset, rest) = flight.rest(request);
        let longest = rest.len().min(ring.longest());
        let rest = &mut rest[..longest];
        let push = || ring.push(token, &**source, access, offset, rest);
        match job.tracing.span(|| What::Submit, push) {
            Ok(()) => return flights.put(slot, flight),
            Err(error) if is_out_of_descriptors(&error) && flights.count > 0 => {
                // Those in flight give theirs back.
                return flights.parked.push((slot, flight));
            }
            Err(error) => {
                if !job.advance(&mut flight, Err(error)) {
                    flights.free.push(slot);
                    return job.land(flight);
                }
            }
        }
    }
}

fn go_on(
    job: &Job,
    ring: &mut dyn Ring,
    flights: &mut Flights,
    slot: usize,
    mut flight: Flight,
    answer: io::Result<usize>,
) {
    let cancelled = answer.as_ref().is_err_and(is_cancelled) || job.sink().is_cancelled();
    if cancelled && !matches!(answer, Ok(count) if count > 0) {
        flights.free.push(slot);
        // Dropped unfinished. If nobody else ended the load, this answer does.
        if !job.sink().is_cancelled() {
            job.advance(&mut flight, answer);
        }
        return;
    }
    let more = job.advance(&mut flight, answer);
    if more && !cancelled {
        submit(job, ring, flights, slot, flight);
    } else {
        flights.free.push(slot);
        job.land(flight);
    }
}

fn is_retryable(error: &io::Error) -> bool {
    // EBUSY: completions wait to be reaped first.
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

fn is_cancelled(error: &io::Error) -> bool {
    #[cfg(unix)]
    return error.raw_os_error() == Some(libc::ECANCELED);
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

/// Reads in flight by slot. A token is the slot and the slot's generation, so that a late answer
/// to an earlier read is never taken for one to a later read.
struct Flights {
    slots: Vec<(u32, Option<Flight>)>,
    free: Vec<usize>,
    count: usize,
    /// Started, but not with the ring: there was no descriptor for them.
    parked: Vec<(usize, Flight)>,
}

impl Flights {
    fn new(depth: usize) -> Self {
        Self {
            slots: (0..depth).map(|_| (0, None)).collect(),
            free: (0..depth).rev().collect(),
            count: 0,
            parked: Vec::new(),
        }
    }

    fn token(&self, slot: usize) -> u64 {
        u64::from(self.slots[slot].0) << 32 | slot as u64
    }

    fn put(&mut self, slot: usize, flight: Flight) {
        self.slots[slot].1 = Some(flight);
        self.count += 1;
    }

    fn take(&mut self, token: u64) -> Option<(usize, Flight)> {
        let slot = (token & u64::from(u32::MAX)) as usize;
        let (generation, flight) = self.slots.get_mut(slot)?;
        if u64::from(*generation) != token >> 32 {
            return None;
        }
        let flight = flight.take()?;
        *generation = generation.wrapping_add(1);
        self.count -= 1;
        Some((slot, flight))
    }

    fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.slots.len())
            .filter(|&slot| self.slots[slot].1.is_some())
            .map(|slot| self.token(slot))
    }

    fn any_request(&self) -> u32 {
        self.slots
            .iter()
            .find_map(|(_, flight)| flight.as_ref())
            .map_or(0, |flight| flight.request)
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        // Only on a panic or a broken ring is anything left. The kernel may still write to it, so
        // it is leaked: memory is lost, but nothing is corrupted.
        for (_, flight) in &mut self.slots {
            if let Some(flight) = flight.take() {
                std::mem::forget(flight);
            }
        }
    }
}
