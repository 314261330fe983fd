//! A checkpoint in another layout, of any size, in bounded memory, and whole or not at all.
//!
//! ```text
//!  Checkpoint --target--> where every byte goes   (pure)
//!      |                        |
//!   pieces of 4 MiB  --backend, budget--> writers --> .NAME.part, flushed, journal
//!                                                          |  verify: read back, compare
//!                                                       commit: renames, index last
//! ```
//!
//! Nothing has a final name before every byte is on disk. A run that was killed left parts and a
//! journal of what they hold, with which the same conversion goes on; or, killed among the renames,
//! a folder that readers refuse until it is continued.

mod changes;
mod claim;
mod commit;
mod companions;
mod copy;
mod input;
mod journal;
mod metadata;
mod options;
mod parts;
mod readback;
mod target;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::checkpoint::pieces::{Cut, cuts_of};
use crate::converters::folder::OutputFolder;
use crate::converters::names::{METADATA_FILE, read_file};
use crate::error::Result;
use crate::formats::{INCOMPLETE_FILE, JOURNAL_FILE};
use crate::load::{CancelToken, Digests};
use crate::storage::BackendKind;
use changes::Changes;
use companions::{Companion, Companions};
use input::Input;
use journal::Fingerprint;
use target::Target;

pub use metadata::MetadataConflict;
pub use options::{ConvertOptions, ConvertReport};
pub use target::DEFAULT_SHARD_BYTES;

/// Bytes of a piece, at most. It does not depend on the budget, so that a run can go on under another
/// one; the smallest budget has room for one piece that is read and one that is written.
const PIECE_BYTES: u64 = if cfg!(test) { 512 << 10 } else { 4 << 20 };

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
    /// What looks like companions and cannot be copied.
    skipped: Vec<PathBuf>,
    pieces: Vec<Piece>,
    fingerprint: Fingerprint,
    input: Input,
    backend: BackendKind,
    cancel: CancelToken,
    /// Writes that succeed, in tests.
    #[cfg(test)]
    writes_left: std::sync::Arc<std::sync::atomic::AtomicI64>,
}

impl Conversion {
    /// Decides what is to be written, and by which backend it is to be read.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a tensor that the target cannot hold, by name and dtype;
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for options that contradict each other or would be ignored;
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) for a backend that cannot run here; [`ErrorKind::Io`](crate::ErrorKind::Io) when the
    /// folder of the input cannot be listed.
    pub fn plan(checkpoint: &Checkpoint, options: &ConvertOptions) -> Result<Self> {
        let target = Target::new(checkpoint, options)?;
        let root = checkpoint.root();
        let companions = match options.companions && !root.as_os_str().is_empty() {
            true => Companions::of(root)?,
            false => Companions::default(),
        };
        let mut pieces = Vec::new();
        for (at, meta) in checkpoint.tensors().iter().enumerate() {
            if target.owner[at] == at {
                let place = target.plan.placements[at];
                // Cut where the place in the output is a multiple, so that writes are aligned.
                pieces.extend(
                    cuts_of(at, meta, place.offset, PIECE_BYTES).map(|cut| Piece {
                        cut,
                        file: place.file as usize,
                        offset: place.offset + cut.at,
                    }),
                );
            }
        }
        let mut conversion = Self {
            input: Input::of(checkpoint, &companions.files),
            fingerprint: input::fingerprint(checkpoint, &target, &companions.files),
            checkpoint: checkpoint.clone(),
            options: options.clone(),
            target,
            companions: companions.files,
            skipped: companions.skipped,
            pieces,
            backend: options.backend,
            cancel: CancelToken::default(),
            #[cfg(test)]
            writes_left: std::sync::Arc::new(i64::MAX.into()),
        };
        let loader = conversion.loader(0..conversion.pieces.len(), Digests::None)?;
        conversion.backend = loader.schedule()?.decision().backend;
        Ok(conversion)
    }

    /// Lets `token` end the conversion from another thread, as a failure of reading would.
    #[must_use]
    pub fn cancel_with(mut self, token: CancelToken) -> Self {
        self.cancel = token;
        self
    }

    /// Bytes to read and write, without headers and other files.
    pub fn total_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.cut.len).sum()
    }

    /// Converts into a folder that the caller has [claimed](Self::claim) and releases. `progress` is
    /// told bytes as they are written, and again as they are read back.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io), with the file, when there is too little space, or reading or writing fails;
    /// [`ErrorKind::SourceChanged`](crate::ErrorKind::SourceChanged) when the input was touched meanwhile;
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
        let others = self.others();
        let changes = Changes::of(path, &self.target.plan, &others)?;
        self.refuse_unasked(path, &changes)?;
        let replaced = self.replaced(path, &changes);
        let mark = path.join(INCOMPLETE_FILE);
        let count = self.pieces.len();
        // A journal beside the mark is of a later run, which has its own parts.
        let marked = keep
            && readback::CAN_COMPARE
            && path.join(JOURNAL_FILE).symlink_metadata().is_err()
            && journal::read(&mark, self.fingerprint, count).is_some()
            && commit::is_all_there(path, &self.target.plan, &others);
        let complete = keep && !marked && self.is_complete(path);
        if keep {
            folder.sync_itself()?;
            folder.leave();
        }
        // Another input may have the same names and shapes, and files may have changed since: what
        // claims to be there is believed when it has the same bytes.
        let compared = match marked || complete {
            true => self.compare_found(path, progress)?,
            false => false,
        };
        let resumed_bytes = match compared {
            true => self.total_bytes(),
            false => self.fill(folder, progress)?,
        };
        self.input.refuse_changed()?;
        let is_done = complete && compared;
        if is_done {
            commit::forget_earlier(path)?;
        }
        if is_done && !changes.obsolete.is_empty() {
            // Whoever finds it half done has to know what else is to go.
            self.begin_journal(folder)?;
        }
        if !is_done || !changes.obsolete.is_empty() {
            commit::commit(folder, &self.target.plan, &others, &changes, keep)?;
        }
        let verified = compared || self.options.verify;
        let mut report = self.report(path, others, resumed_bytes, verified);
        report.replaced = replaced;
        report.removed = in_folder(path, &changes.obsolete);
        report.kept = in_folder(path, &changes.kept);
        Ok(report)
    }

    /// A journal without pieces, for a commit that only removes.
    fn begin_journal(&self, folder: &OutputFolder) -> Result<()> {
        let path = folder.path().join(JOURNAL_FILE);
        let mut file = folder.part(&path, true)?;
        journal::begin(&mut file, &path, self.fingerprint)?;
        folder.sync()
    }

    /// Whether what seems to be complete has the right bytes. An error where it has not, unless it
    /// may be replaced.
    fn compare_found(&self, folder: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<bool> {
        let reading = |bytes| {
            if self.options.verify {
                progress(bytes);
            }
        };
        match self.compare(folder, vec![None; self.pieces.len()], &reading) {
            Ok(()) => {
                progress(self.total_bytes());
                Ok(true)
            }
            Err(_) if self.options.force => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Names of files beside the data files and the index.
    fn others(&self) -> Vec<String> {
        let companions = self.companions.iter().map(|file| file.name.clone());
        let metadata = self.target.metadata_file.iter();
        companions
            .chain(metadata.map(|_| METADATA_FILE.to_owned()))
            .collect()
    }

    /// Companions that take the place of a file with other contents.
    fn replaced(&self, folder: &Path, changes: &Changes) -> Vec<PathBuf> {
        let taken = |file: &&Companion| changes.taken.contains(&file.name);
        let places = self.companions.iter().filter(taken);
        let places = places.map(|file| (&file.path, folder.join(&file.name)));
        places
            // What cannot be read is not the same.
            .filter(|(from, to)| !readback::same_files(from, to).unwrap_or(false))
            .map(|(_, to)| to)
            .collect()
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
            files: in_folder(folder, names),
            file_bytes: plan.total_file_bytes(),
            copied: in_folder(folder, &others),
            replaced: Vec::new(),
            removed: Vec::new(),
            kept: Vec::new(),
            skipped: self.skipped.clone(),
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
            let found = path.metadata();
            let right_len = found.is_ok_and(|found| found.is_file() && found.len() == file.len);
            let mut head = vec![0; file.head.len()];
            right_len
                && std::fs::File::open(path).is_ok_and(|mut opened| {
                    opened.read_exact(&mut head).is_ok() && head == file.head
                })
        };
        let index = plan.index.as_ref();
        let same_index = index.is_none_or(|index| {
            read_file(&folder.join(&index.name)).is_ok_and(|found| found == index.bytes)
        });
        readback::CAN_COMPARE
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

fn in_folder<'n>(folder: &Path, names: impl IntoIterator<Item = &'n String>) -> Vec<PathBuf> {
    names.into_iter().map(|name| folder.join(name)).collect()
}
