//! From a window on one tensor to the runs of bytes that hold it.
//!
//! A tensor is a strided view on its stored bytes (its extents, laid end to end). A window moves
//! the start of the view, shortens its dimensions, and takes their strides several at a time.
//! Dimensions are ordered by stride, neighbours that continue each other are merged, and what is
//! left is read off: the innermost contiguous part is a run, the dimension around it a number of
//! equal steps, and the dimensions around that are counted through, one piece each. Contiguous,
//! transposed and expanded tensors are all this one case; only views that overlap themselves are
//! read as one block.

use smallvec::SmallVec;

use super::slice::{Steps, Window};
use super::{Gather, Piece, PlanSource, PlannedTensor};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Extent, Shape, TensorMeta, contiguous_strides};

/// So many pieces of one tensor are always fine: 192 KiB of plan. Beyond them inner dimensions are
/// read whole where that keeps fewer bytes in memory, plan and buffer together. Slices of one
/// dimension need one piece, and others at most as many as their outer dimensions have rows.
pub(super) const FEW_TENSOR_PIECES: u64 = 4096;

/// Pieces of one tensor, at most: 48 MiB of plan. Beyond them inner dimensions are read whole
/// whatever that takes.
pub(super) const MAX_TENSOR_PIECES: u64 = 1 << 20;

/// A dimension of a view: rows and the elements between their starts.
#[derive(Clone, Copy)]
struct Axis {
    rows: u64,
    stride: u64,
}

/// Equal runs at equal steps, in bytes of the stored data before it is cut into extents.
#[derive(Clone, Copy)]
struct Strip {
    offset: u64,
    run: u64,
    count: u64,
    stride: u64,
    dest: u64,
}

/// Plans the window on one tensor: appends its pieces, which together fill the tensor's buffer.
pub(super) fn lower(
    meta: &TensorMeta,
    tensor: u32,
    window: &Window,
    sources: &[PlanSource],
    pieces: &mut Vec<Piece>,
) -> Result<PlannedTensor> {
    let strides = checked_strides(meta, sources)?;
    let shape: Shape = window.iter().map(|rows| rows.count).collect();
    let nbytes = meta
        .dtype
        .nbytes(&shape)
        .ok_or_else(|| unaligned(meta, window))?;
    let mut planned = PlannedTensor {
        name: meta.name.clone(),
        dtype: meta.dtype,
        nbytes,
        stored_bytes: 0,
        gather: None,
        shape,
    };
    if nbytes == 0 {
        return Ok(planned);
    }

    let axes: SmallVec<[Axis; 4]> = window
        .iter()
        .zip(&strides)
        .map(|(rows, &stride)| Axis {
            rows: rows.count,
            stride: stride * rows.step,
        })
        .collect();
    let mut walk = Walk::new(&axes, meta.dtype);
    if meta.dtype.bits() < 8 && walk.folds() {
        // Elements inside of bytes cannot be gathered one by one, so nothing may be read between.
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "this slice of the {} tensor of shape {:?} cannot be read on whole bytes in at most {MAX_TENSOR_PIECES} pieces",
                meta.dtype, meta.shape
            ),
        )
        .tensor(&*meta.name)
        .help("slice fewer dimensions"));
    }
    let gather_strides = walk.buffer_strides(&axes);
    if !is_contiguous(&planned.shape, &gather_strides) {
        if meta.dtype.bits() < 8 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "a transposed or expanded {} tensor cannot be put in order: its elements share bytes",
                    meta.dtype
                ),
            )
            .tensor(&*meta.name));
        }
        planned.gather = Some(Gather {
            offset: 0,
            strides: gather_strides.into_vec().into_boxed_slice(),
        });
    }

    let bytes = |elements| to_bytes(meta.dtype, elements).ok_or_else(|| unaligned(meta, window));
    let base = window
        .iter()
        .zip(&strides)
        .map(|(rows, &stride)| rows.start * stride)
        .sum();
    let extents = Extents::new(&meta.extents);
    let innermost = walk.levels.pop();
    let mut strip = Strip {
        offset: bytes(base)?,
        run: bytes(walk.run)?,
        count: innermost.map_or(1, |axis| axis.rows),
        stride: bytes(innermost.map_or(walk.run, |axis| axis.stride))?,
        dest: 0,
    };
    let outer = walk
        .levels
        .iter()
        .map(|axis| Ok((axis.rows, bytes(axis.stride)?)))
        .collect::<Result<SmallVec<[(u64, u64); 4]>>>()?;
    let base = strip.offset;
    for step in 0..outer.iter().map(|(rows, _)| rows).product() {
        let mut rest = step;
        strip.offset = base;
        for &(rows, stride) in outer.iter().rev() {
            strip.offset += rest % rows * stride;
            rest /= rows;
        }
        extents.cut(tensor, strip, pieces);
        strip.dest += strip.run * strip.count;
    }
    planned.stored_bytes = strip.dest;
    Ok(planned)
}

/// The strides of the whole tensor, after checking everything that the arithmetic below relies on:
/// that the extents lie in their sources and that the view stays in its stored bytes. Metadata of
/// an opened checkpoint always passes.
fn checked_strides(meta: &TensorMeta, sources: &[PlanSource]) -> Result<SmallVec<[u64; 4]>> {
    let fail = |kind, message: String| Error::new(kind, message).tensor(&*meta.name);
    let Some(nbytes) = meta.dtype.nbytes(&meta.shape) else {
        return Err(fail(
            ErrorKind::Overflow,
            format!(
                "{} of shape {:?} {}",
                meta.dtype,
                meta.shape,
                meta.dtype.why_no_size(&meta.shape)
            ),
        ));
    };
    let mut stored = 0_u64;
    for extent in &meta.extents {
        let Some(source) = sources.get(extent.source as usize) else {
            return Err(fail(
                ErrorKind::InvalidArgument,
                format!(
                    "it lies in source {}, and there are {} sources",
                    extent.source,
                    sources.len()
                ),
            ));
        };
        if extent
            .offset
            .checked_add(extent.len)
            .is_none_or(|end| end > source.len)
        {
            return Err(fail(
                ErrorKind::Truncated,
                format!(
                    "its {} bytes at offset {} leave the file, which has {} bytes",
                    extent.len, extent.offset, source.len
                ),
            )
            .at(&source.path));
        }
        stored = stored.checked_add(extent.len).ok_or_else(|| {
            fail(
                ErrorKind::Overflow,
                "its extents sum up to more than 2^64 bytes".to_owned(),
            )
        })?;
    }

    let strides: SmallVec<[u64; 4]> = match &meta.strides {
        None => contiguous_strides(&meta.shape),
        Some(strides) if strides.len() == meta.shape.len() => SmallVec::from_slice(strides),
        Some(strides) => {
            return Err(fail(
                ErrorKind::ShapeMismatch,
                format!(
                    "it has {} strides for {} dimensions",
                    strides.len(),
                    meta.shape.len()
                ),
            ));
        }
    };
    let needed = if nbytes == 0 {
        Some(0)
    } else {
        meta.shape
            .iter()
            .zip(&strides)
            .try_fold(1_u64, |elements, (&rows, &stride)| {
                elements.checked_add((rows - 1).checked_mul(stride)?)
            })
            .and_then(|elements| elements.checked_mul(u64::from(meta.dtype.bits())))
            .map(|bits| bits.div_ceil(8))
    };
    let Some(needed) = needed else {
        return Err(fail(
            ErrorKind::Overflow,
            format!(
                "shape {:?} and strides {strides:?} reach beyond what 64 bits count",
                meta.shape
            ),
        ));
    };
    // A row-major tensor fills its extents exactly; a view may leave some of them unused.
    let fits = match meta.strides {
        Some(_) => needed <= stored,
        None => needed == stored,
    };
    if !fits {
        return Err(fail(
            ErrorKind::ShapeMismatch,
            format!(
                "{} of shape {:?}{} does not fit the {stored} bytes stored for it",
                meta.dtype,
                meta.shape,
                meta.strides
                    .as_ref()
                    .map(|strides| format!(" and strides {strides:?}"))
                    .unwrap_or_default()
            ),
        ));
    }
    Ok(strides)
}

/// How a view is read off its storage: all in elements.
struct Walk {
    /// Elements of one contiguous run.
    run: u64,
    /// What is around the run, outermost first. Strides decrease and no step overlaps the next.
    levels: SmallVec<[Axis; 4]>,
    /// Axes with more than one row, by decreasing stride.
    live: SmallVec<[Axis; 4]>,
    /// How many of `live` are walked exactly; the rest are read with what lies between.
    exact: usize,
}

impl Walk {
    fn new(axes: &[Axis], dtype: Dtype) -> Self {
        // A stride of 0 repeats what is there: nothing more to read.
        let mut live: SmallVec<[Axis; 4]> = axes
            .iter()
            .copied()
            .filter(|axis| axis.rows > 1 && axis.stride > 0)
            .collect();
        live.sort_by_key(|axis| std::cmp::Reverse(axis.stride));
        let overlaps = (0..live.len()).any(|axis| live[axis].stride < reach(&live[axis + 1..]));
        let most = if overlaps { 0 } else { live.len() };
        let mut best: Option<(u64, Self)> = None;
        for exact in (0..=most).rev() {
            let (run, levels) = merge(&live[..exact], reach(&live[exact..]));
            // Runs do not overlap, so together they have no more elements than the tensor stores.
            let runs: u64 = levels.iter().map(|axis| axis.rows).product();
            let pieces = runs / levels.last().map_or(1, |axis| axis.rows);
            if pieces > MAX_TENSOR_PIECES {
                continue;
            }
            let buffer = runs * run * u64::from(dtype.bits()) / 8;
            let cost = buffer.saturating_add(pieces * size_of::<Piece>() as u64);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                let live = live.clone();
                let walk = Self {
                    run,
                    levels,
                    live,
                    exact,
                };
                best = Some((cost, walk));
            }
            // Elements inside of bytes cannot be gathered: what is exact is best.
            if pieces <= FEW_TENSOR_PIECES || dtype.bits() < 8 {
                break;
            }
        }
        let (_, walk) = best.expect("with no exact axis there is one run and no level");
        walk
    }

    /// Whether runs bring elements along that the view does not have.
    fn folds(&self) -> bool {
        self.exact < self.live.len()
    }

    /// The strides of the view in the buffer that the runs fill one after the other.
    fn buffer_strides(&self, axes: &[Axis]) -> SmallVec<[u64; 4]> {
        let mut row = reach(&self.live[self.exact..]);
        let mut walked: SmallVec<[u64; 4]> = self.live.iter().map(|axis| axis.stride).collect();
        for index in (0..self.exact).rev() {
            walked[index] = row;
            row *= self.live[index].rows;
        }
        axes.iter()
            .map(|axis| {
                if axis.rows <= 1 || axis.stride == 0 {
                    return 0;
                }
                // Without overlap strides differ; with it nothing is walked and they are kept.
                let index = self
                    .live
                    .iter()
                    .position(|live| live.stride == axis.stride)
                    .expect("every axis with rows and a stride is live");
                walked[index]
            })
            .collect()
    }
}

/// Elements from the first to the last of a view, both included.
fn reach(axes: &[Axis]) -> u64 {
    axes.iter()
        .map(|axis| (axis.rows - 1) * axis.stride)
        .sum::<u64>()
        + 1
}

/// Merges axes that continue each other, and the innermost ones with the run.
fn merge(axes: &[Axis], mut run: u64) -> (u64, SmallVec<[Axis; 4]>) {
    let mut levels: SmallVec<[Axis; 4]> = SmallVec::new();
    for &axis in axes {
        match levels.last_mut() {
            Some(outer) if outer.stride == axis.rows * axis.stride => {
                *outer = Axis {
                    rows: outer.rows * axis.rows,
                    stride: axis.stride,
                };
            }
            _ => levels.push(axis),
        }
    }
    while let Some(axis) = levels.last()
        && axis.stride == run
    {
        run *= axis.rows;
        levels.pop();
    }
    (run, levels)
}

/// Whether `strides` walk `shape` in row-major order without holes.
fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    shape
        .iter()
        .zip(strides)
        .zip(contiguous_strides(shape))
        .all(|((&rows, &stride), contiguous)| rows == 1 || stride == contiguous)
}

/// Bytes of so many elements, where they fill whole bytes. Never more than the tensor stores.
fn to_bytes(dtype: Dtype, elements: u64) -> Option<u64> {
    let bits = u128::from(elements) * u128::from(dtype.bits());
    bits.is_multiple_of(8)
        .then(|| u64::try_from(bits / 8).ok())
        .flatten()
}

fn unaligned(meta: &TensorMeta, window: &Window) -> Error {
    let rows: Vec<_> = window.iter().map(Steps::to_string).collect();
    Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "the slice [{}] of shape {:?} does not begin and end on whole bytes: {} has {} bits",
            rows.join(", "),
            meta.shape,
            meta.dtype,
            meta.dtype.bits()
        ),
    )
    .tensor(&*meta.name)
    .help("choose rows that begin and end on whole bytes")
}

/// The stored bytes of a tensor: extents laid end to end.
struct Extents {
    /// Each with the position of its first byte in the stored bytes.
    parts: SmallVec<[(u64, Extent); 1]>,
}

impl Extents {
    fn new(extents: &[Extent]) -> Self {
        let mut parts: SmallVec<[(u64, Extent); 1]> = SmallVec::new();
        let mut position = 0;
        for &extent in extents.iter().filter(|extent| extent.len > 0) {
            match parts.last_mut() {
                Some((_, last)) if last.source == extent.source && last.end() == extent.offset => {
                    last.len += extent.len;
                }
                _ => parts.push((position, extent)),
            }
            position += extent.len;
        }
        Self { parts }
    }

    /// Appends the pieces of `strip`: one for each extent that it lies in, and one more for each
    /// part of a run that an extent's border cuts.
    fn cut(&self, tensor: u32, strip: Strip, pieces: &mut Vec<Piece>) {
        let last_run = strip.offset + (strip.count - 1) * strip.stride;
        let first = self
            .parts
            .partition_point(|&(start, extent)| start + extent.len <= strip.offset);
        for &(start, extent) in &self.parts[first..] {
            let end = start + extent.len;
            if start >= last_run + strip.run {
                break;
            }
            let mut push = |from: u64, run: u64, count: u64, dest: u64| {
                pieces.push(Piece {
                    tensor,
                    source: extent.source,
                    offset: extent.offset + (from - start),
                    run,
                    count,
                    stride: if count == 1 { run } else { strip.stride },
                    dest,
                });
            };
            let begin_of = |k: u64| strip.offset + k * strip.stride;
            let dest_of = |k: u64| strip.dest + k * strip.run;
            // The first run that ends in or beyond this extent, and the runs that begin before its end.
            let mut k = if start < strip.offset + strip.run {
                0
            } else {
                (start - strip.offset - strip.run) / strip.stride + 1
            };
            let stop = strip.count.min((end - strip.offset).div_ceil(strip.stride));
            if k >= stop {
                continue;
            }
            if begin_of(k) < start {
                let to = end.min(begin_of(k) + strip.run);
                push(start, to - start, 1, dest_of(k) + (start - begin_of(k)));
                k += 1;
            }
            let cut_at_end = k < stop && begin_of(stop - 1) + strip.run > end;
            let whole = stop - u64::from(cut_at_end);
            if k < whole {
                push(begin_of(k), strip.run, whole - k, dest_of(k));
            }
            if cut_at_end {
                push(begin_of(whole), end - begin_of(whole), 1, dest_of(whole));
            }
        }
    }
}
