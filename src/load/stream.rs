//! Tensors as they arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use futures_core::Stream;

use crate::error::Result;
use crate::load::Loader;
use crate::load::delivery::Delivery;
use crate::load::report::LoadReport;
use crate::load::run::{Running, spawn};
use crate::tensor::Tensor;

/// An iterator, and a [`Stream`] for async callers, of tensors while they are being read.
///
/// Bytes in flight and not yet taken stay within the budget; readers wait for the taker. A failure
/// is the last item. Dropping the stream cancels the load and waits for the reads in flight, at
/// most one for each worker or queue entry.
#[derive(Debug)]
pub struct TensorStream {
    running: Arc<Running>,
    delivery: Arc<Delivery>,
    reader: Option<JoinHandle<()>>,
    left: usize,
}

impl TensorStream {
    /// Plans, and starts to read on a thread of the stream's own.
    pub(super) fn start(loader: &Loader) -> Result<Self> {
        let running = Arc::new(Running::new(loader, None)?);
        let reader = spawn("tensora-stream", {
            let running = Arc::clone(&running);
            move || running.run()
        })?;
        Ok(Self {
            delivery: Arc::clone(&running.delivery),
            left: running.tensors(),
            running,
            reader: Some(reader),
        })
    }

    /// Tensors that are still to come.
    pub fn remaining(&self) -> usize {
        self.left
    }

    /// What the load has done so far.
    pub fn report(&self) -> LoadReport {
        self.running.report()
    }
}

impl Iterator for TensorStream {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Self::Item> {
        let parcel = self.delivery.take()?;
        self.left = if parcel.is_ok() { self.left - 1 } else { 0 };
        Some(parcel.map(|parcel| parcel.tensor))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error may come instead of what is left, or after it.
        (0, Some(self.left + 1))
    }
}

impl Stream for TensorStream {
    type Item = Result<Tensor>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let parcel = std::task::ready!(self.delivery.poll_take(context));
        Poll::Ready(parcel.map(|parcel| {
            self.left = if parcel.is_ok() { self.left - 1 } else { 0 };
            parcel.map(|parcel| parcel.tensor)
        }))
    }
}

impl Drop for TensorStream {
    fn drop(&mut self) {
        self.delivery.cancel();
        if let Some(reader) = self.reader.take() {
            // A panic of the reader was printed by its thread; there is no one to pass it on to.
            let _ = reader.join();
        }
    }
}
