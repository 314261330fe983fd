//! A checkpoint: sources, and where in them each tensor lies. Both layouts reduce to it.
//!
//! Opening reads headers and indexes only. What was opened is complete: every tensor that
//! [`Checkpoint::tensors`] lists is inside its source, as far as sizes can tell.

mod candidates;
mod open;
pub(crate) mod pieces;
mod resolve;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{Layout, Names};
use crate::near::no_such_tensor;
use crate::storage::Source;
use crate::tensor::TensorMeta;

/// An opened checkpoint. Cheap to clone; clones are handles to the same one.
#[derive(Clone)]
pub struct Checkpoint {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    place: Place,
    layout: Layout,
    sources: Vec<Arc<dyn Source>>,
    tensors: Vec<TensorMeta>,
    names: Names,
    metadata: Metadata,
    total_bytes: u64,
}

/// Where a checkpoint lies; empty paths where it is not in files.
#[derive(Debug, Clone, Default)]
struct Place {
    /// What was opened: a folder, a file or an index.
    path: PathBuf,
    /// The folder of its files.
    root: PathBuf,
}

/// Which files a folder's checkpoint consists of, told by names.
pub(crate) enum Parts {
    /// SafeTensors files without an index.
    Files(Vec<PathBuf>),
    /// The index of a sharded SafeTensors checkpoint.
    Index(PathBuf),
    /// The index of a ServerlessLLM checkpoint.
    Partitions(PathBuf),
}

impl Parts {
    /// The parts of the checkpoint that [`Checkpoint::open`] would open in this folder.
    #[cfg(feature = "hub")]
    pub(crate) fn of_folder(folder: &Path, layout: Option<Layout>) -> Result<Self> {
        resolve::resolve(folder, layout).map(Self::from)
    }

    /// The same for a folder that is elsewhere and has these files, which `root` stands for.
    #[cfg(feature = "hub")]
    pub(crate) fn of_names(
        root: &Path,
        files: Vec<OsString>,
        layout: Option<Layout>,
    ) -> Result<Self> {
        Self::of_listing(root, files, Vec::new(), layout)
    }

    /// The same for a folder that would have these entries.
    pub(crate) fn of_listing(
        root: &Path,
        files: Vec<OsString>,
        folders: Vec<OsString>,
        layout: Option<Layout>,
    ) -> Result<Self> {
        resolve::listing(root, files, folders, layout).map(Self::from)
    }
}

impl From<resolve::Resolved> for Parts {
    fn from(found: resolve::Resolved) -> Self {
        match found {
            resolve::Resolved::Files { files, .. } => Self::Files(files),
            resolve::Resolved::Index { index, .. } => Self::Index(index),
            resolve::Resolved::Partitions { index, .. } => Self::Partitions(index),
        }
    }
}

/// What a layout's reader found.
struct Contents {
    sources: Vec<Arc<dyn Source>>,
    tensors: Vec<TensorMeta>,
    names: Names,
    metadata: Metadata,
}

/// What a SafeTensors checkpoint says beside its tensors.
#[derive(Default)]
struct Metadata {
    /// The `__metadata__` of all files together.
    merged: BTreeMap<String, String>,
    /// Keys that have more than one value, of which the first file's is in `merged`.
    conflicts: BTreeSet<String>,
    /// The index that has more, where one was opened.
    index: Option<PathBuf>,
}

impl Checkpoint {
    /// Opens a folder, a SafeTensors file, a `*.index.json` or a `tensor_index.json` with the
    /// shared engine and finds out the layout.
    ///
    /// In a folder, the first of these decides: a `model.safetensors.index.json` or
    /// `model.safetensors`; the same names with `diffusion_pytorch_model` and `adapter_model` for
    /// `model`; one variant of these (`model.fp16.safetensors`); any single index, single file or
    /// complete set of numbered shards. `consolidated` files count only where nothing else is
    /// there. An index decides alone what belongs to the checkpoint: tensors that it does not
    /// list do not exist.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::NotAFile`], [`ErrorKind::NoWeights`];
    /// [`ErrorKind::InvalidArgument`] for a folder where more than one checkpoint could be meant
    /// (it lists them); [`ErrorKind::MissingShard`], [`ErrorKind::MissingTensor`],
    /// [`ErrorKind::PartitionMissing`], [`ErrorKind::PartitionTooSmall`]; [`ErrorKind::Io`]; and
    /// what [`crate::formats`] refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// Options for opening: the layout and the engine can be told.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// A checkpoint of sources that need not be files.
    ///
    /// SafeTensors: each source is a file of its own, or a shard when `index` has the bytes of a
    /// `*.index.json`; the index's file names are compared with the ends of the sources' paths,
    /// and sources that it does not name are left alone. ServerlessLLM: `index` has the bytes of
    /// `tensor_index.json`, and the sources are the partitions in order.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`ErrorKind::DuplicateName`] when two files hold one name.
    pub fn from_sources(
        layout: Layout,
        sources: Vec<Arc<dyn Source>>,
        index: Option<&[u8]>,
    ) -> Result<Self> {
        let contents = open::sources(layout, sources, index)?;
        Self::new(Engine::shared(), Place::default(), layout, contents)
    }

    fn new(engine: Engine, place: Place, layout: Layout, contents: Contents) -> Result<Self> {
        let total_bytes = contents
            .tensors
            .iter()
            .try_fold(0_u64, |sum, tensor| sum.checked_add(tensor.nbytes()))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Overflow,
                    "the tensors have more than 2^64 bytes together",
                )
                .at(&place.path)
            })?;
        Ok(Self {
            inner: Arc::new(Inner {
                engine,
                place,
                layout,
                sources: contents.sources,
                tensors: contents.tensors,
                names: contents.names,
                metadata: contents.metadata,
                total_bytes,
            }),
        })
    }

    /// The engine that loads of this checkpoint use.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// What was opened: a folder, a file or an index. Empty for a checkpoint made by
    /// [`from_sources`](Self::from_sources).
    pub fn path(&self) -> &Path {
        &self.inner.place.path
    }

    /// The folder of the checkpoint's files, where its side files (`config.json`, the tokenizer)
    /// lie. Empty for a checkpoint made by [`from_sources`](Self::from_sources).
    pub fn root(&self) -> &Path {
        &self.inner.place.root
    }

    /// The layout it is stored in.
    pub fn layout(&self) -> Layout {
        self.inner.layout
    }

    /// The sources; extents and plans name them by index.
    pub fn sources(&self) -> &[Arc<dyn Source>] {
        &self.inner.sources
    }

    /// All tensors, ordered by source, offset and name.
    pub fn tensors(&self) -> &[TensorMeta] {
        &self.inner.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorMeta> {
        self.position(name).map(|at| &self.inner.tensors[at])
    }

    /// The position of the tensor called `name` in [`tensors`](Self::tensors).
    pub fn position(&self, name: &str) -> Option<usize> {
        let tensors = &self.inner.tensors;
        self.inner.names.find(name, |at| &tensors[at].name)
    }

    /// The tensor called `name`, or an error with up to three names that are close to it.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchTensor`].
    pub fn require(&self, name: &str) -> Result<&TensorMeta> {
        self.tensor(name)
            .ok_or_else(|| self.located(no_such_tensor(name, self.tensors())))
    }

    /// An error about the checkpoint as a whole, with its path where it has one and the error none.
    pub(crate) fn located(&self, error: Error) -> Error {
        match error.path().is_none() && !self.path().as_os_str().is_empty() {
            true => error.at(self.path()),
            false => error,
        }
    }

    /// Keys of the `__metadata__` that have another value in a later shard.
    pub(crate) fn metadata_conflicts(&self) -> &BTreeSet<String> {
        &self.inner.metadata.conflicts
    }

    /// The `*.index.json` that was opened.
    pub(crate) fn safetensors_index(&self) -> Option<&Path> {
        self.inner.metadata.index.as_deref()
    }

    /// The `__metadata__` of all shards together; of a key that occurs twice, the first shard's
    /// value. Empty for ServerlessLLM, which has no metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.inner.metadata.merged
    }

    /// Bytes of all tensors when contiguous: the sum of [`TensorMeta::nbytes`].
    pub fn total_bytes(&self) -> u64 {
        self.inner.total_bytes
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.inner.place.path)
            .field("layout", &self.inner.layout)
            .field("sources", &self.inner.sources.len())
            .field("tensors", &self.inner.tensors.len())
            .field("total_bytes", &self.inner.total_bytes)
            .finish_non_exhaustive()
    }
}

/// How to open a checkpoint: made by [`Checkpoint::options`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    layout: Option<Layout>,
    engine: Option<Engine>,
}

impl OpenOptions {
    /// Says which layout it is: needed where a folder holds both, or where a SafeTensors file has
    /// a name ending in `.json`.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Uses this engine and not the shared one.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Opens the checkpoint at `path`.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Checkpoint> {
        let engine = self.engine.unwrap_or_else(Engine::shared);
        let found = resolve::resolve(path.as_ref(), self.layout)?;
        tracing::debug!(path = %crate::text::path(path.as_ref()), ?found, "resolved checkpoint");
        let layout = found.layout();
        let place = Place {
            path: path.as_ref().to_owned(),
            root: found.root(),
        };
        let contents = open::open(found, &engine)?;
        Checkpoint::new(engine, place, layout, contents)
    }
}
