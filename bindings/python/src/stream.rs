//! Tensors as they arrive.

use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use pyo3::prelude::*;
use tensora::TensorStream;

use crate::errors::{checked, refused};
use crate::tensor::Tensor;

/// How often signals are looked at while nothing arrives.
const GLANCE: Duration = Duration::from_millis(50);

/// The tensors of a load while it runs.
#[pyclass(frozen, module = "tensora_py._native")]
pub struct Stream {
    stream: Mutex<Option<TensorStream>>,
    /// Where its threads are: a process that was forked off has none of them.
    process: u32,
}

impl Stream {
    pub fn new(stream: TensorStream) -> Self {
        Self {
            stream: Mutex::new(Some(stream)),
            process: std::process::id(),
        }
    }

    fn is_inherited(&self) -> bool {
        std::process::id() != self.process
    }

    /// What `use_it` makes of the stream, with the interpreter released: it may be held by another
    /// thread. `None` when it is closed.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut TensorStream) -> T + Send,
    ) -> PyResult<Option<T>> {
        if self.is_inherited() {
            return Err(refused(
                "this iterator was made before a fork, in another process; make one here",
            ));
        }
        Ok(py.detach(|| {
            let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            stream.as_mut().map(use_it)
        }))
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
            match self.with(py, |stream| stream.next_timeout(wait))? {
                Some(Poll::Ready(Some(item))) => taken.push(Tensor(checked(py, item)?)),
                Some(Poll::Pending) if taken.is_empty() => py.check_signals()?,
                // The end, or nothing more for now; or it is closed.
                _ => break,
            }
        }
        Ok(taken)
    }

    /// Tensors that are still to come.
    fn remaining(&self, py: Python<'_>) -> PyResult<usize> {
        let left = self.with(py, |stream| stream.remaining())?;
        Ok(left.unwrap_or(0))
    }

    /// Ends the load, and waits for the reads in flight. Nothing to do in a process that was forked
    /// off.
    fn close(&self, py: Python<'_>) {
        if self.is_inherited() {
            return;
        }
        py.detach(|| {
            let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            drop(stream.take());
        });
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Its threads, for which the stream would wait, were not forked along.
            let stream = self.stream.get_mut();
            std::mem::forget(stream.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
