//! Tensors that are packed one after the other: slices, misaligned elements, small scattered
//! tensors, tensors in parts, and memory of the caller.

use super::Lowering;
use crate::plan::Piece;
use crate::schedule::fragment::{Fragment, fragments};
use crate::schedule::{CopySpec, LandingSpec, Origin, Place, Request};
use crate::storage::Access;
use crate::storage::region::SlotSpec;

/// Runs at least this long are read by themselves into their tensor; shorter ones share a staged
/// read, because a system call costs about as much as copying this much.
const OWN_READ: u64 = 64 << 10;

/// Packed tensors start on cache lines, in bytes.
const PACK_ALIGN: u64 = 64;

impl Lowering<'_> {
    pub(super) fn add_packed(&mut self, pieces: &[Piece]) {
        let mut batch: Option<Batch> = None;
        for piece in pieces {
            let place = self.packed_place(piece.tensor);
            let chunk = self.fragment_chunk(piece.source);
            for fragment in fragments(piece, chunk, false) {
                let access = self
                    .ways
                    .of_range(piece.source, fragment.offset..fragment.end());
                let alone = fragment.count == 1 && fragment.run >= OWN_READ;
                let lands = access == Access::Buffered
                    || self.lands_aligned(piece.source, &fragment, place);
                if alone && lands {
                    self.flush(batch.take());
                    self.read_into_tensor(piece.source, access, &fragment, place);
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

    pub(super) fn add_rows(&mut self, piece: &Piece) {
        let place = self.packed_place(piece.tensor);
        let chunk = self.fragment_chunk(piece.source);
        for fragment in fragments(piece, chunk, true) {
            match self
                .ways
                .of_range(piece.source, fragment.offset..fragment.end())
            {
                Access::Buffered => {
                    self.read_into_tensor(piece.source, Access::Buffered, &fragment, place);
                }
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

    /// Whether a direct read of the fragment may go straight to memory of the caller.
    fn lands_aligned(&self, source: u32, fragment: &Fragment, place: Place) -> bool {
        let origin = self.regions[place.region as usize].origin;
        let (Some(lent), Origin::Lent { tensor }) = (self.lent, origin) else {
            return false;
        };
        let address = lent[tensor as usize] + place.offset + fragment.dest;
        self.ways.direct_unit(source).is_some_and(|unit| {
            let numbers = [fragment.offset, fragment.run, address];
            numbers.iter().all(|number| number.is_multiple_of(unit))
        })
    }

    fn read_into_tensor(&mut self, source: u32, access: Access, fragment: &Fragment, place: Place) {
        self.requests.push(Request {
            source,
            offset: fragment.offset,
            len: fragment.run,
            needed: fragment.run,
            access,
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
            Access::Direct => self.ways.direct_unit(batch.source).unwrap_or(1),
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
        let region = if self.lent.is_some() && planned.gather.is_none() {
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

    /// Largest read of fragments, whose access is not known before they are cut.
    fn fragment_chunk(&self, source: u32) -> u64 {
        if self.ways.may_be_direct(source) {
            self.decision.direct_chunk
        } else {
            self.decision.buffered_chunk
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
