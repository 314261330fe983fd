//! Slow and obvious counterparts of planning, to check plans against: for tests and fuzzing only.
//! Everything here panics where a plan is wrong.

use smallvec::SmallVec;

use super::{ReadPlan, Slice, Span, SpanKind, Split};
use crate::tensor::{TensorMeta, contiguous_strides};

/// Carries a plan out over sources in memory and gives the results, contiguous, in the plan's
/// order. Bytes outside of the spans are never looked at.
pub fn execute_naively(plan: &ReadPlan, sources: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut buffers: Vec<Vec<u8>> = plan
        .tensors
        .iter()
        .map(|tensor| vec![0; tensor.stored_bytes as usize])
        .collect();
    for span in &plan.spans {
        let source = &sources[span.source as usize];
        let read = &source[span.offset as usize..(span.offset + span.len) as usize];
        for piece in plan.pieces_of(span) {
            for k in 0..piece.count {
                let from = (piece.offset - span.offset + k * piece.stride) as usize;
                let to = (piece.dest + k * piece.run) as usize;
                let run = piece.run as usize;
                buffers[piece.tensor as usize][to..to + run]
                    .copy_from_slice(&read[from..from + run]);
            }
        }
    }
    plan.tensors
        .iter()
        .zip(buffers)
        .map(|(tensor, buffer)| {
            let Some(gather) = &tensor.gather else {
                return buffer;
            };
            let size = (tensor.dtype.bits() / 8) as usize;
            let mut result = Vec::with_capacity(tensor.nbytes as usize);
            for_each_index(&tensor.shape, |indices| {
                let element = gather.offset + dot(indices, &gather.strides);
                let at = element as usize * size;
                result.extend_from_slice(&buffer[at..at + size]);
            });
            result
        })
        .collect()
}

/// The bytes of a slice of a tensor, taken element by element and bit by bit. `None` where
/// elements smaller than a byte do not come in runs of whole bytes.
pub fn slice_naively(
    meta: &TensorMeta,
    slice: Option<&Slice>,
    sources: &[Vec<u8>],
) -> Option<Vec<u8>> {
    let mut stored = Vec::new();
    for extent in &meta.extents {
        let source = &sources[extent.source as usize];
        stored.extend_from_slice(&source[extent.offset as usize..extent.end() as usize]);
    }
    let strides: SmallVec<[u64; 4]> = match &meta.strides {
        Some(strides) => SmallVec::from_slice(strides),
        None => contiguous_strides(&meta.shape),
    };
    let window: Vec<Vec<u64>> = meta
        .shape
        .iter()
        .enumerate()
        .map(|(dim, &rows)| rows_naively(slice, dim, rows))
        .collect();
    let shape: Vec<u64> = window.iter().map(|rows| rows.len() as u64).collect();

    let width = u64::from(meta.dtype.bits());
    let mut bits: Vec<bool> = Vec::new();
    let mut expected_next = None;
    let mut whole_bytes = true;
    for_each_index(&shape, |indices| {
        let moved: Vec<u64> = indices
            .iter()
            .zip(&window)
            .map(|(index, rows)| rows[*index as usize])
            .collect();
        let first = dot(&moved, &strides) * width;
        if expected_next != Some(first) {
            whole_bytes &=
                first.is_multiple_of(8) && expected_next.is_none_or(|end| end.is_multiple_of(8));
        }
        expected_next = Some(first + width);
        bits.extend(
            (first..first + width).map(|bit| stored[bit as usize / 8] >> (bit % 8) & 1 == 1),
        );
    });
    whole_bytes &= expected_next.is_none_or(|end| end.is_multiple_of(8));
    whole_bytes.then(|| {
        bits.chunks(8)
            .map(|byte| (0..8).map(|bit| u8::from(byte[bit]) << bit).sum())
            .collect()
    })
}

/// The rows that a slice takes of a dimension, one by one.
fn rows_naively(slice: Option<&Slice>, dim: usize, rows: u64) -> Vec<u64> {
    match slice {
        None => (0..rows).collect(),
        Some(Slice::Ranges(ranges)) => match &ranges[dim] {
            None => (0..rows).collect(),
            Some(range) => range.clone().collect(),
        },
        Some(Slice::Steps(steps)) => match &steps[dim] {
            None => (0..rows).collect(),
            Some(steps) => {
                let on_step = |row: &u64| {
                    *row >= steps.start && (row - steps.start).is_multiple_of(steps.step)
                };
                let taken: Vec<u64> = (0..rows)
                    .filter(on_step)
                    .take(steps.count as usize)
                    .collect();
                assert_eq!(
                    taken.len() as u64,
                    steps.count,
                    "the slice leaves its dimension"
                );
                taken
            }
        },
        Some(Slice::Shard { dim: other, .. }) if *other != dim => (0..rows).collect(),
        Some(&Slice::Shard {
            rank, world, split, ..
        }) => {
            // Dealt out like cards: how many rows each rank ends up with.
            let mut shares = vec![0; world as usize];
            (0..rows).for_each(|row| shares[(row % world) as usize] += 1);
            if split == Split::Even {
                assert!(shares.iter().all(|share| *share == shares[0]));
            }
            let start: u64 = shares[..rank as usize].iter().sum();
            (start..start + shares[rank as usize]).collect()
        }
    }
}

/// Every combination of indices below `shape`, in row-major order.
fn for_each_index(shape: &[u64], mut visit: impl FnMut(&[u64])) {
    let total: u64 = shape.iter().product();
    let mut indices = vec![0; shape.len()];
    for step in 0..total {
        let mut rest = step;
        for (index, rows) in indices.iter_mut().zip(shape).rev() {
            *index = rest % rows;
            rest /= rows;
        }
        visit(&indices);
    }
}

fn dot(indices: &[u64], strides: &[u64]) -> u64 {
    indices.iter().zip(strides).map(|(i, s)| i * s).sum()
}

/// Checks everything that a plan promises and that can be seen without its tensors.
pub fn check_invariants(plan: &ReadPlan) {
    let mut next_piece = 0;
    for (index, span) in plan.spans.iter().enumerate() {
        assert_eq!(span.pieces.start, next_piece, "each piece lies in one span");
        assert!(span.pieces.end > next_piece, "no span without pieces");
        next_piece = span.pieces.end;
        check_span(plan, span);
        if let Some(next) = plan.spans.get(index + 1) {
            let key = |span: &Span| (span.source, span.offset, span.len);
            assert!(key(span) <= key(next), "spans are sorted");
        }
    }
    assert_eq!(next_piece as usize, plan.pieces.len());
    let dense: Vec<&Span> = plan
        .spans
        .iter()
        .filter(|span| span.kind == SpanKind::Dense)
        .collect();
    for pair in dense
        .windows(2)
        .filter(|pair| pair[0].source == pair[1].source)
    {
        assert!(
            pair[1].offset - pair[0].offset > pair[0].len,
            "dense spans lie apart"
        );
        let gap = pair[1].offset - pair[0].offset - pair[0].len;
        assert!(gap > plan.gap_limit, "gaps up to the limit are bridged");
    }
    check_tensors(plan);

    let explanation = plan.explain();
    let figures = explanation.figures;
    assert!(figures.span_bytes >= figures.needed_bytes);
    assert_eq!(figures.tensors as usize, plan.tensors.len());
    assert_eq!(figures.files as usize, explanation.files.len());
    assert!(figures.ranges as usize >= plan.spans.len());
    assert!(!explanation.to_string().is_empty());
}

fn check_span(plan: &ReadPlan, span: &Span) {
    let end = span
        .offset
        .checked_add(span.len)
        .expect("spans do not wrap");
    assert!(
        end <= plan.sources[span.source as usize].len,
        "spans lie in their source"
    );
    let pieces = plan.pieces_of(span);
    match span.kind {
        SpanKind::Rows => assert!(pieces.len() == 1 && pieces[0].count > 1),
        SpanKind::Dense => {}
    }
    for piece in pieces {
        assert!(piece.run > 0 && piece.count > 0);
        assert_eq!(piece.stride == piece.run, piece.count == 1);
        assert!(piece.stride >= piece.run);
        assert_eq!(piece.source, span.source);
        assert!(piece.offset >= span.offset && piece.extent().end() <= end);
    }
    let keys = pieces.iter().map(|piece| (piece.extent(), piece.tensor));
    assert!(keys.is_sorted(), "pieces are sorted");
    assert_eq!(
        pieces[0].offset, span.offset,
        "spans begin with a needed byte"
    );
    let last = pieces.iter().map(|piece| piece.extent().end()).max();
    assert_eq!(last, Some(end), "spans end with a needed byte");
}

fn check_tensors(plan: &ReadPlan) {
    let mut fills: Vec<Vec<(u64, u64)>> = vec![Vec::new(); plan.tensors.len()];
    for piece in &plan.pieces {
        fills[piece.tensor as usize].push((piece.dest, piece.bytes()));
    }
    for (tensor, mut fills) in plan.tensors.iter().zip(fills) {
        assert_eq!(tensor.dtype.nbytes(&tensor.shape), Some(tensor.nbytes));
        fills.sort_unstable();
        let filled = fills.iter().fold(0, |filled, &(dest, bytes)| {
            assert_eq!(
                dest, filled,
                "pieces fill the buffer without holes or overlap"
            );
            filled + bytes
        });
        assert_eq!(filled, tensor.stored_bytes);
        match &tensor.gather {
            None => assert_eq!(tensor.stored_bytes, tensor.nbytes),
            Some(gather) => {
                assert_eq!(gather.strides.len(), tensor.shape.len());
                assert!(tensor.dtype.bits() >= 8 && tensor.nbytes > 0);
                let last: Vec<u64> = tensor.shape.iter().map(|rows| rows - 1).collect();
                let elements = gather.offset + dot(&last, &gather.strides) + 1;
                assert!(elements * u64::from(tensor.dtype.bits() / 8) <= tensor.stored_bytes);
            }
        }
    }
}

/// Checks the figures of a small plan by marking bytes one by one.
pub fn check_figures(plan: &ReadPlan) {
    let mut marks: Vec<Vec<bool>> = plan
        .sources
        .iter()
        .map(|source| vec![false; source.len as usize])
        .collect();
    let (mut ranges, mut read_bytes) = (0, 0);
    for span in &plan.spans {
        for piece in plan.pieces_of(span) {
            for k in 0..piece.count {
                let from = (piece.offset + k * piece.stride) as usize;
                marks[piece.source as usize][from..from + piece.run as usize].fill(true);
            }
        }
        match span.kind {
            SpanKind::Dense => (ranges, read_bytes) = (ranges + 1, read_bytes + span.len),
            SpanKind::Rows => {
                let piece = &plan.pieces_of(span)[0];
                ranges += piece.count;
                read_bytes += piece.bytes();
            }
        }
    }
    let needed = |marks: &Vec<bool>| marks.iter().filter(|mark| **mark).count() as u64;
    let explanation = plan.explain();
    let figures = explanation.figures;
    assert_eq!(figures.needed_bytes, marks.iter().map(needed).sum::<u64>());
    assert_eq!((figures.ranges, figures.span_bytes), (ranges, read_bytes));
    for file in &explanation.files {
        let index = plan
            .sources
            .iter()
            .position(|source| source.path == file.path);
        assert_eq!(file.needed_bytes, needed(&marks[index.unwrap()]));
    }
}
