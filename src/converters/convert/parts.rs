//! The files of an output until they have their names: `.NAME.part` beside their places, written at
//! any offset from any thread, few of them open, flushed several at a time.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::converters::folder::OutputFolder;
use crate::converters::open_files::OpenFiles;
use crate::converters::{OutputFile, in_parallel, write_all_at};
use crate::error::{Error, Result};

/// Descriptors that are open at most, however many files there are.
const MAX_OPEN_FILES: usize = 64;

/// Files that are flushed at once: a disk orders what it is asked for together.
const FLUSHERS: usize = 8;

/// The data files of an output, by their numbers in its plan.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    folder: &'a OutputFolder,
    parts: Vec<Part>,
    open: OpenFiles,
    /// Parts stay when the output is not finished.
    keep: bool,
    /// Writes that still succeed, in tests.
    #[cfg(test)]
    writes_left: Arc<std::sync::atomic::AtomicI64>,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    target: PathBuf,
    /// Written to since the last flush.
    dirty: AtomicBool,
}

/// The name of a file of an output before it has its own.
pub(super) fn part_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}.part"))
}

/// Of the name of a part, the name that the file will have.
pub(super) fn name_of_part(name: &str) -> Option<&str> {
    let name = name.strip_prefix('.')?.strip_suffix(".part")?;
    (!name.is_empty()).then_some(name)
}

impl<'a> Parts<'a> {
    /// Makes all files at their full lengths, with their heads; what they hold already stays.
    pub(super) fn create(
        folder: &'a OutputFolder,
        files: &[OutputFile],
        keep: bool,
    ) -> Result<Self> {
        let mut parts = Vec::with_capacity(files.len());
        for output in files {
            let part = Part {
                path: part_path(folder.path(), &output.name),
                target: folder.path().join(&output.name),
                dirty: AtomicBool::new(true),
            };
            let file = folder.part(&part.path, keep)?;
            let made = file
                .set_len(output.len)
                .and_then(|()| write_all_at(&file, 0, &output.head));
            made.map_err(|error| Error::io("write", &part.target, error))?;
            parts.push(part);
        }
        Ok(Self {
            folder,
            parts,
            open: OpenFiles::new(MAX_OPEN_FILES),
            keep,
            #[cfg(test)]
            writes_left: Arc::new(i64::MAX.into()),
        })
    }

    /// The same parts, of which writes fail once `writes` are done.
    #[cfg(test)]
    pub(super) fn failing_after(mut self, writes: &Arc<std::sync::atomic::AtomicI64>) -> Self {
        self.writes_left = Arc::clone(writes);
        self
    }

    /// Writes at an offset of a file.
    pub(super) fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let part = &self.parts[file];
        let handle = self.handle(file)?;
        #[cfg(test)]
        let written = match self.writes_left.fetch_sub(1, Ordering::Relaxed) {
            ..=0 => Err(io::ErrorKind::StorageFull.into()),
            _ => write_all_at(&handle, offset, bytes),
        };
        #[cfg(not(test))]
        let written: io::Result<()> = write_all_at(&handle, offset, bytes);
        // After the write: a flush that comes between may miss it, and finds the mark again.
        part.dirty.store(true, Ordering::Release);
        written.map_err(|error| Error::io("write", &part.target, error))
    }

    /// Flushes everything that was written to since the last time.
    pub(super) fn flush(&self) -> Result<()> {
        let dirty: Vec<usize> = (0..self.parts.len())
            .filter(|&file| self.parts[file].dirty.swap(false, Ordering::AcqRel))
            .collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(&file) = dirty.get(next.fetch_add(1, Ordering::Relaxed)) {
                let handle = self.handle(file)?;
                let target = &self.parts[file].target;
                handle
                    .sync_data()
                    .map_err(|error| Error::io("flush to disk", target, error))?;
            }
            Ok(())
        };
        if dirty.len() < 2 {
            return work();
        }
        in_parallel(FLUSHERS.min(dirty.len()), work)
    }

    fn handle(&self, file: usize) -> Result<Arc<File>> {
        self.open
            .get(file, || self.folder.part(&self.parts[file].path, self.keep))
    }
}
