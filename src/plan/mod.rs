//! What to read: from tensors and a selection to exact byte ranges.
//!
//! A [`ReadPlan`] is data. It names bytes of sources and places in the buffers of tensors, and
//! nothing of how they get there: no backend, no chunk, no alignment. Everything here is pure.
//!
//! ```
//! use tensora::plan::{PlanOptions, PlanSource, ReadPlan, Selection, Slice};
//! use tensora::{Dtype, Extent, TensorMeta};
//!
//! # fn main() -> tensora::Result<()> {
//! let weight = TensorMeta {
//!     name: "weight".into(),
//!     dtype: Dtype::F16,
//!     shape: [100, 8].as_slice().into(),
//!     strides: None,
//!     extents: [Extent { source: 0, offset: 64, len: 1600 }].as_slice().into(),
//! };
//! let sources = vec![PlanSource { path: "model.safetensors".into(), len: 1664 }];
//! let rows = Slice::Ranges(vec![Some(10..20), None]);
//! let selection = Selection::all().with_slice("weight", rows)?;
//! let plan = ReadPlan::from_parts(&[weight], sources, &selection, &PlanOptions::default())?;
//! assert_eq!((plan.spans[0].offset, plan.spans[0].len), (64 + 10 * 16, 10 * 16));
//! # Ok(())
//! # }
//! ```

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Extent, Shape, TensorMeta};

#[doc(hidden)]
pub mod cases;
#[doc(hidden)]
pub mod check;
mod coalesce;
mod explain;
mod pieces;
mod selection;
mod slice;
#[cfg(test)]
mod tests;

pub use coalesce::{Merged, coalesce};
pub use explain::{FileReads, PlanExplanation, PlanFigures};
pub use selection::Selection;
pub use slice::{Slice, Split, Steps};

/// Pieces in one plan, at most: 1 GiB of plan. Only millions of finely sliced tensors get there.
const MAX_PIECES: usize = 1 << 24;

/// How far reads may go beyond what is needed to be fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOptions {
    /// Bytes between two needed ranges that are read along with them, at most.
    pub gap_limit: u64,
    /// Bytes from one row of a sliced tensor to the next beyond which rows are read one by one,
    /// however small the gap between them is.
    pub dense_row_limit: u64,
}

impl Default for PlanOptions {
    /// Gaps up to 32 KiB, rows up to 4 MiB.
    fn default() -> Self {
        Self {
            gap_limit: 32 << 10,
            dense_row_limit: 4 << 20,
        }
    }
}

/// Exactly which bytes to read and where they belong.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadPlan {
    /// The selected tensors, in the order of the checkpoint.
    pub tensors: Vec<PlannedTensor>,
    /// The bytes of the tensors, in the order of the spans, and in a span by source, offset,
    /// length of the extent and tensor. Without row-by-row spans that is the order of the whole.
    pub pieces: Vec<Piece>,
    /// What to read, by source, offset and length. Dense spans do not overlap each other.
    pub spans: Vec<Span>,
    /// All sources of the checkpoint, read from or not.
    pub sources: Vec<PlanSource>,
    /// The [`PlanOptions::gap_limit`] that the plan was made with, in bytes.
    pub gap_limit: u64,
}

/// Something to read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanSource {
    /// The name of the source: the path of a file.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Length in bytes.
    pub len: u64,
}

/// A tensor of the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedTensor {
    /// The name in the checkpoint.
    pub name: Box<str>,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions after slicing, outermost first.
    pub shape: Shape,
    /// Bytes of the result: contiguous, row-major.
    pub nbytes: u64,
    /// Bytes of the buffer that the tensor's pieces fill, without holes or overlap. Without
    /// [`gather`](Self::gather) that buffer is the result.
    pub stored_bytes: u64,
    /// How to pick the result out of the buffer, where the buffer is not yet the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gather: Option<Gather>,
}

/// A strided view on a tensor's buffer, in elements: the element of the result with the indices
/// `i` is the element `offset + sum(i[k] * strides[k])` of the buffer. Elements are whole bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gather {
    /// The element of the buffer that all indices 0 name.
    pub offset: u64,
    /// One stride per dimension of the result; 0 repeats.
    pub strides: Box<[u64]>,
}

/// Equal runs at equal steps: `count` runs of `run` bytes, the `k`-th at `offset + k * stride` of
/// the source, going to `dest + k * run` of the tensor's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// Index into [`ReadPlan::tensors`].
    pub tensor: u32,
    /// Index into [`ReadPlan::sources`].
    pub source: u32,
    /// First byte in the source.
    pub offset: u64,
    /// Bytes of one run, at least 1.
    pub run: u64,
    /// Number of runs, at least 1.
    pub count: u64,
    /// Bytes from the start of one run to that of the next: more than `run`, or `run` where there
    /// is one run only.
    pub stride: u64,
    /// First byte in the tensor's buffer.
    pub dest: u64,
}

impl Piece {
    /// The bytes from the first run's start to the last one's end.
    pub fn extent(&self) -> Extent {
        Extent {
            source: self.source,
            offset: self.offset,
            len: (self.count - 1) * self.stride + self.run,
        }
    }

    /// Bytes that go to the tensor.
    pub fn bytes(&self) -> u64 {
        self.count * self.run
    }
}

/// Something to read in one go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Index into [`ReadPlan::sources`].
    pub source: u32,
    /// First byte in the source.
    pub offset: u64,
    /// Bytes from the first to the last that is needed.
    pub len: u64,
    /// Which of [`ReadPlan::pieces`] lie in it. Every piece lies in exactly one span.
    pub pieces: Range<u32>,
    /// Whether all of it is read.
    pub kind: SpanKind,
}

/// What of a span is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// All of it.
    Dense,
    /// The runs of its only piece, one by one.
    Rows,
}

impl ReadPlan {
    /// Plans the reading of `selection` out of `tensors` that lie in `sources`.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchTensor`] for a name or pattern that matches nothing;
    /// [`ErrorKind::InvalidArgument`] for a slice that does not fit, or begins or ends inside of a
    /// byte; [`ErrorKind::Unsupported`] for a reordered view of elements smaller than a byte;
    /// [`ErrorKind::Truncated`], [`ErrorKind::ShapeMismatch`] and [`ErrorKind::Overflow`] for
    /// tensors that do not fit their sources, which an opened checkpoint does not have.
    pub fn from_parts(
        tensors: &[TensorMeta],
        sources: Vec<PlanSource>,
        selection: &Selection,
        options: &PlanOptions,
    ) -> Result<ReadPlan> {
        let selected = selection.resolve(tensors)?;
        if u32::try_from(selected.len()).is_err() || u32::try_from(sources.len()).is_err() {
            return Err(too_large(format!(
                "{} tensors in {} files",
                selected.len(),
                sources.len()
            )));
        }
        let mut planned: Vec<PlannedTensor> = Vec::with_capacity(selected.len());
        let mut pieces = Vec::with_capacity(selected.len());
        let (mut nbytes, mut stored_bytes) = (0_u64, 0_u64);
        for selected in selected {
            let meta = &tensors[selected.index];
            let window = match selected.slice {
                Some(slice) => slice.window(meta)?,
                None => slice::whole(&meta.shape),
            };
            let tensor = pieces::lower(meta, planned.len() as u32, &window, &sources, &mut pieces)?;
            let sums = (
                nbytes.checked_add(tensor.nbytes),
                stored_bytes.checked_add(tensor.stored_bytes),
            );
            let (Some(nbytes_sum), Some(stored_sum)) = sums else {
                return Err(Error::new(
                    ErrorKind::Overflow,
                    "the selected tensors have more than 2^64 bytes together",
                )
                .tensor(tensor.name));
            };
            (nbytes, stored_bytes) = (nbytes_sum, stored_sum);
            if pieces.len() > MAX_PIECES {
                return Err(too_large(format!("more than {MAX_PIECES} pieces"))
                    .tensor(tensor.name)
                    .help("slice fewer dimensions, or load in several parts"));
            }
            planned.push(tensor);
        }
        let (pieces, spans) = cover(pieces, options);
        Ok(ReadPlan {
            tensors: planned,
            pieces,
            spans,
            sources,
            gap_limit: options.gap_limit,
        })
    }

    /// The pieces that lie in `span`.
    pub fn pieces_of(&self, span: &Span) -> &[Piece] {
        &self.pieces[span.pieces.start as usize..span.pieces.end as usize]
    }
}

/// Puts pieces into spans: neighbours together, and rows that are far apart by themselves.
fn cover(mut pieces: Vec<Piece>, options: &PlanOptions) -> (Vec<Piece>, Vec<Span>) {
    pieces.sort_unstable_by_key(|piece| (piece.extent(), piece.tensor, piece.dest));
    let is_dense = |piece: &Piece| {
        piece.count == 1
            || (piece.stride - piece.run <= options.gap_limit
                && piece.stride <= options.dense_row_limit)
    };
    let dense: Vec<Extent> = pieces
        .iter()
        .filter(|piece| is_dense(piece))
        .map(Piece::extent)
        .collect();
    let merged = coalesce(&dense, options.gap_limit);
    let mut spans: Vec<Span> = merged
        .iter()
        .map(|merged| span(merged.extent, SpanKind::Dense))
        .collect();

    // Rows that a dense span covers anyway, as when tied tensors are read whole and sliced, cost
    // nothing more in there. The last dense span that begins at or before a piece is the only one
    // that can hold it.
    let mut holders = Vec::with_capacity(pieces.len());
    for piece in &pieces {
        let extent = piece.extent();
        let place = (extent.source, extent.offset);
        let before =
            merged.partition_point(|merged| (merged.extent.source, merged.extent.offset) <= place);
        let holder = before.checked_sub(1).filter(|&index| {
            let holder = &merged[index].extent;
            holder.source == extent.source && holder.end() >= extent.end()
        });
        holders.push(holder.unwrap_or_else(|| {
            spans.push(span(extent, SpanKind::Rows));
            spans.len() - 1
        }));
    }

    // The sort keeps the order of pieces in a span, and that of rows which tie.
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&index| (spans[index].source, spans[index].offset, spans[index].len));
    let mut rank = vec![0; spans.len()];
    for (place, &index) in order.iter().enumerate() {
        rank[index] = place;
    }
    let mut spans: Vec<Span> = order.iter().map(|&index| spans[index].clone()).collect();
    let mut keyed: Vec<(usize, Piece)> = holders
        .iter()
        .map(|&holder| rank[holder])
        .zip(pieces)
        .collect();
    keyed.sort_by_key(|&(rank, _)| rank);
    for (index, &(rank, _)) in keyed.iter().enumerate() {
        let index = index as u32;
        let members = &mut spans[rank].pieces;
        if members.end == 0 {
            members.start = index;
        }
        members.end = index + 1;
    }
    (keyed.into_iter().map(|(_, piece)| piece).collect(), spans)
}

fn span(extent: Extent, kind: SpanKind) -> Span {
    Span {
        source: extent.source,
        offset: extent.offset,
        len: extent.len,
        pieces: 0..0,
        kind,
    }
}

fn too_large(what: String) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("the plan is too large: {what}"),
    )
}

/// Paths are bytes and JSON is text: what is not Unicode is replaced.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
