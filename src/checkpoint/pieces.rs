//! A checkpoint cut into pieces of bounded size, for work that needs every byte and no tensor whole:
//! converting, comparing, verifying.
//!
//! The pieces are a checkpoint of their own, of the same sources, whose tensors are runs of bytes:
//! whatever reads checkpoints reads pieces, with every backend and under every budget.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{Checkpoint, Contents};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::formats::Names;
use crate::storage::Source;
use crate::tensor::{Extent, Tensor, TensorMeta};

/// A run of the contiguous bytes of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Position in [`Checkpoint::tensors`].
    pub(crate) tensor: usize,
    /// First byte within the tensor.
    pub(crate) at: u64,
    /// Length in bytes; not 0.
    pub(crate) len: u64,
}

impl Checkpoint {
    /// The pieces that `cuts` name, as tensors whose names are the positions of their cuts (see
    /// [`piece_number`]). A tensor with strides is one piece or none.
    pub(crate) fn pieces(&self, cuts: impl IntoIterator<Item = (usize, Cut)>) -> Result<Self> {
        let tensors: Vec<TensorMeta> = cuts
            .into_iter()
            .map(|(number, cut)| {
                let whole = &self.tensors()[cut.tensor];
                // Numbers of one length sort as names, too.
                let name = format!("{number:020}").into();
                match whole.strides {
                    Some(_) => TensorMeta {
                        name,
                        ..whole.clone()
                    },
                    None => TensorMeta {
                        name,
                        dtype: Dtype::U8,
                        shape: smallvec![cut.len],
                        strides: None,
                        extents: cut_extents(&whole.extents, cut.at, cut.len),
                    },
                }
            })
            .collect();
        let sources = self.sources().to_vec();
        self.of_pieces(sources, tensors)
    }

    /// Runs of bytes of other `sources`, under numbers as for [`pieces`](Self::pieces), read by the
    /// engine of this checkpoint.
    pub(crate) fn runs_of(
        &self,
        sources: Vec<Arc<dyn Source>>,
        runs: impl IntoIterator<Item = (usize, Extent)>,
    ) -> Result<Self> {
        let tensors = runs.into_iter().map(|(number, run)| TensorMeta {
            name: format!("{number:020}").into(),
            dtype: Dtype::U8,
            shape: smallvec![run.len],
            strides: None,
            extents: smallvec![run],
        });
        let tensors = tensors.collect();
        self.of_pieces(sources, tensors)
    }

    fn of_pieces(
        &self,
        sources: Vec<Arc<dyn Source>>,
        mut tensors: Vec<TensorMeta>,
    ) -> Result<Self> {
        tensors.sort_by(|a, b| {
            let place = |meta: &TensorMeta| {
                let first = meta.extents.first();
                first.map(|extent| (extent.source, extent.offset))
            };
            (place(a), &a.name).cmp(&(place(b), &b.name))
        });
        let names =
            Names::build(tensors.len(), |at| &tensors[at].name).expect("every number occurs once");
        let contents = Contents {
            sources,
            tensors,
            names,
            metadata: super::Metadata::default(),
        };
        Self::new(
            self.engine().clone(),
            self.inner.place.clone(),
            self.layout(),
            contents,
        )
    }
}

/// The position of the cut that a piece was made of.
pub(crate) fn piece_number(piece: &Tensor) -> usize {
    piece.name().parse().expect("pieces are named by numbers")
}

/// An error about a piece, as one about its tensor.
pub(crate) fn rename_piece<'n>(error: Error, name: impl Fn(usize) -> &'n str) -> Error {
    match error.tensor_name().and_then(|piece| piece.parse().ok()) {
        Some(number) => error.tensor(name(number)),
        None => error,
    }
}

/// The bytes `at..at + len` of what `extents` hold one after the other.
fn cut_extents(extents: &[Extent], at: u64, len: u64) -> SmallVec<[Extent; 1]> {
    let (mut skip, mut left) = (at, len);
    let mut cut = SmallVec::new();
    for extent in extents {
        let before = skip.min(extent.len);
        skip -= before;
        let taken = left.min(extent.len - before);
        if taken > 0 {
            cut.push(Extent {
                source: extent.source,
                offset: extent.offset + before,
                len: taken,
            });
            left -= taken;
        }
    }
    cut
}

/// Cuts of one tensor at every multiple of `chunk`, counted from `start` bytes before its first.
pub(crate) fn cuts_of(
    tensor: usize,
    meta: &TensorMeta,
    start: u64,
    chunk: u64,
) -> impl Iterator<Item = Cut> + use<> {
    let (len, whole) = (meta.nbytes(), meta.strides.is_some());
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let room = match whole {
            true => len,
            false => chunk - (start + at) % chunk,
        };
        let cut = Cut {
            tensor,
            at,
            len: room.min(len - at),
        };
        at += cut.len;
        Some(cut)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_a_tensor_and_its_extents_exactly() {
        let extents = [(0, 5, 10), (2, 0, 1), (3, 7, 9)].map(|(source, offset, len)| Extent {
            source,
            offset,
            len,
        });
        let meta = TensorMeta {
            name: "a".into(),
            dtype: Dtype::U16,
            shape: smallvec![10],
            strides: None,
            extents: extents.into_iter().collect(),
        };
        let cuts: Vec<_> = cuts_of(0, &meta, 3, 8)
            .map(|cut| (cut.at, cut.len))
            .collect();
        assert_eq!(cuts, [(0, 5), (5, 8), (13, 7)]);
        let extent = |source, offset, len| Extent {
            source,
            offset,
            len,
        };
        assert_eq!(cut_extents(&extents, 0, 5)[..], [extent(0, 5, 5)]);
        assert_eq!(
            cut_extents(&extents, 5, 8)[..],
            [extent(0, 10, 5), extent(2, 0, 1), extent(3, 7, 2)]
        );
        assert_eq!(cut_extents(&extents, 13, 7)[..], [extent(3, 9, 7)]);
    }
}
