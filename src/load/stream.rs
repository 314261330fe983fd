//! Tensors as they arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_core::Stream;

use crate::error::Result;
use crate::load::Loader;
use crate::load::delivery::{Delivery, Parcel};
use crate::load::report::LoadReport;
use crate::load::run::{Running, spawn};
use crate::tensor::Tensor;

/// How often a taker has the files looked at while they are being read. A load is checked at its end;
/// whoever uses tensors before that should not use many of a file that somebody writes to.
const GLANCE: Duration = Duration::from_millis(50);

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
    looked: Instant,
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
            looked: Instant::now(),
        })
    }

    /// Tensors that are still to come.
    pub fn remaining(&self) -> usize {
        self.left
    }

    /// The next item, waiting no longer than `timeout`: for callers that have something to look
    /// after in between, as signals of the user.
    ///
    /// [`Poll::Pending`] says that nothing came within that time and more will come later;
    /// `Poll::Ready` is what [`next`](Iterator::next) would give, with `None` at the end. No waker
    /// is kept: ask again.
    pub fn next_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<Tensor>>> {
        self.look();
        let taken = self.delivery.take_within(timeout);
        taken.map(|parcel| self.unpack(parcel))
    }

    fn look(&mut self) {
        if self.looked.elapsed() >= GLANCE {
            self.running.look_for_changes();
            self.looked = Instant::now();
        }
    }

    fn unpack(&mut self, parcel: Option<Result<Parcel>>) -> Option<Result<Tensor>> {
        let parcel = parcel?;
        self.left = if parcel.is_ok() { self.left - 1 } else { 0 };
        Some(parcel.map(|parcel| parcel.tensor))
    }

    /// What the load has done so far.
    pub fn report(&self) -> LoadReport {
        self.running.report()
    }
}

impl Iterator for TensorStream {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Self::Item> {
        self.look();
        let parcel = self.delivery.take();
        self.unpack(parcel)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error may come instead of what is left, or after it.
        (0, Some(self.left + 1))
    }
}

impl Stream for TensorStream {
    type Item = Result<Tensor>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.look();
        let polled = self.delivery.poll_take(context);
        polled.map(|parcel| self.unpack(parcel))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::formats::Layout;
    use crate::storage::{MemorySource, Source};

    #[test]
    fn asking_with_a_timeout_gives_every_item_and_the_end() {
        let header = br#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header);
        file.extend_from_slice(&[1, 2, 3]);
        let source: Arc<dyn Source> = Arc::new(MemorySource::new("m.safetensors", file));
        let checkpoint = Checkpoint::from_sources(Layout::SafeTensors, vec![source], None).unwrap();

        let mut stream = checkpoint.loader().stream().unwrap();
        let mut names = Vec::new();
        loop {
            match stream.next_timeout(Duration::from_millis(1)) {
                Poll::Pending => {}
                Poll::Ready(None) => break,
                Poll::Ready(Some(tensor)) => names.push(tensor.unwrap().name().to_owned()),
            }
            assert_eq!(stream.remaining(), 2 - names.len());
        }
        names.sort();
        assert_eq!(names, ["a", "b"]);
        assert!(stream.next().is_none());
    }
}
