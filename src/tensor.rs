//! Tensors: what is known of one before a byte of it is read, and one in memory.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use smallvec::SmallVec;

use crate::dtype::Dtype;
use crate::storage::region::Tenancy;

/// Dimensions of a tensor, outermost first; `[]` is a scalar.
pub type Shape = SmallVec<[u64; 4]>;

/// A run of bytes in one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Extent {
    /// Index into the checkpoint's sources.
    pub source: u32,
    /// First byte, from the start of the source.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Extent {
    /// One past the last byte. Validated metadata never overflows here.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Name, type, shape and place of a tensor: what both layouts reduce to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorMeta {
    /// The name, unique in its checkpoint.
    pub name: Box<str>,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Shape,
    /// Strides in elements where the stored bytes are not row-major contiguous (a transposed or
    /// expanded view in a ServerlessLLM layout); `None` in the common, contiguous case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strides: Option<Box<[u64]>>,
    /// The stored bytes, in order. One extent in the common case; empty for zero-size tensors.
    pub extents: SmallVec<[Extent; 1]>,
}

impl TensorMeta {
    /// Bytes of the tensor when contiguous: product of the shape times the element size.
    pub fn nbytes(&self) -> u64 {
        self.dtype
            .nbytes(&self.shape)
            .expect("shape and dtype were validated when the checkpoint was opened")
    }

    /// Bytes stored in the extents. Differs from [`nbytes`](Self::nbytes) only for expanded views.
    pub fn stored_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len).sum()
    }
}

/// A tensor in memory: contiguous, little-endian, row-major.
///
/// Keeps its own memory alive, not the checkpoint. Clones share the memory; the pages go back to
/// the system when the last clone is dropped. The address is a multiple of the element size (see
/// [`Dtype::alignment`]), or of what [`Settings::align`](crate::Settings) asked for.
#[derive(Clone)]
pub struct Tensor {
    name: Box<str>,
    dtype: Dtype,
    shape: Shape,
    /// `None` for tensors without bytes.
    data: Option<Arc<Tenancy>>,
    /// Boxed, as most loads ask for none.
    sha256: Option<Box<[u8; 32]>>,
}

impl Tensor {
    pub(crate) fn new(name: Box<str>, dtype: Dtype, shape: Shape, data: Tenancy) -> Self {
        Self {
            name,
            dtype,
            shape,
            data: Some(Arc::new(data)),
            sha256: None,
        }
    }

    pub(crate) fn empty(name: Box<str>, dtype: Dtype, shape: Shape) -> Self {
        Self {
            name,
            dtype,
            shape,
            data: None,
            sha256: None,
        }
    }

    /// The name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Dimensions, outermost first; those of the slice where one was selected.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Length in bytes.
    pub fn nbytes(&self) -> usize {
        self.bytes().len()
    }

    /// The bytes: elements in row-major order, little-endian.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_ref().map_or(&NOTHING.0, |data| data.bytes())
    }

    /// SHA-256 of the bytes, where [`Loader::digests`](crate::Loader::digests) asked for it.
    pub fn sha256(&self) -> Option<&[u8; 32]> {
        self.sha256.as_deref()
    }

    pub(crate) fn set_digest(&mut self, sha256: Option<Box<[u8; 32]>>) {
        self.sha256 = sha256;
    }

    /// The bytes for writing. Never reaches a file. `None` while a clone, or another name of tied
    /// weights, shares the memory. A digest that the tensor carried is gone then.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.sha256 = None;
        match &mut self.data {
            None => Some(&mut []),
            Some(data) => Arc::get_mut(data)?.bytes_mut(),
        }
    }

    /// The address of the bytes, for holders outside of Rust: Python's buffer protocol, DLPack.
    ///
    /// Valid for [`nbytes`](Self::nbytes) bytes while the tensor or a clone of it lives; for a
    /// tensor without bytes it dangles, aligned. Reading through it is sound while nobody writes.
    /// Writing through it is sound only while no `&[u8]` of this tensor, of a clone, or of a tied
    /// tensor that shares the memory is in use, on any thread. All of them see what was written; a
    /// file never does, as mappings are private. A digest that the tensor carries stays as it was.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        match &self.data {
            None => NOTHING.0.as_ptr().cast_mut(),
            Some(data) => data.as_mut_ptr(),
        }
    }
}

/// Where tensors without bytes are: nowhere, but aligned as any tensor may be asked to be.
#[repr(align(4096))]
struct Nothing([u8; 0]);

static NOTHING: Nothing = Nothing([]);

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor({:?}, {}, {:?}, {} bytes)",
            self.name,
            self.dtype,
            self.shape.as_slice(),
            self.nbytes()
        )
    }
}

/// Row-major strides of `shape`, in elements, as torch has them: a dimension of length 0 counts as
/// one of length 1. Saturates on overflow, which only shapes of
/// zero-size tensors can reach.
pub fn contiguous_strides(shape: &[u64]) -> SmallVec<[u64; 4]> {
    let mut strides: SmallVec<[u64; 4]> = SmallVec::from_elem(1, shape.len());
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::region::Region;

    #[test]
    fn the_address_is_that_of_the_bytes() {
        let data = Region::filled(4, |bytes| bytes.copy_from_slice(&[1, 2, 3, 4])).unwrap();
        let mut tensor = Tensor::new("w".into(), Dtype::U8, [4].as_slice().into(), data);
        let address = tensor.as_mut_ptr();
        assert_eq!(address.cast_const(), tensor.bytes().as_ptr());
        assert_eq!(tensor.clone().as_mut_ptr(), address);
        tensor.bytes_mut().unwrap()[0] = 9;
        assert_eq!(tensor.as_mut_ptr(), address);

        let empty = Tensor::empty("e".into(), Dtype::F64, [0].as_slice().into());
        assert_eq!(empty.as_mut_ptr().cast_const(), empty.bytes().as_ptr());
        assert!(empty.as_mut_ptr().addr().is_multiple_of(4096));
    }

    #[test]
    fn strides_are_row_major() {
        assert_eq!(contiguous_strides(&[2, 3, 4]).as_slice(), [12, 4, 1]);
        assert_eq!(contiguous_strides(&[5]).as_slice(), [1]);
        assert_eq!(contiguous_strides(&[3, 0, 5]).as_slice(), [5, 5, 1]);
        assert!(contiguous_strides(&[]).is_empty());
    }
}
