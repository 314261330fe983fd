//! Which pieces are read together, and in which form.

use std::borrow::Cow;
use std::ops::Range;

use crate::plan::{Piece, ReadPlan, SpanKind};
use crate::settings::{Order, Settings};

/// In-place spans lie on pages of their own, at most two partly used. Plans of more spans than
/// `FEW_SPANS` pack those below `SMALL_SPAN`, which keeps that waste under 4 %.
const FEW_SPANS: usize = 1024;
const SMALL_SPAN: u64 = 256 << 10;

/// Whoever takes tensors as they arrive should have one to work on soon: where the first tensor is
/// more than one of so many parts of all bytes, ...
const LONG_WAIT_PART: u64 = 32;
/// ... the first one that is at most one of so many parts is read before it. Embeddings, the usual
/// first tensors, are 5 to 10 % of a model, and the norms behind them next to nothing.
const HEAD_START_PART: u64 = 64;

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
        self.give_head_start(pieces, &mut units);
        (Cow::Borrowed(pieces), units)
    }

    /// Moves a small tensor to the front where the first one would be long in coming.
    fn give_head_start(&self, pieces: &[Piece], units: &mut Vec<Unit>) {
        let stored = |piece: &Piece| self.plan.tensors[piece.tensor as usize].stored_bytes;
        let all: u64 = self.plan.tensors.iter().map(|t| t.stored_bytes).sum();
        let waits_long = units.first().is_some_and(|unit| {
            stored(&pieces[unit.pieces.start]).saturating_mul(LONG_WAIT_PART) > all
        });
        if !waits_long {
            return;
        }
        // Tensors that share bytes stay together, or each would get memory of its own.
        let stands_alone = |at: usize, unit: &Unit| {
            let piece = &pieces[at];
            let before = &pieces[unit.pieces.start..at];
            let after = pieces[at + 1..unit.pieces.end].first();
            before
                .iter()
                .all(|other| other.offset + other.run <= piece.offset)
                && after.is_none_or(|next| next.offset >= piece.offset + piece.run)
        };
        let found = units.iter().enumerate().find_map(|(index, unit)| {
            let is_small = |&at: &usize| stored(&pieces[at]).saturating_mul(HEAD_START_PART) <= all;
            let mut candidates = unit.pieces.clone().filter(is_small);
            let at = candidates
                .next()
                .filter(|&at| unit.form == Form::InPlace && stands_alone(at, unit))?;
            Some((index, at))
        });
        let Some((index, at)) = found else { return };
        let unit = units.remove(index);
        let part = |pieces: Range<usize>| Unit {
            pieces,
            form: unit.form,
        };
        let rest = [unit.pieces.start..at, at + 1..unit.pieces.end];
        let rest = rest.into_iter().filter(|pieces| !pieces.is_empty());
        units.splice(index..index, rest.map(part));
        units.insert(0, part(at..at + 1));
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
