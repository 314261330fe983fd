//! What is asked of a conversion, and what it says in the end.

use super::metadata::MetadataConflict;
use std::path::PathBuf;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::formats::Layout;
use crate::formats::serverlessllm::Dialect;
use crate::storage::BackendKind;

/// Bytes that are in memory at most where nothing else is asked for: 512 MiB.
const DEFAULT_BUDGET: u64 = 512 << 20;

/// What to convert into, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertOptions {
    /// The layout to write; `None` is the one that the input has not.
    pub to: Option<Layout>,
    /// Partitions, or SafeTensors files; `None` takes one partition for each 512 MiB begun, or files
    /// of [`max_shard_bytes`](Self::max_shard_bytes).
    pub partitions: Option<u32>,
    /// Bytes of tensors in a SafeTensors file at most; `None` is
    /// [`DEFAULT_SHARD_BYTES`](super::DEFAULT_SHARD_BYTES).
    pub max_shard_bytes: Option<u64>,
    /// The dialect of a ServerlessLLM target.
    pub dialect: Dialect,
    /// No bytes between tensors of the six-element dialect.
    pub packed: bool,
    /// Who reads.
    pub backend: BackendKind,
    /// Bytes in memory at most: in flight, waiting, and being written. At least 8 MiB.
    pub budget: u64,
    /// Copy configuration and tokenizer files along.
    pub companions: bool,
    /// Go on where an earlier run of the same conversion was interrupted, and keep what this one
    /// leaves if it fails. What is there already is read back and compared with the input, which
    /// needs the feature `digest`: without it, everything is written anew. What another conversion
    /// has left is refused, unless [`force`](Self::force) says that it may go.
    pub resume: bool,
    /// Write into a folder that holds other files. An earlier checkpoint, whatever it is called, is
    /// replaced at the end; files that are not part of it stay.
    pub force: bool,
    /// Read back what was written, and compare a digest of every tensor, before it gets its name.
    /// Needs the feature `digest`.
    pub verify: bool,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            to: None,
            partitions: None,
            max_shard_bytes: None,
            dialect: Dialect::Local,
            packed: false,
            backend: BackendKind::Default,
            budget: DEFAULT_BUDGET,
            companions: true,
            resume: false,
            force: false,
            verify: false,
        }
    }
}

impl ConvertOptions {
    /// Refuses what would be ignored.
    pub(super) fn check(&self, to: Layout) -> Result<()> {
        let safetensors = to == Layout::SafeTensors;
        let refused = [
            (
                safetensors && self.dialect == Dialect::Global,
                "a dialect is for the ServerlessLLM layout",
            ),
            (
                safetensors && self.packed,
                "SafeTensors files have no bytes between tensors, packed or not",
            ),
            (
                !safetensors && self.max_shard_bytes.is_some(),
                "a largest shard is for the SafeTensors layout; partitions are counted",
            ),
            (
                self.packed && self.dialect == Dialect::Global,
                "the five-element dialect always pads records to 8 bytes",
            ),
            (
                self.partitions.is_some() && self.max_shard_bytes.is_some(),
                "a number of files and a largest size contradict each other",
            ),
            (
                self.partitions == Some(0),
                "a checkpoint has at least one file",
            ),
            (
                self.verify && !cfg!(feature = "digest"),
                "this build cannot verify: it lacks the feature digest",
            ),
        ];
        match refused.into_iter().find(|(refused, _)| *refused) {
            Some((_, why)) => Err(Error::new(ErrorKind::InvalidArgument, why)),
            None => Ok(()),
        }
    }
}

/// What was written.
#[derive(Debug, Clone, Serialize)]
pub struct ConvertReport {
    /// The layout of the input.
    pub from: Layout,
    /// The layout that was written.
    pub to: Layout,
    /// The folder.
    pub folder: PathBuf,
    /// Who has read.
    pub backend: BackendKind,
    /// Tensors, tied ones included.
    pub tensors: u64,
    /// Bytes of all tensors together.
    pub tensor_bytes: u64,
    /// Partitions or SafeTensors files.
    pub data_files: u64,
    /// The data files, and the index last.
    pub files: Vec<PathBuf>,
    /// Bytes of these files together.
    pub file_bytes: u64,
    /// Other files that were copied along.
    pub copied: Vec<PathBuf>,
    /// Those of them that took the place of a file with other contents.
    pub replaced: Vec<PathBuf>,
    /// Files of an earlier checkpoint that were removed.
    pub removed: Vec<PathBuf>,
    /// Configuration and tokenizer files that were in the folder before and stay there, although
    /// the input has none of these names.
    pub kept: Vec<PathBuf>,
    /// What lies beside the input under a name as of configuration or tokenizer, and was not copied
    /// along because it is no regular file or its name is not UTF-8.
    pub skipped: Vec<PathBuf>,
    /// Names that share bytes in the input and each have their own in SafeTensors, which cannot
    /// share.
    pub untied: Vec<Box<str>>,
    /// Bytes that are on disk more often than before because of that.
    pub doubled_bytes: u64,
    /// Keys of metadata that have different values in the files of the input.
    pub metadata_conflicts: Vec<MetadataConflict>,
    /// Bytes that an earlier run had written, and this one found.
    pub resumed_bytes: u64,
    /// Whether everything was read back and compared.
    pub verified: bool,
}
