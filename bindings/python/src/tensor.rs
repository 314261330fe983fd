//! A tensor's memory for whoever takes it without a copy: the buffer protocol and DLPack.
#![allow(unsafe_code)]

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};
use tensora::Dtype;

use crate::dlpack;

/// A tensor in memory of its own, which goes back to the system with the last of its users.
///
/// It can be written to, and nothing that is written reaches a file.
#[pyclass(frozen, weakref, module = "tensora_py")]
pub struct Tensor(pub tensora::Tensor);

#[pymethods]
impl Tensor {
    /// The name in the checkpoint.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The dtype as SafeTensors spells it.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> &'py Bound<'py, PyString> {
        interned(py, self.0.dtype())
    }

    /// Dimensions, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.nbytes()
    }

    /// Address of the first byte.
    #[getter]
    fn data_ptr(&self) -> usize {
        self.0.as_mut_ptr() as usize
    }

    fn __len__(&self) -> usize {
        self.0.nbytes()
    }

    fn __repr__(&self) -> String {
        format!(
            "Tensor({:?}, {}, {:?})",
            self.0.name(),
            self.0.dtype(),
            self.0.shape()
        )
    }

    /// The bytes as a writable buffer of one dimension.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let tensor = &slf.get().0;
        let length = ffi::Py_ssize_t::try_from(tensor.nbytes())
            .map_err(|_| PyBufferError::new_err("longer than the address space"))?;
        let address = tensor.as_mut_ptr().cast();
        // SAFETY: the view is the interpreter's to fill; it keeps `slf`, and with it the memory,
        // alive until it is released. Nothing in this module reads the bytes meanwhile.
        let failed =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, length, 0, flags) };
        match failed {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }

    /// A capsule as the DLPack protocol has it; from version 1.0 on where the consumer asks for it.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let refused =
            |what: &str| Err(PyBufferError::new_err(format!("{}: {what}", self.0.name())));
        if stream.is_some_and(|stream| !stream.is_none()) {
            return refused("memory of the CPU has no stream");
        }
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return refused("only the CPU can have it; copy it from there");
        }
        if copy == Some(true) {
            return refused("it is handed out without a copy; copy what you get");
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::capsule(py, &self.0, versioned)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }
}

/// The name of a dtype, one object for all tensors that have it.
pub fn interned<'py>(py: Python<'py>, dtype: Dtype) -> &'py Bound<'py, PyString> {
    static NAMES: PyOnceLock<Vec<(Dtype, Py<PyString>)>> = PyOnceLock::new();
    let names = NAMES.get_or_init(py, || {
        let name = |&dtype: &Dtype| (dtype, PyString::intern(py, dtype.name()).unbind());
        Dtype::ALL.iter().map(name).collect()
    });
    let name = &names[dtype as usize].1;
    name.bind(py)
}
