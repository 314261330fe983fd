//! What the policy looks at: a plan and its files, reduced to numbers.

use serde::Serialize;

use crate::facts::{Facts, SourceFacts};
use crate::plan::ReadPlan;
use crate::settings::AccessMode;

/// Names of virtual disks, which say that they turn because nobody told them otherwise.
const VIRTUAL_DISKS: [&str; 3] = ["vd", "xvd", "loop"];

/// What the policy looks at in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlanShape {
    /// Bytes that the plan's spans cover.
    pub read_bytes: u64,
    /// Of these, bytes that are not in the page cache.
    pub absent_bytes: u64,
    /// Bytes that are read around the page cache.
    pub direct_bytes: u64,
    /// Bytes of the tensors.
    pub result_bytes: u64,
    /// Files that are read from.
    pub files: usize,
    /// Contiguous ranges.
    pub ranges: u64,
    /// The part of these files that the selection needs, from 0 to 1.
    pub density: f64,
    /// Whether every source is a local file with a descriptor.
    pub local: bool,
    /// Whether any file lies on a network file system.
    pub network: bool,
    /// Whether a disk turns.
    pub turning: Turning,
}

/// Whether a disk below the files turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Turning {
    /// None says so.
    No,
    /// Only virtual disks say so, of which nothing follows.
    Claimed,
    /// One that is not known to be virtual says so.
    Likely,
}

impl PlanShape {
    /// Bytes that come from the disk through the page cache.
    pub(super) fn filling_bytes(&self) -> u64 {
        self.absent_bytes.saturating_sub(self.direct_bytes)
    }

    /// Bytes that are copied from the page cache.
    pub(super) fn cached_bytes(&self) -> u64 {
        self.read_bytes
            .saturating_sub(self.absent_bytes.max(self.direct_bytes))
    }

    /// Bytes of an average range.
    pub(super) fn mean_range(&self) -> u64 {
        self.read_bytes / self.ranges.max(1)
    }
}

/// The numbers of the sources that a plan reads from, ascending.
pub fn used_sources(plan: &ReadPlan) -> Vec<u32> {
    let mut used: Vec<u32> = plan.spans.iter().map(|span| span.source).collect();
    used.dedup();
    used.sort_unstable();
    used.dedup();
    used
}

/// The shape of `plan` under `facts`.
pub fn shape(plan: &ReadPlan, facts: &Facts, access: AccessMode) -> PlanShape {
    let figures = plan.figures();
    let (mut absent_bytes, mut direct_bytes) = (0, 0);
    for span in &plan.spans {
        let source = &facts.sources[span.source as usize];
        let range = span.offset..span.offset + span.len;
        let absent = span.len - source.residency.resident_bytes(range);
        absent_bytes += absent;
        direct_bytes += match access {
            _ if source.direct.is_none() => 0,
            AccessMode::Buffered => 0,
            AccessMode::Direct => span.len,
            AccessMode::Auto => absent,
        };
    }
    let numbers = used_sources(plan);
    let used = || numbers.iter().map(|&n| &facts.sources[n as usize]);
    let file_bytes: u64 = numbers.iter().map(|&n| plan.sources[n as usize].len).sum();
    PlanShape {
        read_bytes: figures.span_bytes,
        absent_bytes,
        direct_bytes,
        result_bytes: figures.result_bytes,
        files: numbers.len(),
        ranges: figures.ranges,
        density: figures.needed_bytes as f64 / file_bytes.max(1) as f64,
        local: used().all(|source| source.local),
        network: used().any(|source| source.network),
        turning: used().map(turning).fold(Turning::No, worse),
    }
}

fn turning(source: &SourceFacts) -> Turning {
    let is_virtual = |device: &String| VIRTUAL_DISKS.iter().any(|name| device.starts_with(name));
    match source.rotational {
        Some(true) if source.device.as_ref().is_some_and(is_virtual) => Turning::Claimed,
        Some(true) => Turning::Likely,
        _ => Turning::No,
    }
}

fn worse(a: Turning, b: Turning) -> Turning {
    match (a, b) {
        (Turning::Likely, _) | (_, Turning::Likely) => Turning::Likely,
        (Turning::Claimed, _) | (_, Turning::Claimed) => Turning::Claimed,
        _ => Turning::No,
    }
}
