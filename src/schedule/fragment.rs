//! Cutting strided pieces of a plan into fragments that fit one read each.

use crate::plan::Piece;

/// A part of a piece whose extent in the file is at most one chunk (or one run's part of it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) tensor: u32,
    /// First byte in the source.
    pub(super) offset: u64,
    pub(super) run: u64,
    pub(super) count: u64,
    pub(super) stride: u64,
    /// First byte in the tensor's buffer.
    pub(super) dest: u64,
}

impl Fragment {
    /// One past the last byte in the source.
    pub(super) fn end(&self) -> u64 {
        self.offset + (self.count - 1) * self.stride + self.run
    }
}

/// Fragments of `piece`, ascending. Rows stay together while their extent is at most `chunk`
/// bytes, unless `by_row`; rows longer than a chunk are cut where the file offset is a multiple of
/// the chunk, so that direct reads stay aligned.
pub(super) fn fragments(
    piece: &Piece,
    chunk: u64,
    by_row: bool,
) -> impl Iterator<Item = Fragment> + '_ {
    let rows_at_once = if by_row || piece.run > chunk {
        1
    } else {
        ((chunk - piece.run) / piece.stride.max(1) + 1).min(piece.count)
    };
    let mut row = 0;
    let mut within = 0;
    std::iter::from_fn(move || {
        if row >= piece.count {
            return None;
        }
        let start = piece.offset + row * piece.stride;
        let dest = piece.dest + row * piece.run;
        if piece.run > chunk {
            let from = start + within;
            let to = ((from / chunk + 1) * chunk).min(start + piece.run);
            let run = to - from;
            let fragment = Fragment {
                tensor: piece.tensor,
                offset: from,
                run,
                count: 1,
                stride: run,
                dest: dest + within,
            };
            within += run;
            if within == piece.run {
                within = 0;
                row += 1;
            }
            return Some(fragment);
        }
        let count = rows_at_once.min(piece.count - row);
        row += count;
        let stride = if count == 1 { piece.run } else { piece.stride };
        Some(Fragment {
            tensor: piece.tensor,
            offset: start,
            run: piece.run,
            count,
            stride,
            dest,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// (file offset, buffer offset) of every byte of a strided piece.
    fn bytes_of(offset: u64, run: u64, count: u64, stride: u64, dest: u64) -> Vec<(u64, u64)> {
        (0..count)
            .flat_map(|k| (0..run).map(move |b| (offset + k * stride + b, dest + k * run + b)))
            .collect()
    }

    proptest! {
        #[test]
        fn fragments_cover_every_byte_once_and_fit_the_chunk(
            offset in 0..500_u64, run in 1..60_u64, count in 1..20_u64, gap in 0..40_u64,
            dest in 0..100_u64, chunk in 1..80_u64, by_row: bool,
        ) {
            let stride = if count == 1 { run } else { run + gap };
            let piece = Piece { tensor: 3, source: 0, offset, run, count, stride, dest };
            let mut covered = Vec::new();
            for fragment in fragments(&piece, chunk, by_row) {
                prop_assert!(fragment.end() - fragment.offset <= chunk);
                prop_assert!(!by_row || fragment.count == 1);
                covered.extend(bytes_of(fragment.offset, fragment.run, fragment.count, fragment.stride, fragment.dest));
                prop_assert_eq!(fragment.tensor, 3);
            }
            prop_assert_eq!(covered, bytes_of(offset, run, count, stride, dest));
        }
    }
}
