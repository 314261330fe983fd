//! A schedule in figures.

use std::fmt;

use serde::Serialize;

use crate::policy::Decision;
use crate::schedule::{LandingSpec, Origin, Schedule};
use crate::storage::Access;
use crate::text::{ByteSize, counted};

/// What a schedule will do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScheduleExplanation {
    /// Who reads, and why.
    pub decision: Decision,
    /// Reads to be issued.
    pub requests: u64,
    /// Bytes that the selection needs.
    pub needed_bytes: u64,
    /// Bytes that will be read: gaps, and the rounding of direct reads, included.
    pub read_bytes: u64,
    /// Bytes read for each needed byte; 1 where nothing is needed.
    pub over_read: f64,
    /// Of these, around the page cache.
    pub direct_bytes: u64,
    /// Of these, mapped instead of read.
    pub mapped_bytes: u64,
    /// Bytes that go through a staging buffer and are copied once more.
    pub staged_bytes: u64,
    /// Stretches of destination memory.
    pub regions: u64,
    /// Their total length in bytes: the memory that the tensors will take.
    pub region_bytes: u64,
    /// Staging memory in bytes, over all workers.
    pub staging_bytes: u64,
    /// Budget of a stream in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
}

pub(super) fn explain(schedule: &Schedule, needed_bytes: u64) -> ScheduleExplanation {
    let decision = schedule.decision.clone();
    let mut out = ScheduleExplanation {
        requests: schedule.requests.len() as u64,
        needed_bytes,
        read_bytes: 0,
        over_read: 1.0,
        direct_bytes: 0,
        mapped_bytes: 0,
        staged_bytes: 0,
        regions: schedule.regions.len() as u64,
        region_bytes: schedule.regions.iter().map(|region| region.len).sum(),
        staging_bytes: schedule.staging_bytes * (decision.workers * decision.queue_depth) as u64,
        budget_bytes: schedule.budget,
        decision,
    };
    for request in &schedule.requests {
        out.read_bytes += request.len;
        if request.access == Access::Direct {
            out.direct_bytes += request.len;
        }
        if matches!(
            schedule.regions[request.region as usize].origin,
            Origin::File { .. }
        ) {
            out.mapped_bytes += request.len;
        }
        if let LandingSpec::Staged { copies } = &request.landing {
            let copies = &schedule.copies[copies.start as usize..copies.end as usize];
            out.staged_bytes += copies.iter().map(|copy| copy.run * copy.count).sum::<u64>();
        }
    }
    if needed_bytes > 0 {
        out.over_read = out.read_bytes as f64 / needed_bytes as f64;
    }
    out
}

impl fmt::Display for ScheduleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = &self.decision;
        writeln!(f, "backend    {} ({})", decision.backend, decision.reason)?;
        write!(f, "workers    {}", decision.workers)?;
        if decision.queue_depth > 1 {
            write!(f, " x queue depth {}", decision.queue_depth)?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "requests   {} of at most {} buffered, {} direct",
            self.requests,
            ByteSize(decision.buffered_chunk),
            ByteSize(decision.direct_chunk),
        )?;
        writeln!(
            f,
            "bytes      {} needed, {} read, {:.3} for each needed one ({} direct, {} mapped, {} staged)",
            ByteSize(self.needed_bytes),
            ByteSize(self.read_bytes),
            self.over_read,
            ByteSize(self.direct_bytes),
            ByteSize(self.mapped_bytes),
            ByteSize(self.staged_bytes),
        )?;
        write!(
            f,
            "memory     {} in {}, {} staging",
            ByteSize(self.region_bytes),
            counted(self.regions, "region"),
            ByteSize(self.staging_bytes),
        )?;
        if let Some(budget) = self.budget_bytes {
            write!(f, ", budget {}", ByteSize(budget))?;
        }
        Ok(())
    }
}
