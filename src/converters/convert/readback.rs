//! What lies in the folder, compared with what was to be written: after it was, and before bytes that
//! an earlier run has left are believed.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::copy::{PieceDigests, all_digests};
use super::journal::{self, Found};
use super::parts::part_path;
use super::{Conversion, Piece};
use crate::checkpoint::pieces::piece_number;
use crate::converters::names::METADATA_FILE;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::JOURNAL_FILE;
use crate::storage::Source;
use crate::storage::local::LocalFile;
use crate::tensor::Extent;

/// Whether this build can tell whether bytes are the same without holding both.
pub(super) const CAN_COMPARE: bool = cfg!(feature = "digest");

/// Bytes that are compared at a time.
const COMPARED_BYTES: u64 = 1 << 20;

/// What to do about a file that is not what it should be.
const AGAIN: &str =
    "it was written from another input or by a faulty machine; convert again with the option force";

impl Conversion {
    /// The pieces that an interrupted run has left in parts, and that have the bytes of the input.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] for pieces that have others, unless they may be replaced.
    pub(super) fn resumable(&self, folder: &Path) -> Result<Option<Found>> {
        let journal = folder.join(JOURNAL_FILE);
        let Some(mut found) = journal::read(&journal, self.fingerprint, self.pieces.len()) else {
            return Ok(None);
        };
        // A part that is gone, or has another length, holds nothing.
        let files = self.target.plan.files.iter();
        let whole: Vec<bool> = files
            .map(|file| {
                let part = part_path(folder, &file.name).metadata();
                part.is_ok_and(|part| part.len() == file.len)
            })
            .collect();
        for (done, piece) in found.done.iter_mut().zip(&self.pieces) {
            *done &= whole[piece.file];
        }
        let numbers: Vec<usize> = (0..found.done.len()).filter(|&n| found.done[n]).collect();
        let unknown = vec![None; self.pieces.len()];
        // The fingerprint tells files apart, and not all that can happen to their bytes.
        match self.compare_pieces(folder, &numbers, unknown, &|_| {}) {
            Ok(()) => Ok(Some(found)),
            Err(_) if self.options.force => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads back everything that was written, and compares it with what was to be written.
    /// `expected` has digests of what was read from the input, which is read again where there is
    /// none.
    pub(super) fn compare(
        &self,
        folder: &Path,
        expected: PieceDigests,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let all: Vec<usize> = (0..self.pieces.len()).collect();
        self.compare_pieces(folder, &all, expected, progress)?;
        self.compare_rest(folder)
    }

    /// Pieces of parts, or of files that have their names already.
    fn compare_pieces(
        &self,
        folder: &Path,
        numbers: &[usize],
        mut expected: PieceDigests,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let unknown = numbers.iter().copied();
        let unknown: Vec<usize> = unknown.filter(|&n| expected[n].is_none()).collect();
        if !unknown.is_empty() {
            let loader = self.loader(unknown, all_digests())?;
            for piece in loader.stream()? {
                let piece = piece.map_err(|error| self.name_tensor(error))?;
                expected[piece_number(&piece)] = piece.sha256().copied();
            }
        }
        let engine = self.checkpoint.engine();
        let mut sources: Vec<Arc<dyn Source>> = Vec::new();
        let mut source_of = vec![None; self.target.plan.files.len()];
        for &number in numbers {
            let file = self.pieces[number].file;
            if source_of[file].is_none() {
                let path = written(folder, &self.target.plan.files[file].name);
                source_of[file] = Some(sources.len() as u32);
                sources.push(Arc::new(LocalFile::open(path, engine.descriptors())?));
            }
        }
        let runs = numbers.iter().map(|&number| {
            let piece = self.pieces[number];
            let run = Extent {
                source: source_of[piece.file].unwrap_or_default(),
                offset: piece.offset,
                len: piece.cut.len,
            };
            (number, run)
        });
        let written = self.checkpoint.runs_of(sources, runs)?;
        let loader = written
            .loader()
            .backend(self.options.backend)
            .budget(self.options.budget)
            .digests(all_digests())
            .cancel_with(self.cancel.clone());
        for piece in loader.stream()? {
            let piece = piece.map_err(|error| self.name_tensor(error))?;
            let number = piece_number(&piece);
            progress(piece.bytes().len() as u64);
            // No digest is no proof.
            if piece.sha256().is_none() || piece.sha256() != expected[number].as_ref() {
                let Piece { cut, file, offset } = self.pieces[number];
                let message = format!(
                    "bytes {offset}..{} of the file are not those of the input",
                    offset + cut.len
                );
                return Err(Error::new(ErrorKind::Io, message)
                    .at(folder.join(&self.target.plan.files[file].name))
                    .tensor(self.tensor_name(number))
                    .help(AGAIN));
            }
        }
        Ok(())
    }

    /// Headers, index and metadata, without which the bytes are no checkpoint, and other files.
    fn compare_rest(&self, folder: &Path) -> Result<()> {
        let differs = |name: &str, what: &str| {
            Error::new(ErrorKind::Io, what)
                .at(folder.join(name))
                .help(AGAIN)
        };
        for file in &self.target.plan.files {
            let path = written(folder, &file.name);
            if !same_bytes(&path, &file.head, file.len)? {
                let what = "its length or its header is not what was to be written";
                return Err(differs(&file.name, what));
            }
        }
        for (name, bytes) in self.small_files() {
            if !same_bytes(&written(folder, name), bytes, bytes.len() as u64)? {
                return Err(differs(name, "it does not hold what was to be written"));
            }
        }
        for companion in &self.companions {
            if !same_files(&companion.path, &written(folder, &companion.name))? {
                let what = "it is not the same as the file of this name beside the input";
                return Err(differs(&companion.name, what));
            }
        }
        Ok(())
    }

    /// Index and metadata, with what is in them.
    pub(super) fn small_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let index = self.target.plan.index.as_ref();
        let index = index.map(|index| (&*index.name, &*index.bytes));
        let metadata = self.target.metadata_file.as_deref();
        let metadata = metadata.map(|bytes| (METADATA_FILE, bytes));
        index.into_iter().chain(metadata)
    }
}

/// Where a file of the output is: a part, or in its place. What is read of it shall come from the
/// disk; where it cannot be evicted, it is still compared.
fn written(folder: &Path, name: &str) -> PathBuf {
    let part = part_path(folder, name);
    let path = match part.symlink_metadata() {
        Ok(_) => part,
        Err(_) => folder.join(name),
    };
    let _ = crate::facts::process::evict(&path);
    path
}

/// Whether a file has this length and begins like this.
fn same_bytes(path: &Path, start: &[u8], len: u64) -> Result<bool> {
    let mut file = open(path)?;
    let found = file
        .metadata()
        .map_err(|error| Error::io("look at", path, error))?;
    Ok(found.len() == len && same(&mut file, path, &mut &*start, path, start.len() as u64)?)
}

/// Whether two files have the same contents.
pub(super) fn same_files(left: &Path, right: &Path) -> Result<bool> {
    same(&mut open(left)?, left, &mut open(right)?, right, u64::MAX)
}

fn open(path: &Path) -> Result<File> {
    let failed = |error| Error::io("open", path, error);
    // To open a pipe would wait for somebody who writes into it.
    if !path.metadata().map_err(failed)?.is_file() {
        let what = "this is not a regular file";
        return Err(Error::new(ErrorKind::NotAFile, what).at(path));
    }
    File::open(path).map_err(failed)
}

/// Compares at most `len` bytes: up to there or to their ends, whichever comes first, both must be
/// the same.
fn same(
    left: &mut dyn io::Read,
    left_path: &Path,
    right: &mut dyn io::Read,
    right_path: &Path,
    len: u64,
) -> Result<bool> {
    let (mut left, mut right) = (left.take(len), right.take(len));
    let (mut a, mut b) = (Vec::new(), Vec::new());
    loop {
        a.clear();
        b.clear();
        let read = left.by_ref().take(COMPARED_BYTES).read_to_end(&mut a);
        read.map_err(|error| Error::io("read", left_path, error))?;
        let read = right.by_ref().take(COMPARED_BYTES).read_to_end(&mut b);
        read.map_err(|error| Error::io("read", right_path, error))?;
        if a != b || a.is_empty() {
            return Ok(a == b);
        }
    }
}
