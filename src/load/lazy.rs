//! Lazy handles: mapped when asked for, read when touched.

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::load::eager;
use crate::plan::Selection;
use crate::settings::Settings;
use crate::storage::BackendKind;
use crate::tensor::{Tensor, TensorMeta};

/// Tensors of a checkpoint one by one, through private mappings: nothing is read before a
/// tensor's bytes are touched, and writing to them never reaches the file.
///
/// The file's size is checked before it is mapped. What cannot be mapped as it is (misaligned
/// elements, transposed views, tensors that cross partitions, sources that are no files) is read
/// when asked for. A file that is truncated *after* a tensor was handed out raises SIGBUS where
/// the lost part is touched, and network file systems fault slowly, page by page: load eagerly
/// there.
#[derive(Debug, Clone)]
pub struct LazyTensors {
    checkpoint: Checkpoint,
}

impl LazyTensors {
    pub(super) fn new(checkpoint: Checkpoint) -> Self {
        Self { checkpoint }
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`NoSuchTensor`](crate::ErrorKind::NoSuchTensor) with near names,
    /// [`Truncated`](crate::ErrorKind::Truncated) and
    /// [`SourceChanged`](crate::ErrorKind::SourceChanged) when the file is not what was opened,
    /// [`Io`](crate::ErrorKind::Io).
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.checkpoint.require(name)?;
        self.select(Selection::names([name]))?
            .into_iter()
            .next()
            .ok_or_else(|| {
                crate::Error::new(crate::ErrorKind::NoSuchTensor, "nothing was selected")
                    .tensor(name)
            })
    }

    /// The tensors, or slices, of a selection, in the order of the checkpoint.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), and for a selection that does not fit.
    pub fn select(&self, selection: Selection) -> Result<Vec<Tensor>> {
        let settings = Settings {
            backend: BackendKind::Mmap,
            ..Settings::default()
        };
        eager::map(
            &self
                .checkpoint
                .loader()
                .select(selection)
                .settings(settings),
        )
    }

    /// What is there, without mapping anything.
    pub fn metas(&self) -> &[TensorMeta] {
        self.checkpoint.tensors()
    }
}
