//! A schedule in figures.

use std::fmt;

use serde::Serialize;

use crate::policy::Decision;
use crate::schedule::{LandingSpec, Origin, Schedule};
use crate::storage::Access;

/// What a schedule will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScheduleExplanation {
    /// Who reads, and why.
    pub decision: Decision,
    /// Reads to be issued.
    pub requests: u64,
    /// Bytes that the selection needs.
    pub needed_bytes: u64,
    /// Bytes that will be read: gaps, and the rounding of direct reads, included.
    pub read_bytes: u64,
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
    out
}

impl fmt::Display for ScheduleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let decision = &self.decision;
        writeln!(f, "backend    {} ({})", decision.backend, decision.reason)?;
        write!(f, "workers    {}", decision.workers)?;
        if decision.queue_depth > 1 {
            write!(f, " x queue depth {}", decision.queue_depth)?;
        }
        writeln!(f)?;
        for note in &decision.notes {
            writeln!(f, "           {note}")?;
        }
        writeln!(f, "profile    {}", decision.profile)?;
        writeln!(
            f,
            "requests   {} of at most {:.1} MiB buffered, {:.1} MiB direct",
            self.requests,
            mib(decision.buffered_chunk),
            mib(decision.direct_chunk),
        )?;
        writeln!(
            f,
            "bytes      {} needed, {} read ({} direct, {} mapped, {} staged)",
            self.needed_bytes,
            self.read_bytes,
            self.direct_bytes,
            self.mapped_bytes,
            self.staged_bytes,
        )?;
        write!(
            f,
            "memory     {:.1} MiB in {} regions, {:.1} MiB staging",
            mib(self.region_bytes),
            self.regions,
            mib(self.staging_bytes),
        )?;
        if let Some(budget) = self.budget_bytes {
            write!(f, ", budget {:.1} MiB", mib(budget))?;
        }
        Ok(())
    }
}
