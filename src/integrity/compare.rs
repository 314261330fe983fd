//! What differs between two checkpoints, whatever their layouts: names, types, shapes, bytes.
//!
//! Both are read at the same time, in pieces and each under half of the budget; of a piece only its
//! digest is kept. The exact place of a difference is looked up afterwards, in the one piece that
//! differs first.

use serde::Serialize;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::pieces::{Cut, cuts_of, piece_number, rename_piece};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::load::{CancelToken, Digests};
use crate::storage::BackendKind;
use crate::tensor::Shape;

/// Bytes of a piece at most.
const PIECE_BYTES: u64 = 16 << 20;

/// Differing tensors whose first differing byte is looked up; of the others the piece is known.
const EXACT: usize = 64;

/// How to compare.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// Who reads.
    pub backend: BackendKind,
    /// Bytes in memory at most, both checkpoints together.
    pub budget: u64,
    /// Ends it from another thread.
    pub cancel: CancelToken,
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self {
            backend: BackendKind::Default,
            budget: 512 << 20,
            cancel: CancelToken::default(),
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Tensors that are the same in both.
    pub same: u64,
    /// Bytes that were compared.
    pub compared_bytes: u64,
    /// Names that only the first has.
    pub only_in_a: Vec<Box<str>>,
    /// Names that only the second has.
    pub only_in_b: Vec<Box<str>>,
    /// Names that both have, with what differs.
    pub differing: Vec<Difference>,
}

impl Comparison {
    /// Whether nothing differs.
    pub fn is_same(&self) -> bool {
        self.only_in_a.is_empty() && self.only_in_b.is_empty() && self.differing.is_empty()
    }
}

/// A tensor that is not the same in both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The tensor.
    pub name: Box<str>,
    /// What differs first.
    #[serde(flatten)]
    pub what: What,
}

/// What differs first of: dtype, shape, bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum What {
    /// The element types.
    Dtype {
        /// In the first.
        a: Dtype,
        /// In the second.
        b: Dtype,
    },
    /// The dimensions.
    Shape {
        /// In the first.
        a: Shape,
        /// In the second.
        b: Shape,
    },
    /// The bytes.
    Bytes {
        /// The first differing byte within the tensor, or where it was not looked up the start of
        /// the 16 MiB that it is in.
        first: u64,
    },
}

/// Compares two checkpoints. `progress` is told the bytes of each as they are read.
///
/// # Errors
/// What [`Loader::stream`](crate::Loader::stream) reports of either.
pub fn compare(
    a: &Checkpoint,
    b: &Checkpoint,
    options: &CompareOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Comparison> {
    let mut found = Comparison::default();
    let mut pairs: Vec<(Cut, Cut)> = Vec::new();
    for (at, ours) in a.tensors().iter().enumerate() {
        let name = &ours.name;
        let Some(position) = b.position(name) else {
            found.only_in_a.push(name.clone());
            continue;
        };
        let theirs = &b.tensors()[position];
        if ours.dtype != theirs.dtype {
            let what = What::Dtype {
                a: ours.dtype,
                b: theirs.dtype,
            };
            found.add(name, what);
        } else if ours.shape != theirs.shape {
            let what = What::Shape {
                a: ours.shape.clone(),
                b: theirs.shape.clone(),
            };
            found.add(name, what);
        } else {
            // A strided tensor comes in one piece, and so must its counterpart.
            let strided = ours.strides.is_some() || theirs.strides.is_some();
            let chunk = if strided { u64::MAX } else { PIECE_BYTES };
            pairs.extend(cuts_of(at, ours, 0, chunk).map(|cut| {
                let tensor = position;
                (cut, Cut { tensor, ..cut })
            }));
            found.same += 1;
        }
    }
    let only_in_b = b.tensors().iter().filter(|t| a.position(&t.name).is_none());
    found.only_in_b = only_in_b.map(|tensor| tensor.name.clone()).collect();

    let of_a = pairs.iter().map(|pair| pair.0).collect::<Vec<_>>();
    let of_b = pairs.iter().map(|pair| pair.1).collect::<Vec<_>>();
    found.compared_bytes = of_a.iter().map(|cut| cut.len).sum();
    let (of_first, of_second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| digests(b, &of_b, options, progress));
        let first = digests(a, &of_a, options, progress);
        let second = second
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (first, second)
    });
    let (of_first, of_second) = (of_first?, of_second?);
    let mut last = None;
    for (number, (cut, other)) in pairs.iter().enumerate() {
        // Pieces of a tensor follow each other: the first that differs is reported.
        if of_first[number] != of_second[number] && last != Some(cut.tensor) {
            last = Some(cut.tensor);
            let exact = found.differing.len() < EXACT;
            let first = match exact {
                true => cut.at + first_difference((a, *cut), (b, *other))?,
                false => cut.at,
            };
            found.same -= 1;
            found.add(&a.tensors()[cut.tensor].name, What::Bytes { first });
        }
    }
    found.only_in_a.sort();
    found.only_in_b.sort();
    found.differing.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

impl Comparison {
    fn add(&mut self, name: &str, what: What) {
        let name = name.into();
        self.differing.push(Difference { name, what });
    }
}

/// The digest of every cut.
fn digests(
    checkpoint: &Checkpoint,
    cuts: &[Cut],
    options: &CompareOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Option<[u8; 32]>>> {
    let name = |piece: usize| &*checkpoint.tensors()[cuts[piece].tensor].name;
    let loader = checkpoint
        .pieces(cuts.iter().copied().enumerate())?
        .loader()
        .backend(options.backend)
        .budget((options.budget / 2).max(1))
        .cancel_with(options.cancel.clone())
        .digests(Digests::Sha256);
    let mut digests = vec![None; cuts.len()];
    for piece in loader.stream()? {
        let piece = piece.map_err(|error| rename_piece(error, name))?;
        progress(piece.bytes().len() as u64);
        digests[piece_number(&piece)] = piece.sha256().copied();
    }
    Ok(digests)
}

/// Where two pieces begin to differ, from their starts; 0 where they do not any more.
fn first_difference(a: (&Checkpoint, Cut), b: (&Checkpoint, Cut)) -> Result<u64> {
    let load = |(checkpoint, cut): (&Checkpoint, Cut)| {
        let name = |_| &*checkpoint.tensors()[cut.tensor].name;
        let loaded = checkpoint.pieces([(0, cut)])?.load();
        loaded.map_err(|error| rename_piece(error, name))
    };
    let (a, b) = (load(a)?, load(b)?);
    let bytes = a.iter().zip(b.iter()).next();
    let differs = bytes.and_then(|(a, b)| {
        let pairs = a.bytes().iter().zip(b.bytes());
        pairs.enumerate().find(|(_, (a, b))| a != b)
    });
    Ok(differs.map_or(0, |(at, _)| at as u64))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::formats::Layout;
    use crate::storage::{MemorySource, Source};

    fn checkpoint(index: &str, bytes: Vec<u8>) -> Checkpoint {
        let source: Arc<dyn Source> = Arc::new(MemorySource::new("tensor.data_0", bytes));
        let layout = Layout::ServerlessLlm;
        Checkpoint::from_sources(layout, vec![source], Some(index.as_bytes())).unwrap()
    }

    #[test]
    fn each_kind_of_difference_is_found_and_named() {
        let bytes: Vec<u8> = (0..64).collect();
        let a = checkpoint(
            r#"{"same": [0, 8, [8], [1], "u8", 0], "type": [8, 4, [4], [1], "u8", 0],
                "shape": [12, 4, [4], [1], "u8", 0], "mine": [0, 0, [0], [1], "u8", 0],
                "bytes": [16, 8, [8], [1], "u8", 0], "view": [32, 6, [3, 2], [1, 3], "u8", 0]}"#,
            bytes.clone(),
        );
        let mut other = bytes.clone();
        other[19] = 99;
        other[40..46].copy_from_slice(&[32, 35, 33, 36, 34, 37]);
        let b = checkpoint(
            r#"{"same": [0, 8, [8], [1], "u8", 0], "type": [8, 4, [4], [1], "i8", 0],
                "shape": [12, 4, [2, 2], [2, 1], "u8", 0], "yours": [0, 0, [0], [1], "u8", 0],
                "bytes": [16, 8, [8], [1], "u8", 0], "view": [40, 6, [3, 2], [2, 1], "u8", 0]}"#,
            other,
        );
        let options = CompareOptions::default();
        let found = compare(&a, &b, &options, &|_| {}).unwrap();
        assert_eq!(found.same, 2);
        assert_eq!(found.only_in_a, ["mine".into()]);
        assert_eq!(found.only_in_b, ["yours".into()]);
        let names: Vec<_> = found.differing.iter().map(|d| &*d.name).collect();
        assert_eq!(names, ["bytes", "shape", "type"]);
        assert_eq!(found.differing[0].what, What::Bytes { first: 3 });
        assert!(compare(&a, &a, &options, &|_| {}).unwrap().is_same());
    }
}
