//! How a plan is read: exact requests, destinations and copies, as data.
//!
//! [`Schedule::lower`] is a pure function of the plan, the [`Facts`] and the [`Settings`]. It names
//! memory by region and offset, never by pointer; the load allocates the regions and a backend
//! executes the requests. Lowering is where a read becomes *in place* (into the tensor's own
//! memory) or *staged* (through a bounded buffer, with a copy that is counted), *buffered* or
//! *direct* (around the page cache).

mod explain;
mod fragment;
mod lower;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use explain::ScheduleExplanation;

use crate::error::Result;
use crate::facts::Facts;
use crate::plan::ReadPlan;
use crate::policy::{Decision, Profile, used_sources};
use crate::settings::{Order, Settings};
use crate::storage::Access;
use crate::storage::region::SlotSpec;

/// Requests in the order in which they are to be started, and where their bytes go.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub(crate) decision: Decision,
    pub(crate) regions: Vec<RegionSpec>,
    /// Grouped by region, ascending; inside of a region by source and offset.
    pub(crate) requests: Vec<Request>,
    pub(crate) copies: Vec<CopySpec>,
    /// For each tensor of the plan its memory; `None` for tensors without bytes.
    pub(crate) places: Vec<Option<Place>>,
    /// For each tensor of the plan the bytes that are read for it.
    pub(crate) stored: Vec<u64>,
    /// Bytes of a staging buffer, which holds the largest staged request; 0 when nothing is staged.
    pub(crate) staging_bytes: u64,
    pub(crate) budget: Option<u64>,
    pub(crate) order: Order,
    needed_bytes: u64,
}

impl Schedule {
    /// Decides how `plan` is read on the machine that `facts` describe, with the built-in
    /// constants.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for impossible settings,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) for an explicit backend that cannot run.
    pub fn lower(plan: &ReadPlan, facts: &Facts, settings: &Settings) -> Result<Self> {
        Self::lower_with(plan, facts, settings, &Profile::default())
    }

    /// As [`lower`](Self::lower), with the constants of `profile` where it applies.
    ///
    /// # Errors
    /// As [`lower`](Self::lower).
    pub fn lower_with(
        plan: &ReadPlan,
        facts: &Facts,
        settings: &Settings,
        profile: &Profile,
    ) -> Result<Self> {
        Self::lower_for(plan, facts, settings, profile, None)
    }

    /// As [`lower_with`](Self::lower_with); `lent`: tensors go to memory that the caller lends, which
    /// for each starts so many bytes into a page.
    pub(crate) fn lower_for(
        plan: &ReadPlan,
        facts: &Facts,
        settings: &Settings,
        profile: &Profile,
        lent: Option<&[u64]>,
    ) -> Result<Self> {
        let applied = profile.applied(facts, &used_sources(plan));
        lower::lower(plan, facts, settings, &applied, lent)
    }

    /// Who reads, and why.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    pub(crate) fn regions(&self) -> &[RegionSpec] {
        &self.regions
    }

    /// Requests, bytes, memory and the decision: as text through `Display`, as JSON through serde.
    pub fn explain(&self) -> ScheduleExplanation {
        explain::explain(self, self.needed_bytes)
    }
}

/// One stretch of memory to allocate or to map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionSpec {
    pub(crate) len: u64,
    pub(crate) origin: Origin,
    /// Ascending and disjoint.
    pub(crate) slots: Vec<SlotSpec>,
    /// For each slot the tensors in it.
    pub(crate) tenants: Vec<smallvec::SmallVec<[u32; 1]>>,
    /// What a budget is charged for the region: its length, plus what gathering adds.
    pub(crate) charge: u64,
}

/// What memory a region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Fresh anonymous memory.
    Arena,
    /// A private mapping of a source from a page-aligned offset.
    File { source: u32, offset: u64 },
    /// The caller's memory for one tensor.
    Lent { tensor: u32 },
}

/// Where a tensor's stored bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: u32,
    pub(crate) slot: u32,
    /// From the start of the region.
    pub(crate) offset: u64,
}

/// One contiguous read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) source: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes from `offset` that must arrive. Less than `len` where a direct read is rounded up,
    /// possibly past the end of the file.
    pub(crate) needed: u64,
    pub(crate) access: Access,
    /// The one region that the bytes go to.
    pub(crate) region: u32,
    pub(crate) landing: LandingSpec,
}

/// Where a request's bytes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LandingSpec {
    /// Into the region, from this offset.
    InPlace { at: u64 },
    /// Into a staging buffer, then by these copies into the region.
    Staged { copies: Range<u32> },
}

/// `count` runs of a staging buffer that go, packed, into a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopySpec {
    pub(crate) tensor: u32,
    /// First byte in the buffer.
    pub(crate) from: u64,
    pub(crate) run: u64,
    pub(crate) count: u64,
    /// Bytes between the starts of runs in the buffer.
    pub(crate) stride: u64,
    /// First byte in the region.
    pub(crate) to: u64,
}
