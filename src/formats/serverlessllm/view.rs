//! What shape and stride of an entry mean for its stored bytes.

use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};

/// Largest logical size of an expanded view (stride 0: few stored bytes stand for many), in
/// bytes. It bounds what a few bytes on disk can make a load allocate.
pub const MAX_EXPANDED_BYTES: u64 = 256 << 20;

/// Decides what the strides mean for the stored bytes: `None` when they are contiguous.
pub(super) fn check_view(
    dtype: Dtype,
    shape: &[u64],
    strides: &[u64],
    size: u64,
) -> Result<Option<Box<[u64]>>> {
    let refuse = |kind, message| Err(Error::new(kind, message));
    if shape.len() != strides.len() {
        let (dims, given) = (shape.len(), strides.len());
        return refuse(
            ErrorKind::BadEntry,
            format!(
                "its shape {shape:?} has {dims} dimensions, its stride {strides:?} has {given}"
            ),
        );
    }
    let Some(logical) = dtype.nbytes(shape) else {
        return refuse(
            ErrorKind::ShapeMismatch,
            format!("{dtype} of shape {shape:?} {}", dtype.why_no_size(shape)),
        );
    };
    if is_contiguous(shape, strides) {
        if logical == size {
            return Ok(None);
        }
        return refuse(
            ErrorKind::ShapeMismatch,
            format!("{dtype} of shape {shape:?} takes {logical} bytes, but its size is {size}"),
        );
    }
    if dtype.bits() < 8 {
        return refuse(
            ErrorKind::BadEntry,
            format!(
                "stride {strides:?} of shape {shape:?} cuts through the bytes of packed {dtype}"
            ),
        );
    }
    let span = shape
        .iter()
        .zip(strides)
        .try_fold(1_u64, |span, (&dim, &stride)| {
            span.checked_add((dim - 1).checked_mul(stride)?)
        })
        .and_then(|elements| dtype.bytes_for(elements));
    if span != Some(size) {
        let covered = span.map_or("more than 2^64".to_owned(), |span| span.to_string());
        return refuse(
            ErrorKind::BadEntry,
            format!(
                "its shape {shape:?} with stride {strides:?} is a view over {covered} bytes, but \
                 {size} are stored, and the layout does not record where the view begins"
            ),
        );
    }
    if logical > size && logical > MAX_EXPANDED_BYTES {
        return refuse(
            ErrorKind::BadEntry,
            format!(
                "its shape {shape:?} with stride {strides:?} repeats {size} stored bytes into \
                 {logical}; the limit is {MAX_EXPANDED_BYTES}"
            ),
        );
    }
    Ok(Some(strides.into()))
}

/// Whether elements follow each other in row-major order. The stride of a dimension of one
/// element is never used, and a tensor without elements has nothing to stride over.
fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected: u64 = 1;
    for (&dim, &stride) in shape.iter().zip(strides).rev() {
        if dim != 1 && stride != expected {
            return false;
        }
        // The product was checked to fit when the size was computed; saturation is never equal.
        expected = expected.saturating_mul(dim);
    }
    true
}

/// torch's `float4_e2m1fn_x2` counts pairs: its shape has one byte per element. The size tells
/// such a shape from one that counts 4-bit elements, as ours do.
pub(super) fn pairs_to_elements(shape: &mut [u64], stride: &mut [u64], size: u64) {
    if Dtype::U8.nbytes(shape) != Some(size) || size == 0 || !is_contiguous(shape, stride) {
        return;
    }
    let Some((last, outer)) = shape.split_last_mut() else {
        return;
    };
    if let Some(doubled) = last.checked_mul(2) {
        *last = doubled;
        let outer_strides = stride.iter_mut().take(outer.len());
        for stride in outer_strides {
            *stride = stride.saturating_mul(2);
        }
        if let Some(innermost) = stride.last_mut() {
            *innermost = 1;
        }
    }
}
