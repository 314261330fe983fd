//! Spans whose memory looks like the file: reads land where tensors live.

use super::{Lowering, PAGE_BYTES};
use crate::plan::Piece;
use crate::schedule::{LandingSpec, Origin, Place, Request};
use crate::storage::region::SlotSpec;
use crate::storage::{Access, BackendKind};

/// Pages of a mapping are brought in by steps of this many bytes, so that a cancel is soon seen.
const MAPPED_CHUNK: u64 = 16 << 20;

impl Lowering<'_> {
    pub(super) fn add_in_place(&mut self, pieces: &[Piece]) {
        let source = pieces[0].source;
        let start = pieces[0].offset;
        let end = pieces
            .iter()
            .map(|piece| piece.offset + piece.run)
            .max()
            .unwrap_or(start);
        let into_page = start % PAGE_BYTES;
        let mapped = self.decision.backend == BackendKind::Mmap && self.ways.is_local(source);
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

        for (segment, access) in self.ways.segments(source, start..end) {
            let (chunk, unit) = match access {
                _ if mapped => (MAPPED_CHUNK, 1),
                Access::Buffered => (self.decision.buffered_chunk, 1),
                Access::Direct => (
                    self.decision.direct_chunk,
                    self.ways.direct_unit(source).unwrap_or(1),
                ),
            };
            // Cut where the memory, not the file, is at a multiple of the chunk: then no two reads
            // fault the same huge page, which both would zero. Memory and file are congruent by
            // pages, so direct reads stay aligned.
            let chunk = chunk.next_multiple_of(unit);
            let mut from = segment.start - segment.start % unit;
            while from < segment.end {
                let into_region = at + from - start;
                let to = (from + chunk - into_region % chunk).min(segment.end);
                self.requests.push(Request {
                    source,
                    offset: from,
                    len: to.next_multiple_of(unit) - from,
                    needed: to - from,
                    access,
                    region,
                    landing: LandingSpec::InPlace { at: into_region },
                });
                from = to.next_multiple_of(unit);
            }
        }
    }
}
