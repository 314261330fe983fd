//! A checkpoint in another layout, of any size, in bounded memory, and whole or not at all.
//!
//! ```text
//!  Checkpoint --target--> where every byte goes   (pure)
//!      |                        |
//!   pieces of 16 MiB --backend, budget--> writers --> .NAME.part, flushed, journal
//!                                                          |  verify: read back, compare
//!                                                       commit: renames, index last
//! ```
//!
//! Nothing has a final name before every byte is on disk. A run that was killed left parts and a
//! journal of what they hold, with which the same conversion goes on; or, killed among the renames,
//! a folder that readers refuse until it is continued.

mod commit;
mod companions;
mod copy;
mod journal;
mod metadata;
mod parts;
mod target;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::pieces::{Cut, cuts_of};
use crate::converters::folder::OutputFolder;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::serverlessllm::Dialect;
use crate::formats::{INCOMPLETE_FILE, JOURNAL_FILE, Layout};
use crate::load::Digests;
use crate::storage::BackendKind;
use companions::Companion;
use journal::Fingerprint;
use target::Target;

#[cfg(feature = "hub")]
pub(crate) use companions::is_companion;
pub use metadata::{METADATA_FILE, MetadataConflict};
pub use target::DEFAULT_SHARD_BYTES;

/// Bytes that are in memory at most where nothing else is asked for: 512 MiB.
const DEFAULT_BUDGET: u64 = 512 << 20;

/// Bytes of a piece, at most; smaller under a small budget.
const PIECE_BYTES: u64 = 16 << 20;

/// Pieces that a budget is divided into, at least.
const PIECES_PER_BUDGET: u64 = 16;

/// What to convert into, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertOptions {
    /// The layout to write; `None` is the one that the input has not.
    pub to: Option<Layout>,
    /// Partitions, or SafeTensors files; `None` takes one partition for each 512 MiB begun, or files
    /// of [`max_shard_bytes`](Self::max_shard_bytes).
    pub partitions: Option<u32>,
    /// Bytes of tensors in a SafeTensors file at most; `None` is [`DEFAULT_SHARD_BYTES`].
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
    /// leaves if it fails. What seems to be complete is read back and compared; that needs the
    /// feature `digest`.
    pub resume: bool,
    /// Write into a folder that holds other files. Those of an earlier checkpoint, under the names
    /// that conversions give, are replaced or removed at the end.
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
    fn check(&self, to: Layout) -> Result<()> {
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
                self.resume && self.force,
                "to resume and to write from the start contradict each other",
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

/// A piece of a tensor and its place.
#[derive(Debug, Clone, Copy)]
struct Piece {
    cut: Cut,
    file: usize,
    offset: u64,
}

/// A conversion that has been decided to the byte, before anything is written.
#[derive(Debug)]
pub struct Conversion {
    checkpoint: Checkpoint,
    options: ConvertOptions,
    target: Target,
    companions: Vec<Companion>,
    pieces: Vec<Piece>,
    fingerprint: Fingerprint,
    backend: BackendKind,
    /// Writes that succeed, in tests.
    #[cfg(test)]
    writes_left: std::sync::Arc<std::sync::atomic::AtomicI64>,
}

impl Conversion {
    /// Decides what is to be written, and by which backend it is to be read.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a tensor that the target cannot hold, by name and dtype;
    /// [`ErrorKind::InvalidArgument`] for options that contradict each other or would be ignored;
    /// [`ErrorKind::Unavailable`] for a backend that cannot run here; [`ErrorKind::Io`] when the
    /// folder of the input cannot be listed.
    pub fn plan(checkpoint: &Checkpoint, options: &ConvertOptions) -> Result<Self> {
        let target = Target::new(checkpoint, options)?;
        let root = checkpoint.root();
        let mut companions = Vec::new();
        if options.companions && !root.as_os_str().is_empty() {
            companions = companions::companions(root)?;
        }
        let chunk = piece_bytes(options.budget);
        let mut pieces = Vec::new();
        for (at, meta) in checkpoint.tensors().iter().enumerate() {
            if target.owner[at] == at {
                let place = target.plan.placements[at];
                // Cut where the place in the output is a multiple, so that writes are aligned.
                pieces.extend(cuts_of(at, meta, place.offset, chunk).map(|cut| Piece {
                    cut,
                    file: place.file as usize,
                    offset: place.offset + cut.at,
                }));
            }
        }
        let mut conversion = Self {
            fingerprint: fingerprint(checkpoint, &target, &companions, chunk),
            checkpoint: checkpoint.clone(),
            options: options.clone(),
            target,
            companions,
            pieces,
            backend: options.backend,
            #[cfg(test)]
            writes_left: std::sync::Arc::new(i64::MAX.into()),
        };
        let loader = conversion.loader(0..conversion.pieces.len(), Digests::None)?;
        conversion.backend = loader.schedule()?.decision().backend;
        Ok(conversion)
    }

    /// Bytes to read and write, without headers and other files.
    pub fn total_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.cut.len).sum()
    }

    /// Makes and locks the folder to write into. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when it is the folder that is read from, when somebody else
    /// writes into it, or when it holds files and neither is forced nor was left by an interrupted
    /// run that is to go on; [`ErrorKind::Io`].
    pub fn claim(&self, folder: &Path) -> Result<OutputFolder> {
        let sources = self.checkpoint.sources().iter();
        commit::refuse_input(sources.map(|source| source.path().to_owned()), folder)?;
        let there = |name: &str| folder.join(name).symlink_metadata().is_ok();
        let interrupted = there(INCOMPLETE_FILE);
        if self.options.force
            || self.options.resume
                && (interrupted || there(JOURNAL_FILE) || self.is_complete(folder))
        {
            return OutputFolder::claim(folder);
        }
        if interrupted {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a conversion into this folder was interrupted",
            )
            .at(folder)
            .help("continue it with --resume, or start again with --force"));
        }
        OutputFolder::claim_empty(folder)
    }

    /// Converts into a folder that the caller has [claimed](Self::claim) and releases. `progress` is
    /// told bytes as they are written, and again as they are read back.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], with the file, when there is too little space, or reading or writing fails;
    /// what [`Loader::stream`](crate::Loader::stream) reports about the input. Nothing has a final
    /// name then, unless files of those names were being replaced: that is finished by the same
    /// conversion with [`ConvertOptions::resume`].
    pub fn run(
        &self,
        folder: &OutputFolder,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<ConvertReport> {
        let path = folder.path();
        let keep = self.options.resume;
        let mut resumed_bytes = 0;
        let mut others: Vec<String> = self.companions.iter().map(|c| c.name.clone()).collect();
        if self.target.metadata_file.is_some() {
            others.push(METADATA_FILE.to_owned());
        }
        let mark = path.join(INCOMPLETE_FILE);
        let count = self.pieces.len();
        // A journal beside the mark is of a later run, which has its own parts.
        let marked = keep
            && path.join(JOURNAL_FILE).symlink_metadata().is_err()
            && journal::read(&mark, self.fingerprint, count).is_some()
            && commit::is_all_there(path, &self.target.plan, &others);
        let complete = keep && !marked && self.is_complete(path);
        if keep {
            folder.sync_itself()?;
            folder.leave();
        }
        if marked || complete {
            resumed_bytes = self.total_bytes();
            progress(resumed_bytes);
            // Another input may have the same names and shapes: what claims to be complete is
            // believed when it has the same bytes.
            if complete || self.options.verify {
                self.verify(path, vec![None; count], progress)?;
            }
        } else {
            resumed_bytes += self.fill(folder, progress)?;
        }
        if complete {
            commit::forget_earlier(path)?;
        } else {
            commit::commit(folder, &self.target.plan, &others)?;
        }
        let verified = complete || self.options.verify;
        Ok(self.report(path, others, resumed_bytes, verified))
    }

    fn report(
        &self,
        folder: &Path,
        others: Vec<String>,
        resumed_bytes: u64,
        verified: bool,
    ) -> ConvertReport {
        let plan = &self.target.plan;
        let index = plan.index.iter().map(|index| &index.name);
        let names = plan.files.iter().map(|file| &file.name).chain(index);
        ConvertReport {
            from: self.checkpoint.layout(),
            to: self.target.layout,
            folder: folder.to_owned(),
            backend: self.backend,
            tensors: plan.tensors.len() as u64,
            tensor_bytes: plan.tensor_bytes(),
            data_files: plan.files.len() as u64,
            files: names.map(|name| folder.join(name)).collect(),
            file_bytes: plan.total_file_bytes(),
            copied: others.iter().map(|name| folder.join(name)).collect(),
            untied: self.target.untied.clone(),
            doubled_bytes: self.target.doubled_bytes,
            metadata_conflicts: self.target.conflicts.clone(),
            resumed_bytes,
            verified,
        }
    }

    /// Whether the folder holds what this conversion writes, as far as indexes, headers and sizes
    /// tell. Never in a build that cannot compare the rest.
    fn is_complete(&self, folder: &Path) -> bool {
        let plan = &self.target.plan;
        let same_head = |file: &crate::converters::OutputFile| {
            use std::io::Read as _;
            let path = folder.join(&file.name);
            let right_len = path.metadata().is_ok_and(|found| found.len() == file.len);
            let mut head = vec![0; file.head.len()];
            right_len
                && std::fs::File::open(path).is_ok_and(|mut opened| {
                    opened.read_exact(&mut head).is_ok() && head == file.head
                })
        };
        let index = plan.index.as_ref();
        let same_index = index.is_none_or(|index| {
            std::fs::read(folder.join(&index.name)).is_ok_and(|found| found == index.bytes)
        });
        cfg!(feature = "digest")
            && folder.join(INCOMPLETE_FILE).symlink_metadata().is_err()
            && same_index
            && plan.files.iter().all(same_head)
    }
}

/// Converts `checkpoint` into `folder`.
///
/// The bytes that are written depend on the checkpoint and the options only.
///
/// # Errors
/// Those of [`Conversion::plan`], [`Conversion::claim`] and [`Conversion::run`].
pub fn convert(
    checkpoint: &Checkpoint,
    folder: impl AsRef<Path>,
    options: &ConvertOptions,
) -> Result<ConvertReport> {
    let conversion = Conversion::plan(checkpoint, options)?;
    let folder = conversion.claim(folder.as_ref())?;
    let report = conversion.run(&folder, &|_| {})?;
    folder.release(|_| Ok(()))?;
    Ok(report)
}

fn piece_bytes(budget: u64) -> u64 {
    (budget / PIECES_PER_BUDGET)
        .clamp(512 << 10, PIECE_BYTES)
        .next_multiple_of(4096)
}

/// Everything that the output depends on, and what tells that the input is the same.
fn fingerprint(
    checkpoint: &Checkpoint,
    target: &Target,
    companions: &[Companion],
    chunk: u64,
) -> Fingerprint {
    let mut print = Fingerprint::new();
    print.add(&chunk.to_le_bytes());
    for source in checkpoint.sources() {
        let identity = source.identity();
        print.add(&identity.len.to_le_bytes());
        print.add(&identity.mtime_ns.to_le_bytes());
    }
    for file in &target.plan.files {
        print.add(file.name.as_bytes());
        print.add(&file.head);
        print.add(&file.len.to_le_bytes());
    }
    for place in &target.plan.placements {
        print.add(&place.offset.to_le_bytes());
        print.add(&place.file.to_le_bytes());
    }
    print.add(target.plan.index.as_ref().map_or(&[], |index| &index.bytes));
    print.add(target.metadata_file.as_deref().unwrap_or_default());
    for companion in companions {
        print.add(companion.name.as_bytes());
        print.add(&companion.len.to_le_bytes());
    }
    print
}
