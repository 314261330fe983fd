//! What loads are compared with: the same tensors out of plain reads of whole files.
//!
//! Deliberately simple, and without the library's reading: places and shapes come from headers and
//! indexes, bytes from [`std::fs::read`].

use std::sync::{Arc, Mutex, PoisonError};

use tensora::integrity::{Entries, Entry, Sha256};
use tensora::storage::Source;
use tensora::{Checkpoint, Error, ErrorKind, Result, TensorMeta, contiguous_strides};

use crate::digest;

/// Digests of all tensors, one file after the other.
pub fn digests(checkpoint: &Checkpoint) -> Result<Entries> {
    let digests = Mutex::new(Entries::new());
    for (number, source) in checkpoint.sources().iter().enumerate() {
        let home = |tensor: &&TensorMeta| {
            tensor
                .extents
                .first()
                .map_or(0, |extent| extent.source as usize)
                == number
        };
        let tensors: Vec<&TensorMeta> = checkpoint.tensors().iter().filter(home).collect();
        if tensors.is_empty() {
            continue;
        }
        let file = read(source)?;
        let failure = Mutex::new(None);
        digest::in_parallel(tensors.len(), |index| {
            let tensor = tensors[index];
            match bytes(tensor, number, &file, checkpoint) {
                Ok(bytes) => {
                    let entry = Entry {
                        dtype: tensor.dtype,
                        shape: tensor.shape.as_slice().into(),
                        nbytes: bytes.len() as u64,
                        sha256: Sha256::of(&bytes),
                    };
                    digest::insert(&digests, &tensor.name, entry);
                }
                Err(error) => {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            }
        });
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(()), Err)?;
    }
    Ok(digests.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The tensor's bytes, contiguous. `file` is the whole of source `number`.
fn bytes<'a>(
    tensor: &TensorMeta,
    number: usize,
    file: &'a [u8],
    checkpoint: &Checkpoint,
) -> Result<std::borrow::Cow<'a, [u8]>> {
    let path = checkpoint.sources()[number].path();
    let cut = |file: &'a [u8], offset: u64, len: u64| {
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= file.len() as u64);
        end.map(|end| &file[offset as usize..end as usize])
            .ok_or_else(|| {
                let what = format!(
                    "it needs bytes {offset}..{} of the file, which has {} bytes now",
                    offset.saturating_add(len),
                    file.len()
                );
                Error::new(ErrorKind::Truncated, what)
                    .at(path)
                    .tensor(&*tensor.name)
            })
    };
    if tensor.strides.is_none()
        && let [extent] = tensor.extents.as_slice()
    {
        return Ok(cut(file, extent.offset, extent.len)?.into());
    }
    let mut stored = Vec::new();
    for extent in &tensor.extents {
        if extent.source as usize == number {
            stored.extend_from_slice(cut(file, extent.offset, extent.len)?);
        } else {
            // Few tensors cross files, and none of them crosses many.
            let other = read(&checkpoint.sources()[extent.source as usize])?;
            let end = extent.end().min(other.len() as u64);
            stored.extend_from_slice(&other[extent.offset.min(end) as usize..end as usize]);
        }
    }
    match &tensor.strides {
        None => Ok(stored.into()),
        Some(strides) => Ok(gathered(tensor, strides, &stored).into()),
    }
}

/// A strided view, element by element.
fn gathered(tensor: &TensorMeta, strides: &[u64], stored: &[u8]) -> Vec<u8> {
    let size = (tensor.dtype.bits() / 8) as usize;
    let steps = contiguous_strides(&tensor.shape);
    let count = tensor.nbytes() / size as u64;
    let mut result = Vec::with_capacity(tensor.nbytes() as usize);
    for element in 0..count {
        let at: u64 = (0..tensor.shape.len())
            .map(|axis| element / steps[axis] % tensor.shape[axis] * strides[axis])
            .sum();
        let start = at as usize * size;
        result.extend_from_slice(stored.get(start..start + size).unwrap_or_default());
    }
    result
}

fn read(source: &Arc<dyn Source>) -> Result<Vec<u8>> {
    std::fs::read(source.path()).map_err(|error| Error::io("read", source.path(), error))
}
