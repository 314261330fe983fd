//! Tensors as they arrive.

use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use pyo3::prelude::*;
use tensora::TensorStream;

use crate::errors::checked;
use crate::tensor::Tensor;

/// How often signals are looked at while nothing arrives.
const GLANCE: Duration = Duration::from_millis(50);

/// The tensors of a load while it runs.
#[pyclass(frozen, module = "tensora_py._native")]
pub struct Stream(Mutex<Option<TensorStream>>);

impl Stream {
    pub fn new(stream: TensorStream) -> Self {
        Self(Mutex::new(Some(stream)))
    }

    /// What `use_it` makes of the stream, with the interpreter released: it may be held by another
    /// thread. `None` when it is closed.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut TensorStream) -> T + Send,
    ) -> Option<T> {
        py.detach(|| {
            let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            stream.as_mut().map(use_it)
        })
    }
}

#[pymethods]
impl Stream {
    /// Waits for the next tensor, and takes up to `most` that are there; none at the end.
    fn take(&self, py: Python<'_>, most: usize) -> PyResult<Vec<Tensor>> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let wait = match taken.is_empty() {
                true => GLANCE,
                false => Duration::ZERO,
            };
            match self.with(py, |stream| stream.next_timeout(wait)) {
                Some(Poll::Ready(Some(item))) => taken.push(Tensor(checked(py, item)?)),
                Some(Poll::Pending) if taken.is_empty() => py.check_signals()?,
                // The end, or nothing more for now; or it is closed.
                _ => break,
            }
        }
        Ok(taken)
    }

    /// Tensors that are still to come.
    fn remaining(&self, py: Python<'_>) -> usize {
        self.with(py, |stream| stream.remaining()).unwrap_or(0)
    }

    /// Ends the load, and waits for the reads in flight.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
        });
    }
}
