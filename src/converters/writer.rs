//! Executes an [`OutputPlan`]: temporary files in the target folder, filled tensor by tensor in any
//! order and from any number of threads, flushed, renamed, and made a checkpoint by the index.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::converters::folder::{OutputFolder, TemporaryName, exists_already};
use crate::converters::{OutputPlan, OutputTensor, Placement};
use crate::error::{Error, ErrorKind, Result};

/// Descriptors that a writer keeps open at most, however many shards there are.
const MAX_OPEN_FILES: usize = 16;

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
    names: Vec<TemporaryName>,
    files: Vec<FileState>,
    tensors: Vec<TensorState>,
    open: Mutex<VecDeque<(u32, Arc<File>)>>,
}

#[derive(Debug)]
struct FileState {
    /// Bytes of tensors that are not complete yet.
    missing: AtomicU64,
    synced: AtomicBool,
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
        let files = plan.files.iter().map(|_| FileState {
            missing: AtomicU64::new(0),
            synced: AtomicBool::new(false),
        });
        let mut writer = Self {
            files: files.collect(),
            tensors: plan
                .tensors
                .iter()
                .map(|_| TensorState::default())
                .collect(),
            names: Vec::with_capacity(plan.files.len()),
            open: Mutex::default(),
            overwrite: options.overwrite,
            folder,
            alone: false,
            plan,
        };
        for place in &writer.plan.placements {
            *writer.files[place.file as usize].missing.get_mut() += place.len;
        }
        for output in &writer.plan.files {
            let (name, file) = TemporaryName::create(&writer.folder, output.name.as_ref())?;
            let made = file
                .set_len(output.len)
                .and_then(|()| write_all_at(&file, 0, &output.head));
            made.map_err(|error| Error::io("write", name.target(), error))?;
            writer.names.push(name);
        }
        Ok(writer)
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
        Ok(TensorSink {
            writer: self,
            index,
            written: 0,
            file: None,
        })
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
        for file in 0..self.files.len() {
            self.sync(file as u32)?;
        }
        self.open
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
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
        let mut files = Vec::with_capacity(self.names.len() + 1);
        for name in self.names.drain(..) {
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

    fn file(&self, file: u32) -> Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|entry| entry.0 == file)
            && let Some(entry) = open.remove(at)
        {
            let handle = Arc::clone(&entry.1);
            open.push_back(entry);
            return Ok(handle);
        }
        let handle = Arc::new(self.names[file as usize].open()?);
        while open.len() >= MAX_OPEN_FILES {
            open.pop_front();
        }
        open.push_back((file, Arc::clone(&handle)));
        Ok(handle)
    }

    /// Flushes a file once and closes it. Done as soon as its last tensor is complete, so that
    /// the disk works while the next file is filled.
    fn sync(&self, file: u32) -> Result<()> {
        let state = &self.files[file as usize];
        if state.synced.load(Ordering::Acquire) {
            return Ok(());
        }
        let handle = self.file(file)?;
        self.names[file as usize].sync(&handle)?;
        state.synced.store(true, Ordering::Release);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|entry| entry.0 != file);
        Ok(())
    }
}

/// Takes the bytes of one tensor, from first to last. Sinks of several tensors can be filled on
/// several threads.
#[derive(Debug)]
pub struct TensorSink<'a> {
    writer: &'a CheckpointWriter,
    index: usize,
    written: u64,
    file: Option<Arc<File>>,
}

impl TensorSink<'_> {
    /// The tensor whose bytes are wanted.
    pub fn tensor(&self) -> &OutputTensor {
        &self.writer.plan.tensors[self.index]
    }

    /// Bytes that are still missing.
    pub fn remaining(&self) -> u64 {
        self.place().len - self.written
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when they are more than the tensor has left (none of them is
    /// written then), [`ErrorKind::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.remaining() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "at least {} bytes were produced for a tensor of {} bytes",
                    self.written + bytes.len() as u64,
                    self.place().len
                ),
            )
            .at(self.writer.folder.path())
            .tensor(&*self.tensor().name));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let place = self.place();
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(self.writer.file(place.file)?),
        };
        write_all_at(file, place.offset + self.written, bytes).map_err(|error| {
            let target = self.writer.names[place.file as usize].target();
            Error::io("write", target, error).tensor(&*self.tensor().name)
        })?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Declares the tensor complete.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when bytes are missing, [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<()> {
        let place = self.place();
        if self.remaining() > 0 {
            let folder = self.writer.folder.path();
            return Err(incomplete(folder, self.tensor(), self.written, place.len));
        }
        self.file = None;
        let written = &self.writer.tensors[self.index].written;
        written.store(self.written, Ordering::Release);
        let missing = &self.writer.files[place.file as usize].missing;
        if place.len > 0 && missing.fetch_sub(place.len, Ordering::AcqRel) == place.len {
            self.writer.sync(place.file)?;
        }
        Ok(())
    }

    fn place(&self) -> Placement {
        self.writer.plan.placements[self.index]
    }
}

fn incomplete(folder: &Path, tensor: &OutputTensor, written: u64, len: u64) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{written} bytes were produced for a tensor of {len} bytes"),
    )
    .at(folder)
    .tensor(&*tensor.name)
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

#[cfg(unix)]
fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::converters::{
        SafetensorsOptions, ServerlessLlmOptions, Sharding, plan_safetensors, plan_serverlessllm,
    };
    use crate::dtype::Dtype;

    fn tensors() -> Vec<OutputTensor> {
        let mut tensors: Vec<_> = (0..40)
            .map(|i| OutputTensor::new(format!("w{i}"), Dtype::U8, [1 + i * 37 % 300]))
            .collect();
        tensors.push(OutputTensor::new("empty", Dtype::F32, [0, 3]));
        tensors.push(OutputTensor::new("wide", Dtype::F64, [3, 5]));
        tensors
    }

    fn bytes_of(index: usize, len: u64) -> Vec<u8> {
        (0..len)
            .map(|i| (i as usize * 7 + index * 31) as u8)
            .collect()
    }

    fn shards(count: u32) -> OutputPlan {
        let options = SafetensorsOptions {
            sharding: Sharding::Count(count),
            ..Default::default()
        };
        plan_safetensors(tensors(), &options).unwrap()
    }

    fn partitions(count: u32) -> OutputPlan {
        let options = ServerlessLlmOptions {
            partitions: Some(count),
        };
        plan_serverlessllm(tensors(), &options).unwrap()
    }

    /// Every file of a folder by name.
    fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read(path).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    fn write(folder: &Path, plan: OutputPlan, options: WriteOptions) -> Result<WriteReport> {
        let writer = CheckpointWriter::create(folder, plan, options)?;
        writer.write_all(|index, sink| {
            for chunk in bytes_of(index, sink.remaining()).chunks(13) {
                sink.write(chunk)?;
            }
            Ok(())
        })?;
        writer.finish()
    }

    #[test]
    fn the_files_are_what_the_plan_says_in_either_layout() {
        for plan in [shards(1), shards(20), partitions(3)] {
            let scratch = tempfile::tempdir().unwrap();
            let folder = scratch.path().join("new/model");
            let report = write(&folder, plan.clone(), WriteOptions::default()).unwrap();
            assert_eq!(report.tensor_bytes, plan.tensor_bytes());
            let files = contents(&folder);
            assert_eq!(files.len(), report.files.len());
            let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
            assert_eq!(report.file_bytes, total as u64);
            for (index, place) in plan.placements.iter().enumerate() {
                let output = &plan.files[place.file as usize];
                let bytes = std::fs::read(folder.join(&output.name)).unwrap();
                assert_eq!(bytes.len() as u64, output.len);
                let range = place.offset as usize..(place.offset + place.len) as usize;
                assert_eq!(bytes[range], bytes_of(index, place.len));
                assert!(bytes.starts_with(&output.head));
            }
            if let Some(index) = plan.index {
                assert_eq!(
                    std::fs::read(folder.join(&index.name)).unwrap(),
                    index.bytes
                );
                assert!(report.files.last().unwrap().ends_with(&index.name));
            }
        }
    }

    #[test]
    fn any_order_and_any_number_of_threads_give_the_same_bytes() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(one.path(), shards(30), WriteOptions::default()).unwrap();
        let writer =
            CheckpointWriter::create(other.path(), shards(30), WriteOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for part in 0..4 {
                let writer = &writer;
                scope.spawn(move || {
                    for index in (0..writer.plan().tensors.len()).rev() {
                        if index % 4 == part {
                            let mut sink = writer.tensor(index).unwrap();
                            let bytes = bytes_of(index, sink.remaining());
                            sink.write(&bytes).unwrap();
                            sink.finish().unwrap();
                        }
                    }
                });
            }
        });
        writer.finish().unwrap();
        assert_eq!(contents(one.path()), contents(other.path()));
    }

    #[test]
    fn too_many_or_too_few_bytes_are_refused_and_nothing_is_left() {
        for produced in [0, 3, 5] {
            let scratch = tempfile::tempdir().unwrap();
            let folder = scratch.path().join("model");
            let tensors = vec![OutputTensor::new("four", Dtype::U8, [4])];
            let plan = plan_safetensors(tensors, &SafetensorsOptions::default()).unwrap();
            let writer = CheckpointWriter::create(&folder, plan, WriteOptions::default()).unwrap();
            let error = writer
                .write_all(|_, sink| sink.write(&vec![1; produced]))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert_eq!(error.tensor_name(), Some("four"));
            let text = error.to_string();
            assert!(text.contains(&format!("{produced} bytes")) && text.contains("4 bytes"));
            assert_eq!(
                writer.tensor(0).unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
            assert_eq!(
                writer.finish().unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
            assert!(!folder.exists());
        }
    }

    #[test]
    fn the_error_of_a_producer_comes_through_and_the_old_checkpoint_stays() {
        let scratch = tempfile::tempdir().unwrap();
        write(scratch.path(), shards(3), WriteOptions::default()).unwrap();
        let before = contents(scratch.path());
        let overwrite = WriteOptions { overwrite: true };
        let writer = CheckpointWriter::create(scratch.path(), shards(3), overwrite).unwrap();
        let error = writer
            .write_all(|index, sink| match index {
                20 => Err(Error::new(ErrorKind::Cancelled, "stop")),
                _ => sink.write(&vec![0; sink.remaining() as usize]),
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        drop(writer);
        assert_eq!(contents(scratch.path()), before);
    }

    #[test]
    fn existing_files_are_replaced_only_when_that_is_allowed() {
        let scratch = tempfile::tempdir().unwrap();
        write(scratch.path(), shards(3), WriteOptions::default()).unwrap();
        // A single file beside the index of the shards would be a checkpoint with two meanings.
        for plan in [shards(3), shards(1)] {
            let error = write(scratch.path(), plan, WriteOptions::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("index.json"), "{error}");
        }
        let overwrite = WriteOptions { overwrite: true };
        write(scratch.path(), shards(3), overwrite).unwrap();
        write(scratch.path(), shards(1), overwrite).unwrap();
        let index = scratch.path().join("model.safetensors.index.json");
        assert!(!index.exists() && scratch.path().join("model.safetensors").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_checkpoint_that_does_not_fit_is_refused_before_it_is_written() {
        let scratch = tempfile::tempdir().unwrap();
        let tensors = vec![OutputTensor::new("huge", Dtype::U8, [1 << 60])];
        let plan = plan_safetensors(tensors, &SafetensorsOptions::default()).unwrap();
        let folder = scratch.path().join("model");
        let error = CheckpointWriter::create(&folder, plan, WriteOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("free"), "{error}");
        assert!(!folder.exists());
    }
}
