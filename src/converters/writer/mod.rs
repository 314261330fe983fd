//! Executes an [`OutputPlan`]: temporary files in the target folder, filled tensor by tensor in any
//! order and from any number of threads, flushed, renamed, and made a checkpoint by the index.

mod files;
mod sink;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

pub use sink::TensorSink;

use crate::converters::OutputPlan;
use crate::converters::folder::{OutputFolder, TemporaryName, exists_already};
use crate::error::{Error, ErrorKind, Result};
use files::DataFiles;
pub(super) use files::write_all_at;
use sink::incomplete;

/// Options of a [`CheckpointWriter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Whether files of the same names may be replaced. They stay as they are until all new ones
    /// are complete; an existing index is removed just before the first of them is replaced, so
    /// that a crash leaves no index that describes other files.
    pub overwrite: bool,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WriteReport {
    /// The data files and the index, in the order in which they appeared.
    pub files: Vec<PathBuf>,
    /// Bytes of these files together.
    pub file_bytes: u64,
    /// Bytes of the tensors in them.
    pub tensor_bytes: u64,
}

/// A checkpoint that is being written. Nothing shows under its final name before
/// [`finish`](Self::finish); dropping the writer removes everything that it made.
///
/// A process that is killed leaves temporary files behind, whose names say what they are
/// (`.NAME.tmp-PID-N`), and which the next writer into the folder removes.
#[derive(Debug)]
pub struct CheckpointWriter {
    folder: OutputFolder,
    /// Whether nobody else holds the folder, so that it is released with the last file.
    alone: bool,
    plan: OutputPlan,
    overwrite: bool,
    files: DataFiles,
    tensors: Vec<TensorState>,
}

#[derive(Debug, Default)]
struct TensorState {
    taken: AtomicBool,
    written: AtomicU64,
}

impl CheckpointWriter {
    /// Makes `folder` where it does not exist, locks it, and makes all files under temporary names
    /// in it.
    ///
    /// # Errors
    /// Those of [`OutputFolder::claim`] and of [`create_in`](Self::create_in).
    pub fn create(
        folder: impl Into<PathBuf>,
        plan: OutputPlan,
        options: WriteOptions,
    ) -> Result<Self> {
        let mut writer = Self::create_in(&OutputFolder::claim(folder)?, plan, options)?;
        writer.alone = true;
        Ok(writer)
    }

    /// Makes all files under temporary names in a folder that the caller holds, and releases when
    /// the checkpoint and all that belongs to it is written.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when a file of the plan exists and may not be replaced,
    /// [`ErrorKind::Io`] when the folder's file system has too little free space (nothing is
    /// written then) or a file cannot be made.
    pub fn create_in(
        folder: &OutputFolder,
        plan: OutputPlan,
        options: WriteOptions,
    ) -> Result<Self> {
        let folder = folder.clone();
        if !options.overwrite {
            refuse_existing(folder.path(), &plan)?;
        }
        folder.require_space(plan.total_file_bytes())?;
        let files = DataFiles::create(&folder, &plan)?;
        let tensors = plan.tensors.iter().map(|_| TensorState::default());
        Ok(Self {
            folder,
            alone: false,
            overwrite: options.overwrite,
            files,
            tensors: tensors.collect(),
            plan,
        })
    }

    /// What is being written.
    pub fn plan(&self) -> &OutputPlan {
        &self.plan
    }

    /// The place for the bytes of tensor `index` of the plan, once for each tensor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when there is no such tensor or it was asked for before.
    pub fn tensor(&self, index: usize) -> Result<TensorSink<'_>> {
        let (Some(tensor), Some(state)) = (self.plan.tensors.get(index), self.tensors.get(index))
        else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "tensor {index} of a plan of {} tensors was to be written",
                    self.plan.tensors.len()
                ),
            )
            .at(self.folder.path()));
        };
        if state.taken.swap(true, Ordering::AcqRel) {
            return Err(
                Error::new(ErrorKind::InvalidArgument, "it was to be written twice")
                    .at(self.folder.path())
                    .tensor(&*tensor.name),
            );
        }
        Ok(TensorSink::new(self, index))
    }

    /// Writes every tensor in disk order: `produce` is called with the index of a tensor and its
    /// sink, and writes all of its bytes in chunks of any size.
    ///
    /// # Errors
    /// Those of `produce` and of [`TensorSink`]; the first one ends the writing.
    pub fn write_all(
        &self,
        mut produce: impl FnMut(usize, &mut TensorSink<'_>) -> Result<()>,
    ) -> Result<()> {
        for index in self.plan.disk_order() {
            let mut sink = self.tensor(index)?;
            produce(index, &mut sink)?;
            sink.finish()?;
        }
        Ok(())
    }

    /// Flushes all files, gives them their names, and writes the index last.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when a tensor is incomplete, or a file of the plan has
    /// appeared meanwhile and may not be replaced; [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<WriteReport> {
        self.check_complete()?;
        let names = self.files.finish()?;
        if self.overwrite {
            self.remove_old_index()?;
        } else {
            refuse_existing(self.folder.path(), &self.plan)?;
        }
        // The index is complete, too, before the first file gets its name.
        let index = match &self.plan.index {
            Some(index) => {
                let (name, file) = TemporaryName::create(&self.folder, index.name.as_ref())?;
                write_all_at(&file, 0, &index.bytes)
                    .map_err(|error| Error::io("write", name.target(), error))?;
                name.sync(&file)?;
                Some(name)
            }
            None => None,
        };
        let mut files = Vec::with_capacity(names.len() + 1);
        for name in names {
            files.push(name.target().to_owned());
            name.rename(self.overwrite)?;
        }
        self.folder.sync()?;
        if let Some(name) = index {
            files.push(name.target().to_owned());
            name.rename(self.overwrite)?;
            self.folder.sync()?;
        }
        for name in &self.plan.superseded {
            // Without leave to overwrite there was none, and one that came since is not ours.
            if self.overwrite {
                remove_if_there(&self.folder.path().join(name))?;
            }
        }
        self.folder.sync_itself()?;
        if self.alone {
            self.folder.release(|_| Ok(()))?;
        }
        Ok(WriteReport {
            files,
            file_bytes: self.plan.total_file_bytes(),
            tensor_bytes: self.plan.tensor_bytes(),
        })
    }

    fn check_complete(&self) -> Result<()> {
        for (index, tensor) in self.plan.tensors.iter().enumerate() {
            let (written, len) = (
                self.tensors[index].written.load(Ordering::Acquire),
                self.plan.placements[index].len,
            );
            // A tensor without bytes needs nobody to write it.
            if written != len {
                return Err(incomplete(self.folder.path(), tensor, written, len));
            }
        }
        Ok(())
    }

    fn remove_old_index(&self) -> Result<()> {
        let Some(index) = &self.plan.index else {
            return Ok(());
        };
        if remove_if_there(&self.folder.path().join(&index.name))? {
            self.folder.sync()?;
        }
        Ok(())
    }
}

fn refuse_existing(folder: &Path, plan: &OutputPlan) -> Result<()> {
    let names = plan.files.iter().map(|file| &file.name);
    let index = plan.index.iter().map(|index| &index.name);
    for name in index.chain(&plan.superseded).chain(names) {
        let path = folder.join(name);
        if path.symlink_metadata().is_ok() {
            return Err(exists_already(&path));
        }
    }
    Ok(())
}

/// Whether there was a file to remove.
fn remove_if_there(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("remove", path, error)),
    }
}
