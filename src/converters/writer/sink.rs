//! Where the bytes of one tensor go in.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::CheckpointWriter;
use super::files::write_all_at;
use crate::converters::{OutputTensor, Placement};
use crate::error::{Error, ErrorKind, Result};

/// Takes the bytes of one tensor, from first to last. Sinks of several tensors can be filled on
/// several threads.
#[derive(Debug)]
pub struct TensorSink<'a> {
    writer: &'a CheckpointWriter,
    index: usize,
    written: u64,
    file: Option<Arc<File>>,
}

impl<'a> TensorSink<'a> {
    pub(super) fn new(writer: &'a CheckpointWriter, index: usize) -> Self {
        Self {
            writer,
            index,
            written: 0,
            file: None,
        }
    }

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
            None => self.file.insert(self.writer.files.open(place.file)?),
        };
        write_all_at(file, place.offset + self.written, bytes).map_err(|error| {
            let target = self.writer.files.target(place.file);
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
        self.writer.files.complete(place.file, place.len)
    }

    fn place(&self) -> Placement {
        self.writer.plan.placements[self.index]
    }
}

/// The error for a tensor that was not written to its end.
pub(super) fn incomplete(folder: &Path, tensor: &OutputTensor, written: u64, len: u64) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{written} bytes were produced for a tensor of {len} bytes"),
    )
    .at(folder)
    .tensor(&*tensor.name)
}
