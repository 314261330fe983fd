//! Reading, writing and flushing at the same time, and reading back.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::companions::Companion;
use super::metadata::METADATA_FILE;
use super::parts::{Parts, part_path};
use super::{Conversion, Piece, commit, journal, piece_bytes};
use crate::checkpoint::pieces::{piece_number, rename_piece};
use crate::converters::folder::OutputFolder;
use crate::converters::in_parallel;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::JOURNAL_FILE;
use crate::load::{Digests, Loader, TensorStream};
use crate::storage::Source;
use crate::storage::local::LocalFile;
use crate::tensor::{Extent, Tensor};

/// Threads that write: copying into the page cache is work for more than one. Writing around it was
/// slower: `results/copies.tsv` has direct copies at about half of a conversion's rate.
const WRITERS: usize = 4;

/// Bytes after which what was written is flushed and noted: the disk never has much to do at the
/// end, and an interrupted run never much to do again.
const FLUSH_BYTES: u64 = 256 << 20;

/// The same after so much time, for slow inputs.
const FLUSH_AFTER: Duration = Duration::from_secs(2);

/// Bytes of other files that are in memory at a time.
const COPY_BYTES: usize = 1 << 20;

/// Digests of pieces, where they are known.
type PieceDigests = Vec<Option<[u8; 32]>>;

impl Conversion {
    /// A loader of the pieces with these numbers, under what the writers leave of the budget.
    pub(super) fn loader(
        &self,
        numbers: impl IntoIterator<Item = usize>,
        digests: Digests,
    ) -> Result<Loader> {
        let cuts = numbers.into_iter().map(|n| (n, self.pieces[n].cut));
        let pieces = self.checkpoint.pieces(cuts)?;
        Ok(pieces
            .loader()
            .backend(self.options.backend)
            .budget(self.stream_budget())
            .digests(digests))
    }

    fn stream_budget(&self) -> u64 {
        let budget = self.options.budget;
        let written = WRITERS as u64 * piece_bytes(budget);
        budget.saturating_sub(written).max(budget / 2).max(1)
    }

    /// Those of what is copied: only what is verified is hashed.
    fn digests_of_copies(&self) -> Digests {
        match self.options.verify {
            true => all_digests(),
            false => Digests::None,
        }
    }

    /// Writes every byte of the output into parts, flushed. Gives the bytes that were there before.
    pub(super) fn fill(
        &self,
        folder: &OutputFolder,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<u64> {
        let (path, keep) = (folder.path(), self.options.resume);
        let journal_path = path.join(JOURNAL_FILE);
        let plan = &self.target.plan;
        let found = match keep {
            true => journal::read(&journal_path, self.fingerprint, self.pieces.len()),
            false => None,
        };
        // A part that is gone, or has another length, holds nothing.
        let whole: Vec<bool> = match found.is_some() {
            true => plan
                .files
                .iter()
                .map(|file| {
                    let part = part_path(path, &file.name).metadata();
                    part.is_ok_and(|part| part.len() == file.len)
                })
                .collect(),
            false => Vec::new(),
        };
        let done: Vec<bool> = match &found {
            Some(found) => {
                let pieces = self.pieces.iter().zip(&found.done);
                pieces
                    .map(|(piece, &done)| done && whole[piece.file])
                    .collect()
            }
            None => {
                commit::forget_earlier(path)?;
                vec![false; self.pieces.len()]
            }
        };
        let pieces = self.pieces.iter().zip(&done);
        let resumed: u64 = pieces
            .filter(|(_, done)| **done)
            .map(|(p, _)| p.cut.len)
            .sum();
        let beside: u64 = self.companions.iter().map(|file| file.len).sum();
        let total = plan.total_file_bytes().saturating_add(beside);
        folder.require_space(total.saturating_sub(resumed))?;

        let mut journal = folder.part(&journal_path, keep)?;
        match &found {
            Some(found) => {
                let ready = journal
                    .set_len(found.len)
                    .and_then(|()| journal.seek(io::SeekFrom::End(0)));
                ready.map_err(|error| Error::io("write", &journal_path, error))?;
            }
            None => journal::begin(&mut journal, &journal_path, self.fingerprint)?,
        }
        let parts = Parts::create(folder, &plan.files, keep)?;
        #[cfg(test)]
        let parts = parts.failing_after(&self.writes_left);
        // The parts must be in the folder before the journal says that they hold something.
        folder.sync()?;
        progress(resumed);
        let todo = (0..self.pieces.len()).filter(|&n| !done[n]);
        let digests = self.copy(&parts, todo, &mut journal, &journal_path, progress)?;
        for companion in &self.companions {
            copy_companion(companion, folder, keep)?;
        }
        let small = [
            plan.index
                .as_ref()
                .map(|index| (&*index.name, &*index.bytes)),
            self.target
                .metadata_file
                .as_deref()
                .map(|bytes| (METADATA_FILE, bytes)),
        ];
        for (name, bytes) in small.into_iter().flatten() {
            write_small(folder, name, bytes, keep)?;
        }
        if self.options.verify {
            self.verify(path, digests, progress)?;
        }
        Ok(resumed)
    }

    /// Copies pieces, with digests of what was read where they are asked for.
    pub(super) fn copy(
        &self,
        parts: &Parts<'_>,
        numbers: impl Iterator<Item = usize>,
        journal: &mut File,
        journal_path: &Path,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PieceDigests> {
        let stream = self.loader(numbers, self.digests_of_copies())?.stream()?;
        let digests = Mutex::new(vec![None; self.pieces.len()]);
        let (written, to_flush) = channel();
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flusher = scope.spawn(|| {
                let ended = flush_along(parts, &self.pieces, to_flush, journal, journal_path);
                failed.fetch_or(ended.is_err(), Ordering::Relaxed);
                ended
            });
            let copied = for_each(stream, &failed, &|piece: Tensor| {
                let number = piece_number(&piece);
                let Piece { file, offset, .. } = self.pieces[number];
                parts.write(file, offset, piece.bytes())?;
                if let Some(digest) = piece.sha256() {
                    lock(&digests)[number] = Some(*digest);
                }
                progress(piece.bytes().len() as u64);
                // Fails when the flusher has, which says why itself.
                let _ = Sender::clone(&written).send(number);
                Ok(())
            });
            drop(written);
            let flushed = flusher
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            copied.map_err(|error| self.name_tensor(error))?;
            flushed
        })?;
        Ok(digests.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads back what was written, and compares it with `expected`: digests of what was read from
    /// the input, which is read again where there is none.
    pub(super) fn verify(
        &self,
        folder: &Path,
        mut expected: PieceDigests,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let unknown: Vec<usize> = (0..expected.len())
            .filter(|&n| expected[n].is_none())
            .collect();
        if !unknown.is_empty() {
            let loader = self.loader(unknown, all_digests())?;
            for piece in loader.stream()? {
                let piece = piece.map_err(|error| self.name_tensor(error))?;
                expected[piece_number(&piece)] = piece.sha256().copied();
            }
        }
        let engine = self.checkpoint.engine();
        let mut sources: Vec<Arc<dyn Source>> = Vec::new();
        for file in &self.target.plan.files {
            let part = part_path(folder, &file.name);
            let path = match part.symlink_metadata() {
                Ok(_) => part,
                Err(_) => folder.join(&file.name),
            };
            // What is read back shall come from the disk. Where it cannot be evicted, it is still
            // compared.
            let _ = crate::facts::process::evict(&path);
            sources.push(Arc::new(LocalFile::open(path, engine.descriptors())?));
        }
        let runs = self.pieces.iter().enumerate().map(|(number, piece)| {
            let run = Extent {
                source: piece.file as u32,
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
            .digests(all_digests());
        for piece in loader.stream()? {
            let piece = piece.map_err(|error| self.name_tensor(error))?;
            let number = piece_number(&piece);
            progress(piece.bytes().len() as u64);
            if piece.sha256() != expected[number].as_ref() {
                let Piece { cut, file, offset } = self.pieces[number];
                let message = format!(
                    "bytes {offset}..{} of the file are not those of the input",
                    offset + cut.len
                );
                return Err(Error::new(ErrorKind::Io, message)
                    .at(folder.join(&self.target.plan.files[file].name))
                    .tensor(self.tensor_name(number))
                    .help("it was written from another input or by a faulty machine; convert again with --force"));
            }
        }
        Ok(())
    }

    fn tensor_name(&self, piece: usize) -> &str {
        &self.checkpoint.tensors()[self.pieces[piece].cut.tensor].name
    }

    fn name_tensor(&self, error: Error) -> Error {
        rename_piece(error, |piece| self.tensor_name(piece))
    }
}

/// SHA-256, where this build has it; options that need it are refused where it has not.
fn all_digests() -> Digests {
    #[cfg(feature = "digest")]
    return Digests::Sha256;
    #[cfg(not(feature = "digest"))]
    Digests::None
}

/// Takes pieces as they arrive and hands them to several threads. The first error ends it.
fn for_each(
    stream: TensorStream,
    failed: &AtomicBool,
    each: &(impl Fn(Tensor) -> Result<()> + Sync),
) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let stream = Mutex::new(stream);
    let next = || {
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        lock(&stream).next()
    };
    let work = || {
        while let Some(piece) = next() {
            if let Err(error) = piece.and_then(each) {
                failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    in_parallel(cores.clamp(2, WRITERS), work)
}

/// Flushes and notes what arrives, until the last writer is gone, and then the rest.
fn flush_along(
    parts: &Parts<'_>,
    pieces: &[Piece],
    written: Receiver<usize>,
    journal: &mut File,
    journal_path: &Path,
) -> Result<()> {
    let (mut waiting, mut bytes, mut last) = (Vec::new(), 0, Instant::now());
    loop {
        let ended = match written.recv_timeout(FLUSH_AFTER) {
            Ok(number) => {
                waiting.push(number);
                bytes += pieces[number].cut.len;
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if ended || bytes >= FLUSH_BYTES || (bytes > 0 && last.elapsed() >= FLUSH_AFTER) {
            parts.flush()?;
            journal::add(journal, journal_path, std::mem::take(&mut waiting))?;
            (bytes, last) = (0, Instant::now());
        }
        if ended {
            return Ok(());
        }
    }
}

/// In chunks: nothing says that a file is small.
fn copy_companion(companion: &Companion, folder: &OutputFolder, keep: bool) -> Result<()> {
    let failed = |error| Error::io("read", &companion.path, error);
    let mut from = File::open(&companion.path).map_err(failed)?;
    let mut chunk = vec![0; COPY_BYTES];
    let write = |to: &mut File| -> Result<()> {
        loop {
            let count = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            let target = folder.path().join(&companion.name);
            to.write_all(&chunk[..count])
                .map_err(|error| Error::io("write", &target, error))?;
        }
        keep_mode(&from, to);
        Ok(())
    };
    whole_part(folder, &companion.name, keep, write)
}

/// What few may read stays so. The owner may write in any case: an interrupted copy is opened again.
fn keep_mode(from: &File, to: &File) {
    #[cfg(unix)]
    if let Ok(found) = from.metadata() {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = found.permissions().mode() & 0o777 | 0o200;
        // Some file systems have no permissions to set.
        let _ = to.set_permissions(std::fs::Permissions::from_mode(mode));
    }
    #[cfg(not(unix))]
    let _ = (from, to);
}

fn write_small(folder: &OutputFolder, name: &str, bytes: &[u8], keep: bool) -> Result<()> {
    whole_part(folder, name, keep, |file| {
        let target = folder.path().join(name);
        file.write_all(bytes)
            .map_err(|error| Error::io("write", &target, error))
    })
}

/// A part that is written from its start, and flushed.
fn whole_part(
    folder: &OutputFolder,
    name: &str,
    keep: bool,
    write: impl FnOnce(&mut File) -> Result<()>,
) -> Result<()> {
    let part = part_path(folder.path(), name);
    let mut file = folder.part(&part, keep)?;
    let target = folder.path().join(name);
    file.set_len(0)
        .map_err(|error| Error::io("write", &target, error))?;
    write(&mut file)?;
    file.sync_all()
        .map_err(|error| Error::io("flush to disk", &target, error))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
