//! `async`: Tokio tasks on the engine's private runtime, requests grouped per file.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::error::{Error, ErrorKind};
use crate::storage::backends::Backend;
use crate::storage::backends::positioned::read_claimed;
use crate::storage::job::{Claim, Job};

/// Requests of one file that one task reads in a row: enough bytes to be worth a task switch, and
/// few enough that other files get their turn.
const GROUP_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct TokioBackend {
    runtime: Handle,
}

impl TokioBackend {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl Backend for TokioBackend {
    fn execute(&self, job: &Arc<Job>) {
        // Waiting by condition variable works on any thread, also on one that drives another
        // runtime, where `block_on` would panic.
        let end = Arc::new(End::default());
        let signal = Arc::new(SignalOnDrop(Arc::clone(&end)));
        let job = Arc::clone(job);
        self.runtime
            .spawn(async move { dispatch(&job, &signal).await });
        end.wait();
    }
}

/// Claims requests in order and hands them, grouped per file, to blocking tasks; at most one task
/// for each worker of the schedule.
///
/// Every task holds the signal, so that the end is not reached before the last read is over, also
/// when no thread can be had for the next task and this one panics.
async fn dispatch(job: &Arc<Job>, signal: &Arc<SignalOnDrop>) {
    let whole = FailOnPanic(job);
    let workers = job.schedule().decision().workers;
    let permits = Arc::new(Semaphore::new(workers));
    let mut held_back = None;
    loop {
        let permit = Arc::clone(&permits)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let first = match held_back.take() {
            Some(id) => id,
            None => match job.claim() {
                Claim::Read(id) => id,
                Claim::Full(bytes) => {
                    drop(permit);
                    job.room(bytes).await;
                    continue;
                }
                Claim::End => break,
            },
        };
        let mut group = vec![first];
        let mut bytes = job.request(first).len;
        while bytes < GROUP_BYTES {
            let Claim::Read(id) = job.claim() else { break };
            if job.request(id).source != job.request(first).source {
                held_back = Some(id);
                break;
            }
            bytes += job.request(id).len;
            group.push(id);
        }
        let job = Arc::clone(job);
        let signal = Arc::clone(signal);
        tokio::task::spawn_blocking(move || {
            let guard = FailOnPanic(&job);
            for id in group {
                if !job.sink().is_cancelled() {
                    read_claimed(&job, id);
                }
            }
            std::mem::forget(guard);
            drop(permit);
            drop(signal);
        });
    }
    // All permits back means that no task is left.
    let _ = permits.acquire_many(workers as u32).await;
    std::mem::forget(whole);
}

/// A task that panics, or is dropped by a runtime that shuts down, must not leave its load waiting
/// for ever.
struct FailOnPanic<'a>(&'a Job);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        self.0
            .sink()
            .fail(Error::new(ErrorKind::Io, "a reading task panicked"));
    }
}

#[derive(Default)]
struct End {
    reached: Mutex<bool>,
    signal: Condvar,
}

impl End {
    fn wait(&self) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        while !*reached {
            reached = self
                .signal
                .wait(reached)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Signals also when the task is dropped unfinished, as at the shutdown of its runtime.
struct SignalOnDrop(Arc<End>);

impl Drop for SignalOnDrop {
    fn drop(&mut self) {
        *self
            .0
            .reached
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.0.signal.notify_all();
    }
}
