//! The data files of an output: under temporary names, few of them open, each flushed once.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::converters::OutputPlan;
use crate::converters::folder::{OutputFolder, TemporaryName};
use crate::converters::open_files::OpenFiles;
use crate::error::{Error, Result};

/// Descriptors that are open at most, however many shards there are.
const MAX_OPEN_FILES: usize = 16;

/// The data files of a plan, by their numbers in it.
#[derive(Debug)]
pub(super) struct DataFiles {
    files: Vec<DataFile>,
    open: OpenFiles,
}

#[derive(Debug)]
struct DataFile {
    name: TemporaryName,
    /// Bytes of tensors that are not complete yet.
    missing: AtomicU64,
    synced: AtomicBool,
}

impl DataFiles {
    /// Makes all files of the plan at their full lengths, with their heads.
    pub(super) fn create(folder: &OutputFolder, plan: &OutputPlan) -> Result<Self> {
        let mut files = Vec::with_capacity(plan.files.len());
        for output in &plan.files {
            let (name, file) = TemporaryName::create(folder, output.name.as_ref())?;
            let made = file
                .set_len(output.len)
                .and_then(|()| write_all_at(&file, 0, &output.head));
            made.map_err(|error| Error::io("write", name.target(), error))?;
            files.push(DataFile {
                name,
                missing: AtomicU64::new(0),
                synced: AtomicBool::new(false),
            });
        }
        for place in &plan.placements {
            *files[place.file as usize].missing.get_mut() += place.len;
        }
        Ok(Self {
            files,
            open: OpenFiles::new(MAX_OPEN_FILES),
        })
    }

    /// The name that a file will have.
    pub(super) fn target(&self, file: u32) -> &Path {
        self.files[file as usize].name.target()
    }

    /// A file, open for writing.
    pub(super) fn open(&self, file: u32) -> Result<Arc<File>> {
        self.open
            .get(file as usize, || self.files[file as usize].name.open())
    }

    /// A tensor of `len` bytes is complete. With the last one of a file the file is flushed, so
    /// that the disk works while the next one is filled.
    pub(super) fn complete(&self, file: u32, len: u64) -> Result<()> {
        let missing = &self.files[file as usize].missing;
        if len > 0 && missing.fetch_sub(len, Ordering::AcqRel) == len {
            self.sync(file)?;
        }
        Ok(())
    }

    /// Flushes and closes what is not yet, and hands the names out, in the order of the plan.
    pub(super) fn finish(&mut self) -> Result<Vec<TemporaryName>> {
        for file in 0..self.files.len() {
            self.sync(file as u32)?;
        }
        self.open.close_all();
        Ok(self.files.drain(..).map(|file| file.name).collect())
    }

    /// Flushes a file once and closes it.
    fn sync(&self, file: u32) -> Result<()> {
        let DataFile { name, synced, .. } = &self.files[file as usize];
        if synced.load(Ordering::Acquire) {
            return Ok(());
        }
        let handle = self.open(file)?;
        name.sync(&handle)?;
        synced.store(true, Ordering::Release);
        self.open.close(file as usize);
        Ok(())
    }
}

#[cfg(unix)]
pub(in crate::converters) fn write_all_at(
    file: &File,
    offset: u64,
    bytes: &[u8],
) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
pub(in crate::converters) fn write_all_at(
    file: &File,
    mut offset: u64,
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                offset += n as u64;
                bytes = &bytes[n..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
