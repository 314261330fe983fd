//! Tensors one by one: lazy handles, mapped when asked for and read when touched; and single reads.

use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::load::eager;
use crate::plan::Selection;
use crate::storage::job::failure::no_memory;
use crate::storage::local::Access;
use crate::storage::region::{Region, Tenancy};
use crate::storage::{Source, read_exact_at};
use crate::tensor::{Tensor, TensorMeta};

/// Tensors shorter than this, in bytes, are read and not mapped when they are asked for one by one:
/// copying 4 pages takes no longer than mapping them, and processes may have only so many mappings
/// (65,530 by default on Linux).
const SMALL: usize = 16 << 10;

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
        only(name, self.select(Selection::names([name]))?)
    }

    /// The tensors, or slices, of a selection, in the order of the checkpoint.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), and for a selection that does not fit.
    pub fn select(&self, selection: Selection) -> Result<Vec<Tensor>> {
        eager::map(self.checkpoint.loader().select(selection))
    }

    /// What is there, without mapping anything.
    pub fn metas(&self) -> &[TensorMeta] {
        self.checkpoint.tensors()
    }

    /// A whole tensor that lies in a file as it is needed, without a plan, which looks at every
    /// tensor of the checkpoint. `None` for all others, and where the system refuses: the way with a
    /// plan knows what to do, or what to say.
    fn alone(&self, meta: &TensorMeta) -> Result<Option<Tensor>> {
        let Some(stretch) = Stretch::of(&self.checkpoint, meta) else {
            return Ok(None);
        };
        if stretch.len < SMALL {
            return stretch.read(meta).map(Some);
        }
        let aligned = stretch.offset.is_multiple_of(meta.dtype.alignment());
        let Some(local) = stretch.source.local().filter(|_| aligned) else {
            return Ok(None);
        };
        stretch.source.check_unchanged()?;
        let data = local
            .descriptor(Access::Buffered)
            .and_then(|file| Region::mapped(&file, stretch.offset, stretch.len));
        Ok(data.ok().map(|data| tensor(meta, data)))
    }
}

/// Tensors up to this length, in bytes, are read by one thread with one call where they are wanted
/// alone: planning the read and waking readers takes 0.3 ms, in which so much can be read.
const SHORT: usize = 1 << 20;

/// Reads one tensor into memory of its own: see [`Checkpoint::read`].
pub(super) fn read(checkpoint: &Checkpoint, name: &str) -> Result<Tensor> {
    let meta = checkpoint.require(name)?;
    if let Some(stretch) = Stretch::of(checkpoint, meta).filter(|stretch| stretch.len <= SHORT) {
        return stretch.read(meta);
    }
    let loaded = checkpoint
        .loader()
        .select(Selection::names([name]))
        .load()?;
    only(name, loaded)
}

fn only(name: &str, tensors: impl IntoIterator<Item = Tensor>) -> Result<Tensor> {
    tensors
        .into_iter()
        .next()
        .ok_or_else(|| Error::new(ErrorKind::NoSuchTensor, "nothing was selected").tensor(name))
}

fn tensor(meta: &TensorMeta, data: Tenancy) -> Tensor {
    Tensor::new(meta.name.clone(), meta.dtype, meta.shape.clone(), data)
}

/// Where a whole tensor lies in one piece, as it is needed.
struct Stretch<'a> {
    source: &'a dyn Source,
    offset: u64,
    /// Bytes, more than none.
    len: usize,
}

impl<'a> Stretch<'a> {
    fn of(checkpoint: &'a Checkpoint, meta: &TensorMeta) -> Option<Self> {
        let ([extent], None) = (meta.extents.as_slice(), &meta.strides) else {
            return None;
        };
        let len = usize::try_from(extent.len).ok().filter(|&len| len > 0)?;
        Some(Self {
            source: &*checkpoint.sources()[extent.source as usize],
            offset: extent.offset,
            len,
        })
    }

    /// Reads it on this thread.
    fn read(&self, meta: &TensorMeta) -> Result<Tensor> {
        self.source.check_unchanged()?;
        let mut read = Ok(());
        let data = Region::filled(self.len, |into| {
            read = read_exact_at(self.source, self.offset, into);
        });
        read.map_err(|error| error.tensor(&*meta.name))?;
        let data = data.map_err(|error| {
            no_memory(self.len as u64)
                .tensor(&*meta.name)
                .because(error)
        })?;
        // What was validated at opening must be what was read.
        self.source.check_unchanged()?;
        Ok(tensor(meta, data))
    }
}
