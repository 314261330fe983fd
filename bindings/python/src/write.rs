//! Saving: bytes by the buffer protocol, copied into the file with the interpreter released.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensora::converters::{OutputTensor, Put, SaveOptions, save_with, serialize_with};
use tensora::{Dtype, Error, ErrorKind};

use crate::errors::raised;

/// Bytes between looks at signals: some tens of milliseconds of writing.
const CHUNK: usize = 64 << 20;

/// What is to be saved, with the names that Python gives it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Saving {
    /// Name, dtype and shape of each.
    tensors: Vec<(String, String, Vec<u64>)>,
    /// Called with an index: a buffer of the tensor's bytes, and whatever has to live as long.
    take: Py<PyAny>,
    metadata: BTreeMap<String, String>,
    max_shard_size: Option<u64>,
    alignment: Option<usize>,
}

impl Saving {
    fn options(&self) -> SaveOptions {
        let defaults = SaveOptions::default();
        SaveOptions {
            metadata: self.metadata.clone(),
            max_shard_bytes: self.max_shard_size,
            alignment: self.alignment.unwrap_or(defaults.alignment),
        }
    }

    fn named(&self) -> tensora::Result<Vec<OutputTensor>> {
        let named = self.tensors.iter().map(|(name, dtype, shape)| {
            let known = Dtype::from_safetensors(dtype).ok_or_else(|| {
                let message = format!("unknown dtype {dtype:?}");
                Error::new(ErrorKind::InvalidArgument, message).tensor(name)
            })?;
            Ok(OutputTensor::new(
                name.as_str(),
                known,
                shape.iter().copied(),
            ))
        });
        named.collect()
    }

    /// Takes a tensor and puts its bytes; called without the interpreter.
    fn put(&self, index: usize, put: &mut Put<'_>) -> Result<(), Failure> {
        let taken: (Bytes, Py<PyAny>) = Python::attach(|py| {
            let (buffer, owner): (Bound<'_, PyAny>, Py<PyAny>) =
                self.take.call1(py, (index,))?.extract(py)?;
            Ok::<_, PyErr>((Bytes::of(&buffer)?, owner))
        })?;
        for chunk in taken.0.bytes().chunks(CHUNK) {
            put(chunk)?;
            Python::attach(|py| py.check_signals())?;
        }
        // References go back in one place, and not one by one through a queue of the interpreter.
        Python::attach(|_| drop(taken));
        Ok(())
    }

    /// Does `work`, which is given what puts the tensors, with the interpreter released.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(
            Vec<OutputTensor>,
            &mut dyn FnMut(usize, &mut Put<'_>) -> tensora::Result<()>,
        ) -> tensora::Result<T>
        + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            let mut exception = None;
            let mut produce = |index, put: &mut Put<'_>| match self.put(index, put) {
                Ok(()) => Ok(()),
                Err(Failure::Ours(error)) => Err(error),
                Err(Failure::Raised(error)) => {
                    exception = Some(error);
                    let message = "an exception was raised while a tensor was taken";
                    Err(Error::new(ErrorKind::Cancelled, message))
                }
            };
            let outcome = self.named().and_then(|named| work(named, &mut produce));
            match (outcome, exception) {
                (Ok(value), _) => Ok(value),
                (Err(_), Some(exception)) => Err(exception),
                (Err(error), None) => Err(Python::attach(|py| raised(py, &error))),
            }
        })
    }
}

/// An error of the library, or an exception.
enum Failure {
    Ours(Error),
    Raised(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

/// A contiguous buffer of whatever elements.
struct Bytes(PyUntypedBuffer);

impl Bytes {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        match buffer.is_c_contiguous() {
            true => Ok(Self(buffer)),
            false => Err(PyBufferError::new_err("the buffer is not contiguous")),
        }
    }

    fn bytes(&self) -> &[u8] {
        let len = self.0.len_bytes();
        if len == 0 {
            // Its address may be null.
            return &[];
        }
        // SAFETY: a contiguous buffer of this length, whose owner keeps it until it is released.
        // Who writes to it meanwhile, from another thread of Python, saves some of the one and
        // some of the other; only system calls and copies read it here.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), len) }
    }
}

/// Writes tensors to a file, or to shards in a folder, and gives the paths of all files.
#[pyfunction]
pub fn save(py: Python<'_>, path: PathBuf, saving: Saving) -> PyResult<Vec<PathBuf>> {
    let options = saving.options();
    let report = saving.run(py, |named, produce| {
        save_with(named, path, &options, produce)
    })?;
    Ok(report.files)
}

/// The bytes of the file.
#[pyfunction]
pub fn serialize(py: Python<'_>, saving: Saving) -> PyResult<Bound<'_, PyBytes>> {
    let options = saving.options();
    let bytes = saving.run(py, |named, produce| {
        serialize_with(named, &options, produce)
    })?;
    Ok(PyBytes::new(py, &bytes))
}
