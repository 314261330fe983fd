//! Errors of the library as exceptions of `tensora_py`.

use std::error::Error as _;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use tensora::text;

/// The function of the Python package that picks the class for a kind.
static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The exception for an error: its class by its kind, its text with remedy and causes.
pub fn raised(py: Python<'_>, error: &tensora::Error) -> PyErr {
    let mut message = error.to_string();
    let mut errno = None;
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&text::message(&error.to_string()));
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            errno = io.raw_os_error();
        }
        cause = error.source();
    }
    let made = MAKE
        .import(py, "tensora_py._errors", "make")
        .and_then(|make| {
            let path = error.path().map(|path| path.as_os_str());
            let kind = PyString::intern(py, &error.kind().to_string());
            make.call1((kind, message, path, error.tensor_name(), errno))
        });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// A result of the library as one of Python's.
pub fn checked<T>(py: Python<'_>, result: tensora::Result<T>) -> PyResult<T> {
    result.map_err(|error| raised(py, &error))
}

/// The exception for an argument that makes no sense.
pub fn refused(message: impl Into<String>) -> PyErr {
    let error = tensora::Error::new(tensora::ErrorKind::InvalidArgument, message);
    Python::attach(|py| raised(py, &error))
}
