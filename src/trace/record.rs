//! Writing events down while a load runs.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::facts::process::{ThreadUsage, thread_usage};
use crate::plan::ReadPlan;
use crate::policy::Decision;
use crate::storage::{Access, BackendKind};
use crate::trace::Trace;

/// A recorder, or none: what is traced goes through here, and costs a look at the option when it
/// is not.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tracing(Option<Arc<Recorder>>);

impl Tracing {
    /// Records into `recorder`.
    pub(crate) fn on(recorder: Arc<Recorder>) -> Self {
        Self(Some(recorder))
    }

    /// Where something begins whose end is told later.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.0.as_ref().map(|_| Stamp::now())
    }

    /// Does `work`, and records it as `what`. Spans of one thread must not overlap.
    pub(crate) fn span<T>(&self, what: impl FnOnce() -> What, work: impl FnOnce() -> T) -> T {
        let Some(recorder) = &self.0 else {
            return work();
        };
        let since = Stamp::now();
        let outcome = work();
        recorder.span(what(), since);
        outcome
    }

    /// Records the answer to a read that began at `since`.
    pub(crate) fn read(&self, since: Option<Stamp>, read: impl FnOnce() -> Read) {
        if let (Some(recorder), Some(since)) = (&self.0, since) {
            recorder.read(read(), since);
        }
    }

    /// Awaits `room` in the budget for a task that hands out work.
    pub(crate) async fn room(&self, bytes: u64, room: impl Future<Output = ()>) {
        let since = self.stamp();
        room.await;
        if let (Some(recorder), Some(since)) = (&self.0, since) {
            recorder.push(Key::Dispatcher, What::Room { bytes }, since, None);
        }
    }

    /// Reading has ended.
    pub(crate) fn end(&self) {
        if let Some(recorder) = &self.0 {
            recorder.state().ended.get_or_insert_with(Instant::now);
        }
    }
}

/// A moment, and what the thread had used by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    at: Instant,
    used: ThreadUsage,
}

impl Stamp {
    pub(crate) fn now() -> Self {
        Self {
            used: thread_usage(),
            at: Instant::now(),
        }
    }
}

/// What happened.
#[derive(Debug)]
pub(crate) enum What {
    /// Planning, probing and scheduling, before the load.
    Prepare,
    /// A read was answered.
    Read(Read),
    /// A ring was given a read.
    Submit,
    /// A ring's answers were waited for.
    Await,
    /// Pages of a mapping were brought in.
    Populate { source: u32, offset: u64, len: u64 },
    /// Bytes of a staging buffer went to their tensors.
    Copy { bytes: u64, pieces: u64 },
    /// Memory was reserved or mapped.
    Allocate { bytes: u64, memory: &'static str },
    /// The budget had no room for so many bytes.
    Room { bytes: u64 },
    /// A tensor was finished and handed over.
    Deliver { tensor: u32 },
}

/// A read with its answer.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) source: u32,
    pub(crate) offset: u64,
    /// Bytes that were asked for.
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) answer: Answer,
}

#[derive(Debug)]
pub(crate) enum Answer {
    /// So many bytes came.
    Bytes(u64),
    /// None did, for this reason.
    Error(String),
}

/// One entry of the recording.
#[derive(Debug)]
pub(super) struct Event {
    /// Position in `State::lanes`.
    pub(super) lane: u32,
    pub(super) what: What,
    pub(super) start: Instant,
    pub(super) duration: Duration,
    /// What the thread used meanwhile. `None`: the thread did other things as well.
    pub(super) cost: Option<Cost>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Processor time of the thread at the start.
    pub(super) cpu_at: Option<Duration>,
    pub(super) cpu: Option<Duration>,
    pub(super) minor_faults: Option<u64>,
    pub(super) major_faults: Option<u64>,
    /// Whether the thread went to sleep by itself.
    pub(super) slept: Option<bool>,
}

/// The recording of one load.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(super) epoch: Instant,
    /// Names of tensors and files.
    pub(super) plan: Arc<ReadPlan>,
    pub(super) decision: Decision,
    pub(super) started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    by_key: HashMap<Key, u32>,
    /// Names of the threads.
    pub(super) lanes: Vec<String>,
    pub(super) events: Vec<Event>,
    pub(super) ended: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Thread(ThreadId),
    /// The task that hands out work, which threads take turns at.
    Dispatcher,
}

impl Recorder {
    /// Adds a load to `trace`, which starts now and was being prepared since `prepared`.
    pub(crate) fn begin(
        trace: &Trace,
        plan: &Arc<ReadPlan>,
        decision: &Decision,
        prepared: Stamp,
    ) -> Arc<Self> {
        let recorder = Arc::new(Self {
            epoch: trace.epoch(),
            plan: Arc::clone(plan),
            decision: decision.clone(),
            started: Instant::now(),
            state: Mutex::default(),
        });
        recorder.span(What::Prepare, prepared);
        for (tensor, planned) in plan.tensors.iter().enumerate() {
            if planned.stored_bytes == 0 {
                // Nothing is read for it, so it is there from the start.
                let tensor = tensor as u32;
                recorder.span(What::Deliver { tensor }, Stamp::now());
            }
        }
        trace.add(Arc::clone(&recorder));
        recorder
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether reads overlap on one thread.
    pub(super) fn reads_overlap(&self) -> bool {
        self.decision.backend == BackendKind::IoUring
    }

    fn span(&self, what: What, since: Stamp) {
        let now = thread_usage();
        let used = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let cost = Cost {
            cpu_at: since.used.cpu,
            cpu: now
                .cpu
                .zip(since.used.cpu)
                .map(|(now, then)| now.saturating_sub(then)),
            minor_faults: used(now.minor_faults, since.used.minor_faults),
            major_faults: used(now.major_faults, since.used.major_faults),
            slept: used(now.voluntary_switches, since.used.voluntary_switches)
                .map(|switches| switches > 0),
        };
        self.push(Key::of_this_thread(), what, since, Some(cost));
    }

    fn read(&self, read: Read, since: Stamp) {
        if self.reads_overlap() {
            self.push(Key::of_this_thread(), What::Read(read), since, None);
        } else {
            self.span(What::Read(read), since);
        }
    }

    fn push(&self, key: Key, what: What, since: Stamp, cost: Option<Cost>) {
        let duration = since.at.elapsed();
        let mut state = self.state();
        let lane = state.lane(key);
        state.events.push(Event {
            lane,
            what,
            start: since.at,
            duration,
            cost,
        });
    }
}

impl Key {
    fn of_this_thread() -> Self {
        Self::Thread(std::thread::current().id())
    }
}

impl State {
    fn lane(&mut self, key: Key) -> u32 {
        let next = self.lanes.len() as u32;
        let dispatcher = key == Key::Dispatcher;
        let lane = *self.by_key.entry(key).or_insert(next);
        if lane == next {
            let thread = std::thread::current();
            let name = if dispatcher {
                "dispatcher"
            } else {
                thread.name().unwrap_or("thread")
            };
            // Threads of a pool have one name.
            let same = |lane: &&String| lane.split(' ').next() == Some(name);
            let name = match self.lanes.iter().filter(same).count() {
                0 => name.to_owned(),
                others => format!("{name} {}", others + 1),
            };
            self.lanes.push(name);
        }
        lane
    }
}
