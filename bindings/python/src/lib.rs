//! The native part of `tensora_py`. It holds no logic: arguments are extracted, the library is
//! called with the interpreter released, what it returns is wrapped.
#![deny(unsafe_code)]

use pyo3::prelude::*;

mod checkpoint;
mod dlpack;
mod errors;
mod request;
mod stream;
mod tensor;
mod tools;
mod wait;
mod write;

/// Loads checkpoints; the Python files of `tensora_py` are its only caller.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::checkpoint::Checkpoint;
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::tensor::Tensor;
    #[pymodule_export]
    use crate::tools::{capabilities, convert, diff, hash, pull, verify};
    #[pymodule_export]
    use crate::wait::Cancel;
    #[pymodule_export]
    use crate::write::{save, serialize};
}
