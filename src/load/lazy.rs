//! Lazy handles: mapped when asked for, read when touched.

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::load::eager;
use crate::plan::Selection;
use crate::settings::Settings;
use crate::storage::local::Access;
use crate::storage::region::Region;
use crate::storage::{BackendKind, read_exact_at};
use crate::tensor::{Tensor, TensorMeta};

/// Tensors shorter than this, in bytes, are read and not mapped when they are asked for one by one:
/// copying 4 pages takes no longer than mapping them, and processes may have only so many mappings
/// (65,530 by default on Linux).
const SMALL: u64 = 16 << 10;

/// Tensors of a checkpoint one by one, through private mappings: nothing is read before a
/// tensor's bytes are touched, and writing to them never reaches the file.
///
/// The file's size is checked before it is mapped. What is shorter than 16 KiB, or cannot be mapped
/// as it is (misaligned elements, transposed views, tensors that cross partitions, sources that are
/// no files), is read when asked for. A file that is truncated *after* a tensor was handed out raises SIGBUS where
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
        let meta = self.checkpoint.require(name)?;
        if let Some(tensor) = self.alone(meta)? {
            return Ok(tensor);
        }
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

    /// A whole tensor that lies in a file as it is needed, without a plan, which looks at every
    /// tensor of the checkpoint. `None` for all others, and where the system refuses: the way with a
    /// plan knows what to do, or what to say.
    fn alone(&self, meta: &TensorMeta) -> Result<Option<Tensor>> {
        let ([extent], None) = (meta.extents.as_slice(), &meta.strides) else {
            return Ok(None);
        };
        let source = &self.checkpoint.sources()[extent.source as usize];
        let (Some(local), Ok(len)) = (source.local(), usize::try_from(extent.len)) else {
            return Ok(None);
        };
        if len == 0 || !extent.offset.is_multiple_of(meta.dtype.alignment()) {
            return Ok(None);
        }
        source.check_unchanged()?;
        let data = if extent.len < SMALL {
            let mut read = Ok(());
            let data = Region::filled(len, |into| {
                read = read_exact_at(&**source, extent.offset, into);
            });
            read?;
            data
        } else {
            local
                .descriptor(Access::Buffered)
                .and_then(|file| Region::mapped(&file, extent.offset, len))
        };
        let made = |data| Tensor::new(meta.name.clone(), meta.dtype, meta.shape.clone(), data);
        Ok(data.ok().map(made))
    }
}
