//! Parts of tensors: ranges and steps per dimension, and the share of one rank of many.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::TensorMeta;
use crate::text::counted;

/// A part of a tensor. The result keeps every dimension; only lengths change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Slice {
    /// One entry per dimension, outermost first; `None` takes all of it. A range counts rows and
    /// must satisfy `start <= end <= length`; an empty range gives a tensor without bytes.
    Ranges(Vec<Option<Range<u64>>>),
    /// One entry per dimension, outermost first; `None` takes all of it. The last of the rows must
    /// lie in the dimension; no rows give a tensor without bytes.
    Steps(Vec<Option<Steps>>),
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

/// Rows of one dimension: `count` of them from `start`, each `step` after the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Steps {
    /// The first row. Without meaning where there are none.
    pub start: u64,
    /// How many rows.
    pub count: u64,
    /// From one row to the next, at least 1. Without meaning for fewer than two rows.
    pub step: u64,
}

impl Steps {
    /// Rows that follow each other.
    pub(super) fn range(start: u64, count: u64) -> Self {
        Self {
            start,
            count,
            step: 1,
        }
    }

    /// The same rows of a dimension of `len`, with nothing in it that has no meaning. `None` where
    /// they leave it.
    fn within(self, len: u64) -> Option<Self> {
        if self.count == 0 {
            return Some(Self::range(0, 0));
        }
        let reach = (self.count - 1).checked_mul(self.step)?;
        let last = self.start.checked_add(reach)?;
        let step = if self.count == 1 { 1 } else { self.step };
        (last < len).then_some(Self { step, ..self })
    }
}

/// As a range of Python: `start:end:step`.
impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reach = u128::from(self.count) * u128::from(self.step);
        write!(f, "{}:{}", self.start, u128::from(self.start) + reach)?;
        match self.step {
            1 => Ok(()),
            step => write!(f, ":{step}"),
        }
    }
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

/// What is taken of each dimension. Steps of fewer than two rows are 1.
pub(super) type Window = SmallVec<[Steps; 4]>;

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
            Slice::Steps(steps) => {
                let still = |steps: &Option<Steps>| steps.is_some_and(|steps| steps.step == 0);
                match steps.iter().position(still) {
                    None => Ok(()),
                    Some(dim) => Err(invalid(format!(
                        "steps of 0 rows in dimension {dim} lead nowhere"
                    ))
                    .help("take steps of at least 1 row")),
                }
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
                one_for_each_dimension(ranges.len(), meta)?;
                ranges
                    .iter()
                    .zip(&meta.shape)
                    .enumerate()
                    .map(|(dim, (range, &len))| match range {
                        None => Ok(Steps::range(0, len)),
                        Some(range) if range.end <= len => {
                            Ok(Steps::range(range.start, range.end - range.start))
                        }
                        Some(range) => Err(invalid(format!(
                            "the range {}..{} leaves dimension {dim}, which has {len} rows",
                            range.start, range.end
                        ))),
                    })
                    .collect()
            }
            Slice::Steps(steps) => {
                one_for_each_dimension(steps.len(), meta)?;
                steps
                    .iter()
                    .zip(&meta.shape)
                    .enumerate()
                    .map(|(dim, (steps, &len))| match steps {
                        None => Ok(Steps::range(0, len)),
                        Some(steps) => steps.within(len).ok_or_else(|| {
                            invalid(format!(
                                "{} from row {} in steps of {} leave dimension {dim}, which has {len} rows",
                                counted(steps.count, "row"),
                                steps.start,
                                steps.step,
                            ))
                        }),
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
                let mut window: Window = whole(&meta.shape);
                window[dim] = Steps::range(
                    rank * share + rank.min(remainder),
                    share + u64::from(rank < remainder),
                );
                Ok(window)
            }
        }
    }
}

/// The window that takes everything.
pub(super) fn whole(shape: &[u64]) -> Window {
    shape.iter().map(|&len| Steps::range(0, len)).collect()
}

fn one_for_each_dimension(entries: usize, meta: &TensorMeta) -> Result<()> {
    if entries == meta.shape.len() {
        return Ok(());
    }
    Err(invalid(format!(
        "the slice has {entries} dimensions, the tensor {} (shape {:?})",
        meta.shape.len(),
        meta.shape
    ))
    .help("give one entry or None for each dimension"))
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

    /// So many rows of the second of two dimensions.
    fn steps(start: u64, count: u64, step: u64) -> Slice {
        Slice::Steps(vec![None, Some(Steps { start, count, step })])
    }

    #[test]
    fn steps_reach_the_last_row_and_mean_nothing_below_two_rows() {
        let window = |slice: Slice| slice.window(&tensor(&[10, 4])).unwrap()[1];
        assert_eq!(window(steps(1, 2, 2)).to_string(), "1:5:2");
        assert_eq!(window(steps(0, 2, 3)).step, 3);
        assert_eq!(window(steps(0, 4, 1)), Steps::range(0, 4));
        assert_eq!(window(steps(3, 1, u64::MAX)), Steps::range(3, 1));
        assert_eq!(window(steps(u64::MAX, 0, u64::MAX)), Steps::range(0, 0));
        let all = Slice::Steps(vec![None, None]).window(&tensor(&[10, 4]));
        assert_eq!(all.unwrap(), whole(&[10, 4]));
        let long = Steps {
            start: 1,
            count: 2,
            step: u64::MAX - 2,
        };
        let slice = Slice::Steps(vec![Some(long)]);
        assert_eq!(slice.window(&tensor(&[u64::MAX])).unwrap()[0], long);
        let json = serde_json::to_string(&slice).unwrap();
        assert_eq!(serde_json::from_str::<Slice>(&json).unwrap(), slice);
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
                    assert_eq!(window[0], Steps::range(0, 3));
                    assert_eq!((window[1].start, window[1].step), (next, 1));
                    let count = window[1].count;
                    assert!(count == len / world || count == len / world + 1);
                    next += count;
                }
                assert_eq!(next, len);
            }
        }
        let all = shard(0, u64::MAX - 1, u64::MAX, Split::Balanced);
        assert_eq!(
            all.window(&tensor(&[u64::MAX])).unwrap()[0],
            Steps::range(u64::MAX - 1, 1)
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_numbers() {
        let cases: [(Slice, &[&str]); 14] = [
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
            (Slice::Steps(vec![None]), &["1 dimensions", "tensor 2"]),
            (steps(0, 2, 0), &["steps of 0", "dimension 1"]),
            (
                steps(1, 2, 3),
                &["2 rows", "row 1", "steps of 3", "dimension 1", "4 rows"],
            ),
            (steps(4, 1, 1), &["1 row ", "row 4"]),
            (steps(1, u64::MAX, u64::MAX), &["dimension 1"]),
            (steps(u64::MAX, 2, 1), &["dimension 1"]),
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
        assert_eq!(window.as_slice(), [Steps::range(4, 0)]);
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
