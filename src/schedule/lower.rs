//! From plan to schedule: placing tensors in memory and cutting spans into requests.

use std::ops::Range;

use crate::error::Result;
use crate::facts::{Facts, Residency};
use crate::plan::{Piece, ReadPlan, SpanKind};
use crate::policy::{self, Decision, Preset};
use crate::schedule::fragment::{Fragment, fragments};
use crate::schedule::{
    AccessMode, CopySpec, LandingSpec, Order, Origin, Place, RegionSpec, Request, Schedule,
    Settings,
};
use crate::storage::region::SlotSpec;
use crate::storage::{Access, BackendKind, PAGE};

const PAGE_BYTES: u64 = PAGE as u64;

/// Regions are at most this long, cut between tensors, so that one region's bookkeeping stays
/// small and its memory comes and goes in bounded steps.
const REGION_BYTES: u64 = 1 << 30;

/// Under a budget a region is a part of it, so that several are in flight or waiting at once.
const BUDGET_PARTS: u64 = 8;
const SMALLEST_BUDGET_REGION: u64 = 1 << 20;

/// In-place spans lie on pages of their own, at most two partly used. Plans of more spans than
/// `FEW_SPANS` gather those below `SMALL_SPAN`, which keeps that waste under 4 %.
const FEW_SPANS: usize = 1024;
const SMALL_SPAN: u64 = 256 << 10;

/// Runs at least this long are read by themselves into their tensor; shorter ones share a staged
/// read, because a system call costs about as much as copying this much.
const OWN_READ: u64 = 64 << 10;

/// Packed tensors start on cache lines, in bytes.
const PACK_ALIGN: u64 = 64;

/// Pages of a mapping are brought in by steps of this many bytes, so that a cancel is soon seen.
const MAPPED_CHUNK: u64 = 16 << 20;

pub(super) fn lower(
    plan: &ReadPlan,
    facts: &Facts,
    settings: &Settings,
    preset: &Preset,
    lend: bool,
) -> Result<Schedule> {
    settings.check()?;
    let access = if settings.backend == BackendKind::Mmap {
        AccessMode::Buffered
    } else {
        settings.access
    };
    let shape = policy::shape(plan, facts, access);
    let decision = policy::decide(&shape, facts, settings, preset)?;
    let mut lowering = Lowering {
        plan,
        facts,
        settings,
        access,
        lend,
        absent: facts
            .sources
            .iter()
            .map(|source| source.residency.absorb_islands(preset.island_bytes))
            .collect(),
        cap: settings.budget.map_or(REGION_BYTES, |budget| {
            (budget / BUDGET_PARTS).clamp(SMALLEST_BUDGET_REGION, REGION_BYTES)
        }),
        decision,
        regions: Vec::new(),
        requests: Vec::new(),
        copies: Vec::new(),
        places: vec![None; plan.tensors.len()],
        span_region: None,
        packed_region: None,
    };
    let (pieces, units) = lowering.units();
    for unit in units {
        lowering.add(&pieces[unit.pieces.clone()], &unit);
    }
    Ok(lowering.finish())
}

/// Pieces that are read together in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unit {
    /// Positions in the list of pieces.
    pieces: Range<usize>,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Memory looks like the file: reads land where tensors live.
    InPlace,
    /// Tensors are packed; the whole stretch is read.
    Packed,
    /// Tensors are packed; each run is read by itself.
    Rows,
}

struct Lowering<'a> {
    plan: &'a ReadPlan,
    facts: &'a Facts,
    settings: &'a Settings,
    access: AccessMode,
    /// Tensors go to memory of the caller, one region each.
    lend: bool,
    /// For each source what is resident, small islands left out.
    absent: Vec<Residency>,
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
    /// The plan's pieces in reading order, and the units that they form.
    fn units(&self) -> (Vec<Piece>, Vec<Unit>) {
        let mut units = Vec::new();
        if self.settings.order == Order::Name {
            let mut pieces = self.plan.pieces.clone();
            pieces.sort_by(|a, b| {
                let name = |piece: &Piece| &self.plan.tensors[piece.tensor as usize].name;
                name(a).cmp(name(b)).then(a.dest.cmp(&b.dest))
            });
            for (at, piece) in pieces.iter().enumerate() {
                let form = if piece.count > 1 && piece.stride - piece.run > self.plan.gap_limit {
                    Form::Rows
                } else if self.fits_in_place(piece) && piece.run >= SMALL_SPAN {
                    Form::InPlace
                } else {
                    Form::Packed
                };
                units.push(Unit {
                    pieces: at..at + 1,
                    form,
                });
            }
            return (pieces, units);
        }
        let pieces = self.plan.pieces.clone();
        let smallest_in_place = if self.plan.spans.len() <= FEW_SPANS {
            0
        } else {
            SMALL_SPAN
        };
        for span in &self.plan.spans {
            let range = span.pieces.start as usize..span.pieces.end as usize;
            match span.kind {
                SpanKind::Rows => units.push(Unit {
                    pieces: range,
                    form: Form::Rows,
                }),
                SpanKind::Dense => self.split_dense(&pieces, range, smallest_in_place, &mut units),
            }
        }
        (pieces, units)
    }

    /// Cuts a dense span where its pieces change form, and in-place stretches between tensors
    /// where they would outgrow a region.
    fn split_dense(
        &self,
        pieces: &[Piece],
        range: Range<usize>,
        smallest: u64,
        units: &mut Vec<Unit>,
    ) {
        let mut start = range.start;
        while start < range.end {
            let in_place = self.fits_in_place(&pieces[start]);
            let first = pieces[start].offset;
            let mut covered = first;
            let mut end = start;
            while end < range.end && self.fits_in_place(&pieces[end]) == in_place {
                let piece = &pieces[end];
                let piece_end = covered.max(piece.offset + piece.run);
                let between_tensors = piece.offset >= covered;
                if in_place && end > start && between_tensors && piece_end - first > self.cap {
                    break;
                }
                covered = piece_end;
                end += 1;
            }
            let form = if in_place && covered - first >= smallest {
                Form::InPlace
            } else {
                Form::Packed
            };
            units.push(Unit {
                pieces: start..end,
                form,
            });
            start = end;
        }
    }

    /// Whether the piece is a whole tensor that may live where its bytes lie in the file.
    fn fits_in_place(&self, piece: &Piece) -> bool {
        let tensor = &self.plan.tensors[piece.tensor as usize];
        let align = tensor
            .dtype
            .alignment()
            .max(self.settings.align.unwrap_or(1));
        !self.lend
            && piece.count == 1
            && piece.run == tensor.stored_bytes
            && tensor.gather.is_none()
            && piece.offset.is_multiple_of(align)
    }

    fn add(&mut self, pieces: &[Piece], unit: &Unit) {
        match unit.form {
            Form::InPlace => self.add_in_place(pieces),
            Form::Packed => self.add_packed(pieces),
            Form::Rows => pieces.iter().for_each(|piece| self.add_rows(piece)),
        }
    }

    fn add_in_place(&mut self, pieces: &[Piece]) {
        let source = pieces[0].source;
        let start = pieces[0].offset;
        let end = pieces
            .iter()
            .map(|piece| piece.offset + piece.run)
            .max()
            .unwrap_or(start);
        let into_page = start % PAGE_BYTES;
        let mapped =
            self.decision.backend == BackendKind::Mmap && self.facts.sources[source as usize].local;
        let (region, at) = if mapped {
            let origin = Origin::File {
                source,
                offset: start - into_page,
            };
            (self.new_region(origin), into_page)
        } else {
            let pages = (into_page + end - start).next_multiple_of(PAGE_BYTES);
            let region = self.region_with_room(self.span_region, pages);
            self.span_region = Some(region);
            (region, self.regions[region as usize].len + into_page)
        };
        let spec = &mut self.regions[region as usize];
        let mut covered = 0;
        for piece in pieces {
            let bytes = at + piece.offset - start..at + piece.offset - start + piece.run;
            // Tensors that overlap in the file share memory, hence a slot.
            if piece.offset < covered {
                let slot = spec.slots.last_mut().expect("an earlier piece made a slot");
                slot.bytes.end = slot.bytes.end.max(bytes.end as usize);
                slot.tenants += 1;
                spec.tenants
                    .last_mut()
                    .expect("one entry for each slot")
                    .push(piece.tensor);
            } else {
                spec.slots.push(SlotSpec {
                    bytes: bytes.start as usize..bytes.end as usize,
                    tenants: 1,
                });
                spec.tenants.push(smallvec::smallvec![piece.tensor]);
            }
            covered = covered.max(piece.offset + piece.run);
            let slot = (spec.slots.len() - 1) as u32;
            self.places[piece.tensor as usize] = Some(Place {
                region,
                slot,
                offset: bytes.start,
            });
        }
        let len = at + end - start;
        spec.len = if mapped {
            len
        } else {
            len.next_multiple_of(PAGE_BYTES)
        };

        for (segment, access) in self.segments(source, start..end) {
            let (chunk, unit) = match access {
                _ if mapped => (MAPPED_CHUNK, 1),
                Access::Buffered => (self.decision.buffered_chunk, 1),
                Access::Direct => (
                    self.decision.direct_chunk,
                    self.direct_unit(source).unwrap_or(1),
                ),
            };
            // Cut at multiples of the chunk, so that direct reads stay aligned.
            let chunk = chunk.next_multiple_of(unit);
            let mut from = segment.start - segment.start % unit;
            while from < segment.end {
                let to = ((from / chunk + 1) * chunk).min(segment.end);
                self.requests.push(Request {
                    source,
                    offset: from,
                    len: to.next_multiple_of(unit) - from,
                    needed: to - from,
                    access,
                    region,
                    landing: LandingSpec::InPlace {
                        at: at + from - start,
                    },
                });
                from = to.next_multiple_of(unit);
            }
        }
    }

    fn add_packed(&mut self, pieces: &[Piece]) {
        let mut batch: Option<Batch> = None;
        for piece in pieces {
            let place = self.packed_place(piece.tensor);
            let chunk = self.fragment_chunk(piece.source);
            for fragment in fragments(piece, chunk, false) {
                let access = self.fragment_access(piece.source, &fragment);
                if access == Access::Buffered && fragment.count == 1 && fragment.run >= OWN_READ {
                    self.flush(batch.take());
                    self.read_into_tensor(piece.source, &fragment, place);
                    continue;
                }
                let joins = batch.as_ref().is_some_and(|batch| {
                    batch.access == access
                        && batch.region == place.region
                        && batch.start <= fragment.offset
                        && batch.end.max(fragment.end()) - batch.start <= chunk
                });
                if !joins {
                    self.flush(batch.take());
                }
                let first_copy = self.copies.len() as u32;
                let batch = batch.get_or_insert(Batch {
                    source: piece.source,
                    access,
                    region: place.region,
                    start: fragment.offset,
                    end: fragment.end(),
                    first_copy,
                });
                batch.end = batch.end.max(fragment.end());
                self.copies.push(copy_of(&fragment, place));
            }
        }
        self.flush(batch);
    }

    fn add_rows(&mut self, piece: &Piece) {
        let place = self.packed_place(piece.tensor);
        let chunk = self.fragment_chunk(piece.source);
        for fragment in fragments(piece, chunk, true) {
            match self.fragment_access(piece.source, &fragment) {
                Access::Buffered => self.read_into_tensor(piece.source, &fragment, place),
                Access::Direct => {
                    let first_copy = self.copies.len() as u32;
                    self.copies.push(copy_of(&fragment, place));
                    self.flush(Some(Batch {
                        source: piece.source,
                        access: Access::Direct,
                        region: place.region,
                        start: fragment.offset,
                        end: fragment.end(),
                        first_copy,
                    }));
                }
            }
        }
    }

    fn read_into_tensor(&mut self, source: u32, fragment: &Fragment, place: Place) {
        self.requests.push(Request {
            source,
            offset: fragment.offset,
            len: fragment.run,
            needed: fragment.run,
            access: Access::Buffered,
            region: place.region,
            landing: LandingSpec::InPlace {
                at: place.offset + fragment.dest,
            },
        });
    }

    fn flush(&mut self, batch: Option<Batch>) {
        let Some(batch) = batch else { return };
        let unit = match batch.access {
            Access::Buffered => 1,
            Access::Direct => self.direct_unit(batch.source).unwrap_or(1),
        };
        let offset = batch.start - batch.start % unit;
        let copies = batch.first_copy..self.copies.len() as u32;
        for copy in &mut self.copies[copies.start as usize..] {
            // Until now relative to the source.
            copy.from -= offset;
        }
        self.requests.push(Request {
            source: batch.source,
            offset,
            len: (batch.end - offset).next_multiple_of(unit),
            needed: batch.end - offset,
            access: batch.access,
            region: batch.region,
            landing: LandingSpec::Staged { copies },
        });
    }

    /// The packed memory of a tensor, reserved at its first piece.
    fn packed_place(&mut self, tensor: u32) -> Place {
        if let Some(place) = self.places[tensor as usize] {
            return place;
        }
        let planned = &self.plan.tensors[tensor as usize];
        let align = planned
            .dtype
            .alignment()
            .max(self.settings.align.unwrap_or(1))
            .max(PACK_ALIGN);
        let region = if self.lend && planned.gather.is_none() {
            self.new_region(Origin::Lent { tensor })
        } else {
            let region = self.region_with_room(self.packed_region, planned.stored_bytes + align);
            self.packed_region = Some(region);
            region
        };
        let spec = &mut self.regions[region as usize];
        let offset = spec.len.next_multiple_of(align);
        let end = offset + planned.stored_bytes;
        spec.slots.push(SlotSpec {
            bytes: offset as usize..end as usize,
            tenants: 1,
        });
        spec.tenants.push(smallvec::smallvec![tensor]);
        spec.len = end;
        if planned.gather.is_some() {
            spec.charge += planned.nbytes;
        }
        let place = Place {
            region,
            slot: (spec.slots.len() - 1) as u32,
            offset,
        };
        self.places[tensor as usize] = Some(place);
        place
    }

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

    /// Alignment of direct reads in bytes; `None` where they cannot be had.
    fn direct_unit(&self, source: u32) -> Option<u64> {
        let direct = self.facts.sources[source as usize].direct?;
        let unit = u64::from(direct.memory.max(direct.offset).max(1));
        // Regions are congruent with files by pages; a device that wants more is read buffered.
        (unit.is_power_of_two() && unit <= PAGE_BYTES).then_some(unit)
    }

    /// How each part of a range is read.
    fn segments(&self, source: u32, range: Range<u64>) -> Vec<(Range<u64>, Access)> {
        match self.access {
            _ if self.direct_unit(source).is_none() => vec![(range, Access::Buffered)],
            AccessMode::Buffered => vec![(range, Access::Buffered)],
            AccessMode::Direct => vec![(range, Access::Direct)],
            AccessMode::Auto => self.absent[source as usize]
                .split(range)
                .into_iter()
                .map(|(part, resident)| {
                    (
                        part,
                        if resident {
                            Access::Buffered
                        } else {
                            Access::Direct
                        },
                    )
                })
                .collect(),
        }
    }

    fn fragment_access(&self, source: u32, fragment: &Fragment) -> Access {
        let range = fragment.offset..fragment.end();
        let len = range.end - range.start;
        let direct = match self.access {
            _ if self.direct_unit(source).is_none() => false,
            AccessMode::Buffered => false,
            AccessMode::Direct => true,
            AccessMode::Auto => self.absent[source as usize].resident_bytes(range) < len,
        };
        if direct {
            Access::Direct
        } else {
            Access::Buffered
        }
    }

    fn fragment_chunk(&self, source: u32) -> u64 {
        let direct = self.access != AccessMode::Buffered && self.direct_unit(source).is_some();
        if direct {
            self.decision.direct_chunk
        } else {
            self.decision.buffered_chunk
        }
    }

    fn finish(mut self) -> Schedule {
        for region in &mut self.regions {
            region.charge += region.len;
        }
        // A budget admits region after region; all requests of one come before those of the next.
        self.requests.sort_by_key(|request| request.region);
        let staging_bytes = self
            .requests
            .iter()
            .filter(|request| matches!(request.landing, LandingSpec::Staged { .. }))
            .map(|request| request.len)
            .max()
            .unwrap_or(0);
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

/// A staged request in the making.
struct Batch {
    source: u32,
    access: Access,
    region: u32,
    start: u64,
    end: u64,
    first_copy: u32,
}

/// The copy of a fragment, with `from` still relative to the source.
fn copy_of(fragment: &Fragment, place: Place) -> CopySpec {
    CopySpec {
        tensor: fragment.tensor,
        from: fragment.offset,
        run: fragment.run,
        count: fragment.count,
        stride: fragment.stride,
        to: place.offset + fragment.dest,
    }
}
