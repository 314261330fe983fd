//! Writing checkpoints: where every byte goes is decided first, as data; then one writer executes it.
//!
//! ```text
//!  [OutputTensor] --safetensors::plan--> OutputPlan --CheckpointWriter--> files, index last
//!                 --serverlessllm::plan-/                  ^
//!                                               bytes, tensor by tensor, in any order
//! ```
//!
//! [`convert`] brings a checkpoint into either layout with an executor of its own, which reads with a
//! backend under a budget, and goes on where it was interrupted. [`save`] writes tensors that are in
//! memory to one file of any name.
//!
//! A plan needs names, dtypes and shapes only, so that a checkpoint larger than memory is written
//! in pieces of the caller's choice. The plan is a pure function of its input and the bytes of a
//! file are a pure function of the plan and of the tensors: the same input gives the same files.

mod convert;
pub(crate) mod folder;
mod in_parallel;
mod links;
mod names;
mod open_files;
mod rename;
mod report;
mod runs;
mod safetensors_writer;
mod save;
mod serverlessllm_writer;
mod single_file;
mod writer;

use std::collections::HashSet;

use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Shape;

pub use convert::{
    Conversion, ConvertOptions, ConvertReport, DEFAULT_SHARD_BYTES, MetadataConflict, convert,
};
pub use folder::{Abandoned, OutputFolder, PendingFile};
pub(crate) use in_parallel::in_parallel;
pub use names::{METADATA_FILE, is_companion};
use runs::even_runs;
pub use safetensors_writer::{SafetensorsOptions, Sharding, plan as plan_safetensors};
pub use save::{Put, SaveOptions, save, save_with, serialize, serialize_with};
pub use serverlessllm_writer::{
    RECOMMENDED_PARTITION_BYTES, ServerlessLlmOptions, plan as plan_serverlessllm,
};
pub use single_file::{SingleFile, write_file};
use writer::write_all_at;
pub use writer::{CheckpointWriter, TensorSink, WriteOptions, WriteReport};

/// A tensor to be written: contiguous, row-major, little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputTensor {
    /// The name, unique in its checkpoint.
    pub name: Box<str>,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; `[]` is a scalar.
    pub shape: Shape,
}

impl OutputTensor {
    /// A tensor of `shape` called `name`.
    pub fn new(
        name: impl Into<Box<str>>,
        dtype: Dtype,
        shape: impl IntoIterator<Item = u64>,
    ) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.into_iter().collect(),
        }
    }

    /// Bytes of the tensor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when they overflow 64 bits or are not a whole number.
    pub fn nbytes(&self) -> Result<u64> {
        self.dtype.nbytes(&self.shape).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "shape {:?} of {} overflows 64 bits or does not fill whole bytes",
                    self.shape, self.dtype
                ),
            )
            .tensor(&*self.name)
        })
    }
}

/// Where the bytes of one tensor go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Index into [`OutputPlan::files`].
    pub file: u32,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A data file of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFile {
    /// The name within the folder.
    pub name: String,
    /// What the file begins with: a SafeTensors header, or nothing.
    pub head: Vec<u8>,
    /// Length of the whole file in bytes. Bytes that belong to no tensor are zero.
    pub len: u64,
}

/// The index file of a plan, which makes the data files a checkpoint and so appears last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputIndex {
    /// The name within the folder.
    pub name: String,
    /// The whole file.
    pub bytes: Vec<u8>,
}

/// A checkpoint in one folder, byte for byte, but for the contents of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPlan {
    /// The tensors, as they were given.
    pub tensors: Vec<OutputTensor>,
    /// Where each of them goes.
    pub placements: Vec<Placement>,
    /// The data files.
    pub files: Vec<OutputFile>,
    /// The index, where the layout has one.
    pub index: Option<OutputIndex>,
    /// Files that would contradict this checkpoint if they stayed: the index of a sharded
    /// checkpoint beside a single file. Removed when overwriting is allowed, refused otherwise.
    pub superseded: Vec<String>,
}

impl OutputPlan {
    /// Bytes of all files together, the index included.
    pub fn total_file_bytes(&self) -> u64 {
        let index = self.index.as_ref().map_or(0, |index| index.bytes.len());
        self.files.iter().map(|file| file.len).sum::<u64>() + index as u64
    }

    /// Bytes of all tensors together.
    pub fn tensor_bytes(&self) -> u64 {
        self.placements.iter().map(|place| place.len).sum()
    }

    /// Indices of the tensors in the order in which they lie on disk, file by file: the order in
    /// which writing is cheapest.
    pub fn disk_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by_key(|&index| {
            let place = &self.placements[index];
            (place.file, place.offset, place.len, index)
        });
        order
    }
}

/// Sizes of all tensors, after the checks that hold for every layout: names are unique, sizes are
/// whole bytes, and their sum fits.
fn checked_sizes(tensors: &[OutputTensor]) -> Result<Vec<u64>> {
    let mut names = HashSet::with_capacity(tensors.len());
    let mut total: u64 = 0;
    let mut sizes = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        if !names.insert(&*tensor.name) {
            return Err(
                Error::new(ErrorKind::InvalidArgument, "the name is given twice")
                    .tensor(&*tensor.name)
                    .help("a checkpoint holds each name once"),
            );
        }
        let size = tensor.nbytes()?;
        // A quarter of the range is left for headers, alignment and rounding: later sums are safe.
        total = total
            .checked_add(size)
            .filter(|&total| total <= u64::MAX / 4)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("with its {size} bytes the checkpoint passes 2^62 bytes"),
                )
                .tensor(&*tensor.name)
            })?;
        sizes.push(size);
    }
    Ok(sizes)
}

/// JSON of values that cannot fail to serialise: strings, numbers and lists of them.
fn json(value: &(impl serde::Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("strings and numbers are always valid JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_tensors_are_refused_by_name() {
        let a = OutputTensor::new("a", Dtype::F32, [2, 2]);
        let odd = OutputTensor::new("odd", Dtype::F4, [3]);
        let huge = OutputTensor::new("huge", Dtype::U8, [1 << 63]);
        for (tensors, name) in [
            (vec![a.clone(), a.clone()], "a"),
            (vec![a.clone(), odd], "odd"),
            (vec![a.clone(), huge], "huge"),
        ] {
            let error = checked_sizes(&tensors).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert_eq!(error.tensor_name(), Some(name));
        }
        assert_eq!(checked_sizes(&[a]).unwrap(), [16]);
    }
}
