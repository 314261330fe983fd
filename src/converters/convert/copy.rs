//! Reading, writing and flushing at the same time.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::companions::Companion;
use super::parts::{Parts, part_path};
use super::readback::CAN_COMPARE;
use super::{Conversion, PIECE_BYTES, Piece, commit, journal};
use crate::checkpoint::pieces::{piece_number, rename_piece};
use crate::converters::folder::OutputFolder;
use crate::converters::in_parallel;
use crate::error::{Error, Result};
use crate::formats::JOURNAL_FILE;
use crate::load::{Digests, Loader, TensorStream};
use crate::tensor::Tensor;

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
pub(super) type PieceDigests = Vec<Option<[u8; 32]>>;

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
            .digests(digests)
            .cancel_with(self.cancel.clone()))
    }

    /// Threads that write, each with a piece that is no longer the stream's.
    fn writers(&self) -> usize {
        let pieces = self.options.budget / 2 / PIECE_BYTES;
        pieces.clamp(1, WRITERS as u64) as usize
    }

    fn stream_budget(&self) -> u64 {
        let budget = self.options.budget;
        let written = self.writers() as u64 * PIECE_BYTES;
        budget.saturating_sub(written).max(1)
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
        let found = match keep && CAN_COMPARE {
            true => self.resumable(path)?,
            false => None,
        };
        let done = match &found {
            Some(found) => found.done.clone(),
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
        // Also what was written and never noted has its place already.
        let parts = plan.files.iter().map(|file| part_path(path, &file.name));
        let there = parts.map(|part| allocated(&part)).sum::<u64>().max(resumed);
        folder.require_space(total.saturating_sub(there))?;

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
        for (name, bytes) in self.small_files() {
            write_small(folder, name, bytes, keep)?;
        }
        if self.options.verify {
            self.compare(path, digests, progress)?;
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
            let copied = for_each(stream, self.writers(), &failed, &|piece: Tensor| {
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

    pub(super) fn tensor_name(&self, piece: usize) -> &str {
        &self.checkpoint.tensors()[self.pieces[piece].cut.tensor].name
    }

    pub(super) fn name_tensor(&self, error: Error) -> Error {
        rename_piece(error, |piece| self.tensor_name(piece))
    }
}

/// Bytes that a file takes on its disk, at most its length; 0 where there is none.
fn allocated(path: &Path) -> u64 {
    let Ok(found) = path.metadata() else {
        return 0;
    };
    #[cfg(unix)]
    let blocks = std::os::unix::fs::MetadataExt::blocks(&found).saturating_mul(512);
    #[cfg(not(unix))]
    let blocks = 0;
    blocks.min(found.len())
}

/// SHA-256, where this build has it; options that need it are refused where it has not.
pub(super) fn all_digests() -> Digests {
    #[cfg(feature = "digest")]
    return Digests::Sha256;
    #[cfg(not(feature = "digest"))]
    Digests::None
}

/// Takes pieces as they arrive and hands them to several threads. The first error ends it.
fn for_each(
    stream: TensorStream,
    writers: usize,
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
    in_parallel(writers.min(cores.max(2)), work)
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
