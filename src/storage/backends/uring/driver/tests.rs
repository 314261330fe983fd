//! The driver against a ring that follows a script: answers out of order, short, failed, late,
//! stale or never. The ring writes through raw pointers as late as the kernel would, so that Miri
//! sees any use of a buffer that is still in flight.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::error::ErrorKind;
use crate::random::Random;
use crate::settings::{AccessMode, Settings};
use crate::storage::BackendKind;
use crate::storage::testing::{Outcome, SIZES, Trial};

const SEEDS: u64 = if cfg!(miri) { 3 } else { 300 };

/// What the ring does next.
#[derive(Clone, Copy, Debug)]
enum Answer {
    All,
    Short,
    Errno(i32),
}

struct Pending {
    token: u64,
    access: Access,
    at: *mut u8,
    bytes: Vec<u8>,
    len: usize,
    cancelled: bool,
}

/// How a ring misbehaves. Each function gets the number of the event.
struct Script {
    push: fn(&mut Random, u64) -> Option<i32>,
    wait: fn(&mut Random, u64) -> Option<i32>,
    answer: fn(&mut Random, u64, Access) -> Answer,
    /// Tokens that nobody waits for are reaped as well.
    stale: bool,
    /// After this many answers the sink is cancelled.
    cancel_after: u64,
    /// A broken ring still hands out what it has.
    answers_when_broken: bool,
    /// Bytes that one read may have.
    longest: usize,
}

const WELL: Script = Script {
    push: |_, _| None,
    wait: |_, _| None,
    answer: |_, _, _| Answer::All,
    stale: false,
    cancel_after: u64::MAX,
    answers_when_broken: true,
    longest: LONGEST_READ,
};

struct ScriptedRing {
    random: Random,
    script: Script,
    depth: usize,
    outcome: Arc<Outcome>,
    pending: Vec<Pending>,
    answered: Vec<(u64, i32)>,
    seen: BTreeSet<u64>,
    pushes: u64,
    waits: u64,
    answers: u64,
    cancels: u64,
    broken: bool,
}

impl ScriptedRing {
    fn new(seed: u64, depth: usize, script: Script, trial: &Trial) -> Self {
        Self {
            random: Random::new(seed),
            script,
            depth,
            outcome: Arc::clone(&trial.outcome),
            pending: Vec::new(),
            answered: Vec::new(),
            seen: BTreeSet::new(),
            pushes: 0,
            waits: 0,
            answers: 0,
            cancels: 0,
            broken: false,
        }
    }

    /// Completes one of the reads, any of them.
    fn complete(&mut self) {
        let at = self.random.below(self.pending.len() as u64) as usize;
        let read = self.pending.swap_remove(at);
        self.answers += 1;
        let answer = if read.cancelled && self.random.below(2) == 0 {
            Answer::Errno(libc::ECANCELED)
        } else {
            (self.script.answer)(&mut self.random, self.answers, read.access)
        };
        let count = match answer {
            Answer::Errno(errno) => {
                self.answered.push((read.token, -errno));
                return;
            }
            Answer::All => read.bytes.len(),
            Answer::Short => self.random.below(read.bytes.len() as u64 + 1).max(1) as usize,
        };
        let count = count.min(read.bytes.len());
        // SAFETY: at most as long as the buffer that was pushed, which the driver keeps untouched
        // until this answer is reaped.
        unsafe { std::ptr::copy_nonoverlapping(read.bytes.as_ptr(), read.at, count) };
        self.answered.push((read.token, count as i32));
        if self.answers == self.script.cancel_after {
            self.outcome.cancelled.store(true, Ordering::SeqCst);
        }
    }
}

impl Ring for ScriptedRing {
    fn longest(&self) -> usize {
        self.script.longest
    }

    fn push(
        &mut self,
        token: u64,
        source: &dyn Source,
        access: Access,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        assert!(!self.broken, "pushed into a broken ring");
        assert!(!buffer.is_empty(), "a read of nothing");
        assert!(buffer.len() <= self.script.longest, "too long a read");
        assert!(self.pending.len() < self.depth, "more reads than the depth");
        self.pushes += 1;
        if let Some(errno) = (self.script.push)(&mut self.random, self.pushes) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        assert!(self.seen.insert(token), "a token was used again");
        let range = buffer.as_mut_ptr_range();
        for other in &self.pending {
            let start = other.at;
            let end = start.wrapping_add(other.len);
            assert!(range.end <= start || end <= range.start, "buffers overlap");
        }
        let mut bytes = vec![0; buffer.len()];
        let count = source.read_at(offset, &mut bytes)?;
        bytes.truncate(count);
        self.pending.push(Pending {
            token,
            access,
            at: buffer.as_mut_ptr(),
            bytes,
            len: buffer.len(),
            cancelled: false,
        });
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        assert!(
            !self.pending.is_empty() || !self.answered.is_empty(),
            "waits for nothing"
        );
        self.waits += 1;
        if let Some(errno) = (self.script.wait)(&mut self.random, self.waits) {
            let error = io::Error::from_raw_os_error(errno);
            self.broken = !is_retryable(&error);
            return Err(error);
        }
        if self.script.stale && self.random.below(2) == 0 {
            // An answer to a cancellation, and answers to reads of long ago.
            self.answered.push((u64::MAX, 0));
            let live = |token: &&u64| {
                self.pending.iter().all(|read| read.token != **token)
                    && self.answered.iter().all(|answer| answer.0 != **token)
            };
            if let Some(&old) = self.seen.iter().find(live) {
                self.answered.push((old, 4096));
            }
        }
        let count = 1 + self.random.below(self.pending.len().max(1) as u64);
        for _ in 0..count.min(self.pending.len() as u64) {
            self.complete();
        }
        Ok(())
    }

    fn reap(&mut self) -> Option<(u64, i32)> {
        if self.broken && self.script.answers_when_broken && !self.pending.is_empty() {
            self.complete();
        }
        self.answered.pop()
    }

    fn cancel(&mut self, tokens: &mut dyn Iterator<Item = u64>) {
        self.cancels += 1;
        let tokens: BTreeSet<u64> = tokens.collect();
        let pending: BTreeSet<u64> = self.pending.iter().map(|read| read.token).collect();
        assert_eq!(tokens, pending, "what is in flight is cancelled");
        self.pending
            .iter_mut()
            .for_each(|read| read.cancelled = true);
    }
}

fn settings(seed: u64) -> Settings {
    let access = [AccessMode::Buffered, AccessMode::Direct, AccessMode::Auto];
    Settings {
        backend: BackendKind::IoUring,
        chunk_bytes: Some(4096),
        access: access[seed as usize % 3],
        budget: seed.is_multiple_of(2).then_some(1),
        ..Settings::default()
    }
}

/// Drives a job through a scripted ring of some depth; `judge` says whether it went as it should.
#[track_caller]
fn run(script: impl Fn() -> Script, judge: impl Fn(&Trial, &ScriptedRing)) {
    for seed in 1..=SEEDS {
        let depth = 1 + (seed % 9) as usize;
        let trial = Trial::new(SIZES, &settings(seed), |source| source);
        let mut ring = ScriptedRing::new(seed, depth, script(), &trial);
        let left = drive(&trial.job, &mut ring, depth, |bytes| {
            trial.job.wait_for_room(bytes);
            true
        });
        assert_eq!(left, Left::Done);
        if !ring.broken {
            assert!(
                ring.pending.is_empty(),
                "seed {seed}: returned with reads in flight"
            );
            assert!(
                ring.answered.iter().all(|answer| answer.0 == u64::MAX),
                "seed {seed}"
            );
            assert_eq!(trial.job.in_flight(), 0, "seed {seed}");
        }
        judge(&trial, &ring);
    }
}

fn fails_with(kind: ErrorKind) -> impl Fn(&Trial, &ScriptedRing) {
    move |trial, _| {
        let failure = trial.outcome.failure();
        let error = failure.as_ref().expect("the load has failed");
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.tensor_name(), Some("some tensor"));
    }
}

#[test]
fn answers_in_any_order_deliver_every_tensor() {
    run(|| WELL, |trial, _| trial.assert_delivered());
}

#[test]
fn reads_longer_than_the_kernel_takes_go_on_where_they_were_cut() {
    assert_eq!(LONGEST_READ as u64, (2 << 30) - 4096);
    let script = || Script {
        // Chunks have 4096 bytes.
        longest: 1000,
        answer: |random, _, _| match random.below(4) {
            0 => Answer::Short,
            _ => Answer::All,
        },
        ..WELL
    };
    run(script, |trial, ring| {
        trial.assert_delivered();
        assert!(ring.answers > SIZES.iter().sum::<u64>() / 1000);
    });
}

#[test]
fn what_can_be_tried_again_is() {
    let script = || Script {
        push: |random, _| match random.below(12) {
            0 => Some(libc::EAGAIN),
            1 => Some(libc::EINTR),
            2 => Some(libc::EMFILE),
            _ => None,
        },
        wait: |random, _| match random.below(6) {
            0 => Some(libc::EINTR),
            1 => Some(libc::EBUSY),
            2 => Some(libc::EAGAIN),
            _ => None,
        },
        answer: |random, _, access| match random.below(8) {
            0 => Answer::Errno(libc::EINTR),
            1 => Answer::Errno(libc::EAGAIN),
            2 if access == Access::Direct => Answer::Errno(libc::EINVAL),
            3 | 4 => Answer::Short,
            _ => Answer::All,
        },
        stale: true,
        ..WELL
    };
    run(script, |trial, _| trial.assert_delivered());
}

#[test]
fn an_error_ends_the_load_after_everything_has_come_back() {
    for (errno, kind) in [(libc::EIO, ErrorKind::Io), (libc::ECANCELED, ErrorKind::Io)] {
        let script = || Script {
            answer: if errno == libc::EIO {
                |_, number, _| {
                    if number == 4 {
                        Answer::Errno(libc::EIO)
                    } else {
                        Answer::All
                    }
                }
            } else {
                |_, number, _| {
                    if number == 4 {
                        Answer::Errno(libc::ECANCELED)
                    } else {
                        Answer::All
                    }
                }
            },
            stale: true,
            ..WELL
        };
        run(script, fails_with(kind));
    }
}

#[test]
fn an_answer_of_no_bytes_is_the_end_of_the_file() {
    let script = || Script {
        answer: |_, number, _| {
            if number >= 3 {
                Answer::Errno(0)
            } else {
                Answer::All
            }
        },
        ..WELL
    };
    run(script, fails_with(ErrorKind::Truncated));
}

#[test]
fn a_read_that_cannot_be_queued_ends_the_load() {
    let script = || Script {
        push: |_, number| (number == 5).then_some(libc::EBADF),
        ..WELL
    };
    run(script, fails_with(ErrorKind::Io));
}

#[test]
fn reads_wait_for_the_descriptors_of_others() {
    // Every second push at most finds a descriptor; one that is alone always does.
    let script = || Script {
        push: |_, number| (number % 2 == 0).then_some(libc::EMFILE),
        ..WELL
    };
    run(script, |trial, _| trial.assert_delivered());
}

#[test]
fn a_cancel_asks_for_what_is_in_flight_once_and_waits_for_it() {
    for cancel_after in [1, 3, 6] {
        let script = || Script {
            cancel_after,
            stale: true,
            answer: |random, _, _| match random.below(3) {
                0 => Answer::Short,
                _ => Answer::All,
            },
            ..WELL
        };
        run(script, |trial, ring| {
            assert!(ring.cancels <= 1);
            assert!(trial.outcome.failure().is_none(), "a cancel is no failure");
            assert!(ring.answers <= cancel_after + ring.depth as u64);
        });
    }
}

#[test]
fn a_broken_ring_is_drained_of_what_it_still_answers() {
    let script = || Script {
        wait: |_, number| (number == 2).then_some(libc::EBADR),
        ..WELL
    };
    run(script, |trial, ring| {
        assert!(ring.broken && ring.pending.is_empty());
        assert_eq!(trial.job.in_flight(), 0);
        fails_with(ErrorKind::Io)(trial, ring);
    });
}

#[test]
fn reads_that_a_broken_ring_never_answers_are_leaked_and_counted() {
    let script = Script {
        wait: |_, number| (number == 2).then_some(libc::EBADF),
        answers_when_broken: false,
        ..WELL
    };
    let trial = Trial::new(SIZES, &settings(1), |source| source);
    let mut ring = ScriptedRing::new(1, 4, script, &trial);
    let left = drive(&trial.job, &mut ring, 4, |bytes| {
        trial.job.wait_for_room(bytes);
        true
    });
    assert_eq!(left, Left::Done);
    let leaked = trial.job.counters.leaked.load(Ordering::Relaxed);
    assert!(leaked > 0);
    assert_eq!(leaked, ring.pending.len() as u64);
    assert_eq!(trial.job.in_flight() as u64, leaked);
    fails_with(ErrorKind::Io)(&trial, &ring);
    // What the kernel does when it comes back to it: write. The memory is still there.
    while !ring.pending.is_empty() {
        ring.complete();
    }
}
