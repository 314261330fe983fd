//! An account of the time.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::storage::Access;
use crate::trace::record::{Answer, Event, Recorder, What};

/// Where the time of the traced loads went. [What cannot be told apart](crate::trace) limits it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceSummary {
    /// Loads in the trace.
    pub loads: u64,
    /// From the start of reading to its end, in milliseconds; loads added up.
    pub elapsed_ms: f64,
    /// Before that: planning, probing and scheduling, in milliseconds.
    pub prepare_ms: f64,
    /// All workers added up.
    pub total: TimeSpent,
    /// Threads, or rings, that did anything.
    pub workers: Vec<WorkerSummary>,
}

/// What one worker did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerSummary {
    /// Number of the load in the trace, from 1.
    pub load: u64,
    /// Name of the thread.
    pub name: String,
    /// Its work and its time.
    #[serde(flatten)]
    pub spent: TimeSpent,
}

/// Work and time. The times of a worker add up to its load's duration.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TimeSpent {
    /// Reads that were answered.
    pub reads: u64,
    /// Bytes that these brought.
    pub read_bytes: u64,
    /// Bytes that were copied out of staging buffers.
    pub staged_bytes: u64,
    /// Tensors that were finished.
    pub tensors: u64,
    /// Milliseconds asleep in reads and in waits for a ring's answers, and while pages of mappings
    /// were brought in.
    pub disk_wait_ms: f64,
    /// Milliseconds on the processor in reads through the page cache, which fault pages as well,
    /// in staged copies, and in making views contiguous.
    pub copy_ms: f64,
    /// Milliseconds on the processor in reads around the page cache, which pin fresh pages, and
    /// in bringing in mappings; allocations.
    pub fault_ms: f64,
    /// Milliseconds without room in the budget.
    pub budget_wait_ms: f64,
    /// The rest: milliseconds before the worker started, after it had ended, in bookkeeping, or
    /// waiting for another worker or for a core.
    pub idle_ms: f64,
    /// Page faults without a read in all of this, where the system counts them for a thread.
    pub minor_faults: Option<u64>,
    /// Page faults that waited for a read.
    pub major_faults: Option<u64>,
}

/// One line of text.
impl fmt::Display for TraceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = self.workers.len();
        let plural = if workers == 1 { "" } else { "s" };
        write!(f, "{workers} worker{plural} over {:.2} ms", self.elapsed_ms)?;
        let total = &self.total;
        let times = [
            ("disk wait", total.disk_wait_ms),
            ("copy", total.copy_ms),
            ("faults", total.fault_ms),
            ("budget wait", total.budget_wait_ms),
            ("idle", total.idle_ms),
        ];
        let all: f64 = times.iter().map(|(_, ms)| ms).sum();
        for (position, (name, ms)) in times.into_iter().enumerate() {
            let separator = if position == 0 { ":" } else { "," };
            let share = if all > 0.0 { 100.0 * ms / all } else { 0.0 };
            write!(f, "{separator} {name} {share:.0} %")?;
        }
        if let Some(faults) = total.minor_faults {
            let major = total.major_faults.unwrap_or(0);
            write!(f, "; {faults} minor and {major} major page faults")?;
        }
        Ok(())
    }
}

pub(super) fn of(loads: &[Arc<Recorder>]) -> TraceSummary {
    let mut summary = TraceSummary {
        loads: loads.len() as u64,
        elapsed_ms: 0.0,
        prepare_ms: 0.0,
        total: TimeSpent::default(),
        workers: Vec::new(),
    };
    for (number, load) in (1..).zip(loads) {
        add_load(&mut summary, number, load);
    }
    for worker in &summary.workers {
        summary.total.add(&worker.spent);
    }
    summary
}

fn add_load(summary: &mut TraceSummary, number: u64, load: &Recorder) {
    let state = load.state();
    let ended = state.ended.unwrap_or_else(Instant::now);
    let elapsed_ms = millis(ended.saturating_duration_since(load.started));
    summary.elapsed_ms += elapsed_ms;
    let mut lanes: Vec<Lane> = state.lanes.iter().map(|_| Lane::default()).collect();
    for event in &state.events {
        if let What::Prepare = event.what {
            summary.prepare_ms += millis(event.duration);
        } else {
            lanes[event.lane as usize].add(event, load);
        }
    }
    for (lane, name) in lanes.into_iter().zip(&state.lanes) {
        if !lane.took_part {
            continue;
        }
        let mut spent = lane.settle();
        spent.idle_ms = (elapsed_ms - spent.busy_ms()).max(0.0);
        summary.workers.push(WorkerSummary {
            load: number,
            name: name.clone(),
            spent,
        });
    }
}

/// One thread while its events are added up.
#[derive(Default)]
struct Lane {
    spent: TimeSpent,
    /// Whether it did more than hand over empty tensors.
    took_part: bool,
    direct_bytes: u64,
    /// On the processor in the calls of a ring.
    ring: Duration,
}

impl Lane {
    fn add(&mut self, event: &Event, load: &Recorder) {
        let spent = &mut self.spent;
        let took_part = std::mem::replace(&mut self.took_part, true);
        if let Some(cost) = event.cost {
            add_count(&mut spent.minor_faults, cost.minor_faults);
            add_count(&mut spent.major_faults, cost.major_faults);
        }
        let all = millis(event.duration);
        let (on, wait) = on_and_waiting(event);
        match &event.what {
            What::Read(read) => {
                if let Answer::Bytes(bytes) = read.answer {
                    spent.reads += 1;
                    spent.read_bytes += bytes;
                    if read.access == Access::Direct {
                        self.direct_bytes += bytes;
                    }
                }
                if !load.reads_overlap() {
                    spent.disk_wait_ms += millis(wait);
                    match read.access {
                        Access::Buffered => spent.copy_ms += millis(on),
                        Access::Direct => spent.fault_ms += millis(on),
                    }
                }
            }
            What::Submit | What::Await => {
                spent.disk_wait_ms += millis(wait);
                self.ring += on;
            }
            What::Populate { .. } => {
                spent.disk_wait_ms += millis(wait);
                spent.fault_ms += millis(on);
            }
            What::Copy { bytes, .. } => {
                spent.staged_bytes += bytes;
                spent.copy_ms += all;
            }
            What::Allocate { .. } => spent.fault_ms += all,
            What::Room { .. } => spent.budget_wait_ms += all,
            What::Deliver { tensor } => {
                let planned = &load.plan.tensors[*tensor as usize];
                spent.tensors += 1;
                self.took_part = took_part || planned.stored_bytes > 0;
                if planned.gather.is_some() {
                    spent.copy_ms += all;
                }
            }
            What::Prepare => {}
        }
    }

    /// Splits what a ring took by the bytes that it read through and around the page cache.
    fn settle(mut self) -> TimeSpent {
        let spent = &mut self.spent;
        let direct = self.direct_bytes as f64 / spent.read_bytes.max(1) as f64;
        spent.fault_ms += millis(self.ring) * direct;
        spent.copy_ms += millis(self.ring) * (1.0 - direct);
        self.spent
    }
}

impl TimeSpent {
    fn busy_ms(&self) -> f64 {
        self.disk_wait_ms + self.copy_ms + self.fault_ms + self.budget_wait_ms
    }

    fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.staged_bytes += other.staged_bytes;
        self.tensors += other.tensors;
        self.disk_wait_ms += other.disk_wait_ms;
        self.copy_ms += other.copy_ms;
        self.fault_ms += other.fault_ms;
        self.budget_wait_ms += other.budget_wait_ms;
        self.idle_ms += other.idle_ms;
        add_count(&mut self.minor_faults, other.minor_faults);
        add_count(&mut self.major_faults, other.major_faults);
    }
}

fn add_count(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0) + more);
    }
}

/// The parts of an event on the processor and waiting. Without a clock for threads it is all the
/// one or all the other. A thread that never slept was off the processor because another one was
/// on it, and waited for no disk.
fn on_and_waiting(event: &Event) -> (Duration, Duration) {
    let waits = match &event.what {
        What::Read(read) => read.access == Access::Direct,
        What::Await | What::Populate { .. } => true,
        _ => false,
    };
    let on = match event.cost.and_then(|cost| cost.cpu) {
        Some(cpu) => cpu.min(event.duration),
        None if waits => Duration::ZERO,
        None => event.duration,
    };
    match event.cost.and_then(|cost| cost.slept) {
        Some(false) => (on, Duration::ZERO),
        _ => (on, event.duration - on),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
