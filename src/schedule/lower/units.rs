//! Which pieces are read together, and in which form.

use std::borrow::Cow;
use std::ops::Range;

use crate::plan::{Piece, ReadPlan, SpanKind};
use crate::settings::{Order, Settings};

/// In-place spans lie on pages of their own, at most two partly used. Plans of more spans than
/// `FEW_SPANS` pack those below `SMALL_SPAN`, which keeps that waste under 4 %.
const FEW_SPANS: usize = 1024;
const SMALL_SPAN: u64 = 256 << 10;

/// Pieces that are read together in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    /// Positions in the list of pieces.
    pub(super) pieces: Range<usize>,
    pub(super) form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Memory looks like the file: reads land where tensors live.
    InPlace,
    /// Tensors are packed; the whole stretch is read.
    Packed,
    /// Tensors are packed; each run is read by itself.
    Rows,
}

/// Cuts a plan into units.
pub(super) struct Cutter<'a> {
    pub(super) plan: &'a ReadPlan,
    pub(super) settings: &'a Settings,
    /// Longest region in bytes.
    pub(super) cap: u64,
    /// Whether tensors go to memory of the caller, which never looks like the file.
    pub(super) lend: bool,
}

impl<'a> Cutter<'a> {
    /// The plan's pieces in reading order, and the units that they form.
    pub(super) fn units(&self) -> (Cow<'a, [Piece]>, Vec<Unit>) {
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
            return (Cow::Owned(pieces), units);
        }
        let pieces = &self.plan.pieces;
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
                SpanKind::Dense => self.split_dense(pieces, range, smallest_in_place, &mut units),
            }
        }
        (Cow::Borrowed(pieces), units)
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
}
