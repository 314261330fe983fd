//! From plan to schedule: placing tensors in memory and cutting spans into requests.

mod in_place;
mod packed;
mod units;
mod ways;

use crate::error::Result;
use crate::facts::Facts;
use crate::plan::ReadPlan;
use crate::policy::{self, Applied, Decision};
use crate::schedule::{CopySpec, LandingSpec, Origin, Place, RegionSpec, Request, Schedule};
use crate::settings::{AccessMode, Order, Settings};
use crate::storage::staging::buffer_bytes;
use crate::storage::{BackendKind, PAGE};

use self::units::{Cutter, Form};
use self::ways::Ways;

const PAGE_BYTES: u64 = PAGE as u64;

/// Regions are at most this long, cut between tensors, so that one region's bookkeeping stays
/// small and its memory comes and goes in bounded steps.
const REGION_BYTES: u64 = 1 << 30;

/// Under a budget a region is a part of it, so that several are in flight or waiting at once.
const BUDGET_PARTS: u64 = 8;
const SMALLEST_BUDGET_REGION: u64 = 1 << 20;

pub(super) fn lower(
    plan: &ReadPlan,
    facts: &Facts,
    settings: &Settings,
    applied: &Applied,
    lent: Option<&[u64]>,
) -> Result<Schedule> {
    settings.check()?;
    let access = if settings.backend == BackendKind::Mmap {
        AccessMode::Buffered
    } else {
        settings.access
    };
    let shape = policy::shape(plan, facts, access);
    let decision = policy::decide(&shape, facts, settings, applied)?;
    let cap = settings.budget.map_or(REGION_BYTES, |budget| {
        (budget / BUDGET_PARTS).clamp(SMALLEST_BUDGET_REGION, REGION_BYTES)
    });
    let cutter = Cutter {
        plan,
        settings,
        cap,
        lend: lent.is_some(),
    };
    let (pieces, units) = cutter.units();
    let mut lowering = Lowering {
        plan,
        settings,
        ways: Ways::new(facts, access, applied.preset.island_bytes),
        lent,
        cap,
        decision,
        regions: Vec::new(),
        requests: Vec::new(),
        copies: Vec::new(),
        places: vec![None; plan.tensors.len()],
        span_region: None,
        packed_region: None,
    };
    for unit in units {
        let pieces = &pieces[unit.pieces];
        match unit.form {
            Form::InPlace => lowering.add_in_place(pieces),
            Form::Packed => lowering.add_packed(pieces),
            Form::Rows => pieces.iter().for_each(|piece| lowering.add_rows(piece)),
        }
    }
    Ok(lowering.finish(applied))
}

struct Lowering<'a> {
    plan: &'a ReadPlan,
    settings: &'a Settings,
    ways: Ways<'a>,
    /// Tensors go to memory of the caller, one region each, that starts so many bytes into a page.
    lent: Option<&'a [u64]>,
    /// Longest region in bytes.
    cap: u64,
    decision: Decision,
    regions: Vec<RegionSpec>,
    requests: Vec<Request>,
    copies: Vec<CopySpec>,
    places: Vec<Option<Place>>,
    /// The region that in-place spans are added to.
    span_region: Option<u32>,
    /// The region that packed tensors are added to.
    packed_region: Option<u32>,
}

impl Lowering<'_> {
    fn region_with_room(&mut self, open: Option<u32>, bytes: u64) -> u32 {
        // By name, regions hold names in a row: a tensor that waits for one in a later region
        // would keep its own region's share of the budget, and the later one might never get in.
        let may_grow = |region: u32| {
            self.settings.order == Order::Arrival || region as usize + 1 == self.regions.len()
        };
        match open {
            Some(region)
                if may_grow(region) && self.regions[region as usize].len + bytes <= self.cap =>
            {
                region
            }
            _ => self.new_region(Origin::Arena),
        }
    }

    fn new_region(&mut self, origin: Origin) -> u32 {
        self.regions.push(RegionSpec {
            len: 0,
            origin,
            slots: Vec::new(),
            tenants: Vec::new(),
            charge: 0,
        });
        (self.regions.len() - 1) as u32
    }

    fn finish(mut self, applied: &Applied) -> Schedule {
        for region in &mut self.regions {
            region.charge += region.len;
        }
        // A budget admits region after region; all requests of one come before those of the next.
        self.requests.sort_by_key(|request| request.region);
        let longest_staged = self
            .requests
            .iter()
            .filter(|request| matches!(request.landing, LandingSpec::Staged { .. }))
            .map(|request| request.len)
            .max()
            .unwrap_or(0);
        let staging_bytes = buffer_bytes(longest_staged);
        let (settings, preset) = (self.settings, &applied.preset);
        policy::bound_staging(&mut self.decision, settings, preset, staging_bytes);
        Schedule {
            decision: self.decision,
            regions: self.regions,
            requests: self.requests,
            copies: self.copies,
            places: self.places,
            stored: self
                .plan
                .tensors
                .iter()
                .map(|tensor| tensor.stored_bytes)
                .collect(),
            staging_bytes,
            budget: self.settings.budget,
            order: self.settings.order,
            needed_bytes: self.plan.figures().needed_bytes,
        }
    }
}
