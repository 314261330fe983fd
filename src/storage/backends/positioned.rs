//! `sync`: positioned POSIX reads, thread-parallel.

use std::io;
use std::sync::Arc;

use crate::storage::backends::Backend;
use crate::storage::crew::{Crew, Left};
use crate::storage::job::{Claim, Flight, Job};
use crate::storage::local::read_file_at;
use crate::storage::{Access, Source};

/// Threads that claim requests in turn.
#[derive(Debug, Default)]
pub(crate) struct SyncBackend {
    crew: Arc<Crew>,
}

impl SyncBackend {
    /// The helpers come from `crew`.
    pub(crate) fn new(crew: Arc<Crew>) -> Self {
        Self { crew }
    }
}

impl Backend for SyncBackend {
    fn execute(&self, job: &Arc<Job>) {
        on_threads(&self.crew, job, read_claimed);
    }
}

/// Runs `work` on every claimed request, on as many threads as the schedule has workers; the
/// calling thread is one of them.
pub(super) fn on_threads(
    crew: &Arc<Crew>,
    job: &Arc<Job>,
    work: impl Fn(&Job, u32) + Clone + Send + Sync + 'static,
) {
    let schedule = job.schedule();
    let workers = schedule.decision().workers.min(schedule.requests.len());
    let help = {
        let (job, work) = (Arc::clone(job), work.clone());
        move || match claim_while_there_is(&job, &work) {
            Some(_) => Left::Paused,
            None => Left::Done,
        }
    };
    crew.work(workers.saturating_sub(1), help, |helpers| {
        while let Some(bytes) = claim_while_there_is(job, &work) {
            job.wait_for_room(bytes);
            helpers.call_again();
        }
    });
}

/// Works until there is nothing to claim; the bytes that the budget has no room for, if that is why.
fn claim_while_there_is(job: &Job, work: &impl Fn(&Job, u32)) -> Option<u64> {
    loop {
        match job.claim() {
            Claim::Read(id) => work(job, id),
            Claim::Full(bytes) => return Some(bytes),
            Claim::End => return None,
        }
    }
}

/// Reads one claimed request to its end.
pub(super) fn read_claimed(job: &Job, id: u32) {
    match job.start(id) {
        Ok(flight) => read_to_end(job, flight),
        Err(error) => job.sink().fail(error),
    }
}

fn read_to_end(job: &Job, mut flight: Flight) {
    let request = job.request(flight.request);
    let source = job.source(flight.request);
    loop {
        let access = flight.progress.access;
        let (offset, rest) = flight.rest(request);
        let answer = read_at(&**source, access, offset, rest);
        if !job.advance(&mut flight, answer) {
            break;
        }
    }
    job.land(flight);
}

fn read_at(source: &dyn Source, access: Access, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    match (access, source.local()) {
        (Access::Direct, Some(file)) => {
            read_file_at(&*file.descriptor(Access::Direct)?, offset, into)
        }
        _ => source.read_at(offset, into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::settings::{AccessMode, Settings};
    use crate::storage::testing::{SIZES, Trial};
    use crate::storage::{Fault, FaultSource};

    fn settings(access: AccessMode, budget: Option<u64>) -> Settings {
        Settings {
            workers: Some(3),
            chunk_bytes: Some(4096),
            access,
            budget,
            ..Settings::default()
        }
    }

    #[test]
    fn workers_deliver_in_place_and_staged_reads_through_short_ones() {
        for access in [AccessMode::Buffered, AccessMode::Direct] {
            for budget in [None, Some(1)] {
                let trial = Trial::new(SIZES, &settings(access, budget), |memory| {
                    Arc::new(FaultSource::new(memory, |number, _, _| match number % 3 {
                        0 => Fault::Short(1000),
                        1 => Fault::Error(io::ErrorKind::Interrupted),
                        _ => Fault::None,
                    }))
                });
                SyncBackend::default().execute(&trial.job);
                trial.assert_delivered();
            }
        }
    }

    #[test]
    fn after_a_failure_nothing_is_in_flight() {
        let trial = Trial::new(SIZES, &settings(AccessMode::Direct, None), |memory| {
            let broken = |number, _, _| match number {
                3 => Fault::Error(io::ErrorKind::ConnectionReset),
                _ => Fault::None,
            };
            Arc::new(FaultSource::new(memory, broken))
        });
        SyncBackend::default().execute(&trial.job);
        let failure = trial.outcome.failure();
        assert_eq!(failure.as_ref().unwrap().kind(), ErrorKind::Io);
        assert_eq!(trial.job.in_flight(), 0);
    }
}
