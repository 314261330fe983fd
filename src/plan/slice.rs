//! Parts of tensors: ranges per dimension, and the share of one rank of many.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::TensorMeta;

/// A part of a tensor. The result keeps every dimension; only lengths change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Slice {
    /// One entry per dimension, outermost first; `None` takes all of it. A range counts rows and
    /// must satisfy `start <= end <= length`; an empty range gives a tensor without bytes.
    Ranges(Vec<Option<Range<u64>>>),
    /// The share of one rank when a dimension is divided among `world` ranks.
    Shard {
        /// Which dimension is divided; 0 is the outermost.
        dim: usize,
        /// Whose share, from 0.
        rank: u64,
        /// How many shares there are.
        world: u64,
        /// What to do with a remainder.
        split: Split,
    },
}

/// How a dimension that the number of ranks does not divide is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Equal shares; a remainder is an error.
    Even,
    /// The first `length % world` ranks get one row more than the others.
    Balanced,
}

/// What is taken of each dimension: (first row, number of rows).
pub(super) type Window = SmallVec<[(u64, u64); 4]>;

impl Slice {
    /// What can be said against a slice before any tensor is known.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Slice::Ranges(ranges) => {
                for (dim, range) in ranges.iter().enumerate() {
                    if let Some(range) = range
                        && range.start > range.end
                    {
                        return Err(invalid(format!(
                            "the range {}..{} of dimension {dim} ends before it starts",
                            range.start, range.end
                        )));
                    }
                }
                Ok(())
            }
            Slice::Shard { world: 0, .. } => {
                Err(invalid("a tensor cannot be divided among 0 ranks"))
            }
            Slice::Shard { rank, world, .. } if rank >= world => Err(invalid(format!(
                "rank {rank} does not exist: {world} ranks are numbered from 0 to {}",
                world - 1
            ))),
            Slice::Shard { .. } => Ok(()),
        }
    }

    /// The window that this slice cuts from the tensor.
    pub(super) fn window(&self, meta: &TensorMeta) -> Result<Window> {
        self.check()
            .and_then(|()| self.rows(meta))
            .map_err(|error| error.tensor(&*meta.name))
    }

    fn rows(&self, meta: &TensorMeta) -> Result<Window> {
        let rank_of_tensor = meta.shape.len();
        match self {
            Slice::Ranges(ranges) => {
                if ranges.len() != rank_of_tensor {
                    return Err(invalid(format!(
                        "the slice has {} dimensions, the tensor {rank_of_tensor} (shape {:?})",
                        ranges.len(),
                        meta.shape
                    ))
                    .help("give one range or None for each dimension"));
                }
                ranges
                    .iter()
                    .zip(&meta.shape)
                    .enumerate()
                    .map(|(dim, (range, &len))| match range {
                        None => Ok((0, len)),
                        Some(range) if range.end <= len => {
                            Ok((range.start, range.end - range.start))
                        }
                        Some(range) => Err(invalid(format!(
                            "the range {}..{} leaves dimension {dim}, which has {len} rows",
                            range.start, range.end
                        ))),
                    })
                    .collect()
            }
            &Slice::Shard {
                dim,
                rank,
                world,
                split,
            } => {
                let Some(&len) = meta.shape.get(dim) else {
                    return Err(invalid(format!(
                        "there is no dimension {dim} to divide: the tensor has {rank_of_tensor} (shape {:?})",
                        meta.shape
                    )));
                };
                let (share, remainder) = (len / world, len % world);
                if split == Split::Even && remainder != 0 {
                    return Err(invalid(format!(
                        "dimension {dim} has {len} rows, which {world} ranks do not divide evenly"
                    ))
                    .help("choose the balanced split, or another number of ranks"));
                }
                let mut window: Window = meta.shape.iter().map(|&len| (0, len)).collect();
                window[dim] = (
                    rank * share + rank.min(remainder),
                    share + u64::from(rank < remainder),
                );
                Ok(window)
            }
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn tensor(shape: &[u64]) -> TensorMeta {
        TensorMeta {
            name: "layer.weight".into(),
            dtype: Dtype::F32,
            shape: shape.into(),
            strides: None,
            extents: SmallVec::new(),
        }
    }

    fn shard(dim: usize, rank: u64, world: u64, split: Split) -> Slice {
        Slice::Shard {
            dim,
            rank,
            world,
            split,
        }
    }

    #[test]
    fn balanced_shares_differ_by_one_row_and_cover_everything() {
        for len in 0..20 {
            for world in 1..24 {
                let mut next = 0;
                for rank in 0..world {
                    let window = shard(1, rank, world, Split::Balanced)
                        .window(&tensor(&[3, len]))
                        .unwrap();
                    assert_eq!(window[0], (0, 3));
                    assert_eq!(window[1].0, next);
                    assert!(window[1].1 == len / world || window[1].1 == len / world + 1);
                    next += window[1].1;
                }
                assert_eq!(next, len);
            }
        }
        let all = shard(0, u64::MAX - 1, u64::MAX, Split::Balanced);
        assert_eq!(
            all.window(&tensor(&[u64::MAX])).unwrap()[0],
            (u64::MAX - 1, 1)
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_numbers() {
        let cases: [(Slice, &[&str]); 8] = [
            (shard(0, 0, 0, Split::Even), &["0 ranks"]),
            (shard(0, 4, 4, Split::Even), &["rank 4", "4 ranks"]),
            (
                shard(0, 1, 4, Split::Even),
                &["dimension 0", "10", "4", "balanced"],
            ),
            (
                shard(2, 0, 1, Split::Even),
                &["no dimension 2", "2 (shape [10, 4])"],
            ),
            (Slice::Ranges(vec![None]), &["1 dimensions", "tensor 2"]),
            (
                Slice::Ranges(vec![None, Some(3..5)]),
                &["3..5", "dimension 1", "4 rows"],
            ),
            #[expect(clippy::reversed_empty_ranges, reason = "a reversed range is the case")]
            (Slice::Ranges(vec![Some(3..2), None]), &["3..2"]),
            (Slice::Ranges(vec![]), &["0 dimensions"]),
        ];
        for (slice, words) in cases {
            let error = slice.window(&tensor(&[10, 4])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert_eq!(error.tensor_name(), Some("layer.weight"));
            for word in words {
                assert!(error.to_string().contains(word), "{word:?} in {error}");
            }
        }
    }

    #[test]
    fn empty_ranges_and_scalars_are_fine() {
        let window = Slice::Ranges(vec![Some(4..4)])
            .window(&tensor(&[4]))
            .unwrap();
        assert_eq!(window.as_slice(), [(4, 0)]);
        assert!(
            Slice::Ranges(vec![])
                .window(&tensor(&[]))
                .unwrap()
                .is_empty()
        );
        assert!(
            shard(0, 0, 1, Split::Balanced)
                .window(&tensor(&[]))
                .is_err()
        );
    }
}
