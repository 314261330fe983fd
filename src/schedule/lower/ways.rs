//! Through the page cache or around it, range by range.

use std::ops::Range;

use super::PAGE_BYTES;
use crate::facts::{Facts, Residency};
use crate::settings::AccessMode;
use crate::storage::Access;

/// What is known of the sources that decides how their ranges are read.
pub(super) struct Ways<'a> {
    facts: &'a Facts,
    mode: AccessMode,
    /// For each source what is resident, islands left out that are not worth a read of their own.
    resident: Vec<Residency>,
}

impl<'a> Ways<'a> {
    /// `island_bytes`: resident stretches below it, inside of an absent one, are read with it.
    pub(super) fn new(facts: &'a Facts, mode: AccessMode, island_bytes: u64) -> Self {
        let resident = facts.sources.iter();
        Self {
            facts,
            mode,
            resident: resident
                .map(|source| source.residency.absorb_islands(island_bytes))
                .collect(),
        }
    }

    /// Whether the source is a local file.
    pub(super) fn is_local(&self, source: u32) -> bool {
        self.facts.sources[source as usize].local
    }

    /// Alignment of direct reads in bytes; `None` where they cannot be had.
    pub(super) fn direct_unit(&self, source: u32) -> Option<u64> {
        let direct = self.facts.sources[source as usize].direct?;
        let unit = u64::from(direct.memory.max(direct.offset).max(1));
        // Regions are congruent with files by pages; a device that wants more is read buffered.
        (unit.is_power_of_two() && unit <= PAGE_BYTES).then_some(unit)
    }

    /// Whether any part of the source may be read around the page cache.
    pub(super) fn may_be_direct(&self, source: u32) -> bool {
        self.mode != AccessMode::Buffered && self.direct_unit(source).is_some()
    }

    /// How each part of a range is read.
    pub(super) fn segments(&self, source: u32, range: Range<u64>) -> Vec<(Range<u64>, Access)> {
        if !self.may_be_direct(source) {
            return vec![(range, Access::Buffered)];
        }
        if self.mode == AccessMode::Direct {
            return vec![(range, Access::Direct)];
        }
        let parts = self.resident[source as usize].split(range).into_iter();
        parts
            .map(|(part, resident)| (part, access(!resident)))
            .collect()
    }

    /// How a range is read that is not worth cutting.
    pub(super) fn of_range(&self, source: u32, range: Range<u64>) -> Access {
        let len = range.end - range.start;
        let is_resident = || self.resident[source as usize].resident_bytes(range) == len;
        let direct =
            self.may_be_direct(source) && (self.mode == AccessMode::Direct || !is_resident());
        access(direct)
    }
}

fn access(direct: bool) -> Access {
    if direct {
        Access::Direct
    } else {
        Access::Buffered
    }
}
