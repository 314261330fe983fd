//! Running a load: one path for all at once, as they arrive, async, and into lent memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::load::Loader;
use crate::load::delivery::{Delivery, cancelled};
use crate::load::report::LoadReport;
use crate::load::sink::LoadSink;
use crate::load::stream::TensorStream;
use crate::load::tensors::Tensors;
use crate::plan::ReadPlan;
use crate::schedule::Order;
use crate::storage::Source;
use crate::storage::backends::{Backend, MmapBackend};
use crate::storage::job::{Job, Lent};
use crate::tensor::Tensor;

/// Ends loads from another thread, or from a signal handler's thread. One token may serve several
/// loads, one after the other or at once.
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    inner: Arc<TokenState>,
}

#[derive(Debug, Default)]
struct TokenState {
    cancelled: AtomicBool,
    loads: Mutex<Vec<Weak<Delivery>>>,
}

impl CancelToken {
    /// Ends the loads that this token was given to, and refuses those to come. Reads in flight
    /// are drained before the load returns its error.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::SeqCst);
        let loads = self
            .inner
            .loads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loads
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|load| load.end_from_outside());
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::SeqCst)
    }

    fn watch(&self, delivery: &Arc<Delivery>) {
        let mut loads = self
            .inner
            .loads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loads.retain(|load| load.strong_count() > 0);
        loads.push(Arc::downgrade(delivery));
        drop(loads);
        // Looked at after the list has the load: a cancel in between is seen by one or the other.
        if self.is_cancelled() {
            delivery.end_from_outside();
        }
    }
}

/// A load with everything that it needs to run, and to be reported on.
pub(super) struct Running {
    job: Arc<Job>,
    plan: Arc<ReadPlan>,
    delivery: Arc<Delivery>,
    backend: Box<dyn Backend>,
    /// Sources that bytes are read from.
    used: Vec<Arc<dyn Source>>,
    ended: Mutex<Option<Instant>>,
}

impl Running {
    fn new(loader: &Loader, lent: Option<Vec<Option<Lent>>>) -> Result<Self> {
        if loader.cancel.is_cancelled() {
            return Err(cancelled());
        }
        let (plan, schedule) = loader.prepare(lent.is_some())?;
        let backend = loader
            .checkpoint()
            .engine()
            .backend(schedule.decision().backend)?;
        let sources = loader.checkpoint().sources();
        let mut reads: Vec<u32> = plan.spans.iter().map(|span| span.source).collect();
        reads.dedup();
        reads.sort_unstable();
        reads.dedup();
        let used: Vec<_> = reads
            .iter()
            .map(|&source| Arc::clone(&sources[source as usize]))
            .collect();
        // What was validated at opening must be what is read now.
        used.iter()
            .try_for_each(|source| source.check_unchanged())?;

        let delivery = Arc::new(Delivery::new(schedule.budget, ranks(&plan, schedule.order)));
        let sink = LoadSink::new(&plan, &schedule, &delivery);
        sink.deliver_empty();
        let job = Job::new(
            schedule,
            sources.to_vec(),
            lent.unwrap_or_default(),
            Box::new(sink),
        );
        loader.cancel.watch(&delivery);
        Ok(Self {
            job: Arc::new(job),
            plan,
            delivery,
            backend,
            used,
            ended: Mutex::new(None),
        })
    }

    /// Reads everything; when it returns nothing is in flight.
    fn run(&self) {
        let _end = FinishOnDrop(self);
        self.backend.execute(&self.job);
        debug_assert_eq!(
            self.job.in_flight() as u64,
            self.job.counters.leaked.load(Ordering::Relaxed),
            "a backend returned with reads in flight"
        );
        if !self.delivery.is_cancelled()
            && let Err(error) = self
                .used
                .iter()
                .try_for_each(|source| source.check_unchanged())
        {
            self.delivery.fail(error);
        }
    }

    /// What was delivered, in the order of the plan.
    fn collect(&self) -> Result<Vec<Tensor>> {
        let mut tensors: Vec<Option<Tensor>> = vec![None; self.plan.tensors.len()];
        while let Some(parcel) = self.delivery.take() {
            let parcel = parcel?;
            tensors[parcel.index as usize] = Some(parcel.tensor);
        }
        // Without a failure only a cancel leaves tensors out.
        tensors
            .into_iter()
            .map(|tensor| tensor.ok_or_else(cancelled))
            .collect()
    }

    pub(super) fn tensors(&self) -> usize {
        self.plan.tensors.len()
    }

    pub(super) fn report(&self) -> LoadReport {
        let counters = &self.job.counters;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        LoadReport {
            decision: self.job.schedule().decision().clone(),
            tensors: self.plan.tensors.len() as u64,
            bytes: self.plan.tensors.iter().map(|tensor| tensor.nbytes).sum(),
            first_tensor: self.delivery.first_tensor_after(),
            elapsed: ended
                .unwrap_or_else(Instant::now)
                .duration_since(self.delivery.started()),
            reads: count(&counters.reads),
            read_bytes: count(&counters.read_bytes),
            direct_bytes: count(&counters.direct_bytes),
            mapped_bytes: count(&counters.mapped_bytes),
            staged_bytes: count(&counters.staged_bytes),
            direct_refusals: count(&counters.direct_refusals),
        }
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("tensors", &self.tensors())
            .finish_non_exhaustive()
    }
}

/// Whatever happens, a panic included, takers are told that nothing more will come.
struct FinishOnDrop<'a>(&'a Running);

impl Drop for FinishOnDrop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .delivery
                .fail(Error::new(ErrorKind::Io, "a reading thread panicked"));
        }
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.0.delivery.finish();
    }
}

pub(super) fn load(loader: &Loader) -> Result<Tensors> {
    let running = Running::new(&loader.clone().without_budget(), None)?;
    running.run();
    let tensors = running.collect()?;
    Ok(Tensors::new(tensors, running.report()))
}

/// Maps the selection without bringing pages in; what cannot be mapped is read.
pub(super) fn map(loader: &Loader) -> Result<Vec<Tensor>> {
    let running = Running::new(loader, None)?;
    let end = FinishOnDrop(&running);
    MmapBackend::lazy().execute(&running.job);
    drop(end);
    running.collect()
}

pub(super) async fn load_async(loader: &Loader) -> Result<Tensors> {
    /// A future that is dropped before its end takes the load with it.
    struct CancelOnDrop(CancelToken);
    impl Drop for CancelOnDrop {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    let mut loader = loader.clone();
    let outer = std::mem::take(&mut loader.cancel);
    let _guard = CancelOnDrop(loader.cancel.clone());
    let (send, receive) = tokio::sync::oneshot::channel();
    let work = move || {
        // Both tokens end it: the caller's, and the one of the dropped future.
        let outcome = Running::new(&loader.clone().without_budget(), None).and_then(|running| {
            outer.watch(&running.delivery);
            running.run();
            let tensors = running.collect()?;
            Ok(Tensors::new(tensors, running.report()))
        });
        let _ = send.send(outcome);
    };
    spawn("tensora-load", work)?;
    receive
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the loading thread panicked")))
}

pub(super) fn stream(loader: &Loader) -> Result<TensorStream> {
    let running = Arc::new(Running::new(loader, None)?);
    let delivery = Arc::clone(&running.delivery);
    let reader = spawn("tensora-stream", {
        let running = Arc::clone(&running);
        move || running.run()
    })?;
    Ok(TensorStream::new(running, delivery, reader))
}

pub(super) fn load_into(loader: &Loader, buffers: Vec<(&str, &mut [u8])>) -> Result<LoadReport> {
    let plan = loader.plan()?;
    let mut by_name: HashMap<&str, &mut [u8]> = HashMap::with_capacity(buffers.len());
    let bad = |name: &str, what: String| Error::new(ErrorKind::InvalidArgument, what).tensor(name);
    for (name, buffer) in buffers {
        if by_name.insert(name, buffer).is_some() {
            return Err(bad(name, "two buffers were given".to_owned()));
        }
    }
    let mut targets: Vec<&mut [u8]> = Vec::with_capacity(plan.tensors.len());
    for planned in &plan.tensors {
        let buffer = by_name.remove(&*planned.name).ok_or_else(|| {
            bad(
                &planned.name,
                "it is selected, but no buffer was given for it".to_owned(),
            )
        })?;
        if buffer.len() as u64 != planned.nbytes {
            let what = format!(
                "it has {} bytes, but its buffer has {}",
                planned.nbytes,
                buffer.len()
            );
            return Err(bad(&planned.name, what));
        }
        targets.push(buffer);
    }
    if let Some(name) = by_name.keys().min() {
        return Err(bad(
            name,
            "a buffer was given, but it is not selected".to_owned(),
        ));
    }
    let lent = targets
        .iter_mut()
        .zip(&plan.tensors)
        // Strided views are read elsewhere and gathered.
        .map(|(buffer, planned)| {
            (planned.gather.is_none() && planned.nbytes > 0).then(|| lend(buffer))
        })
        .collect();
    let running = Running::new(&loader.clone().without_budget(), Some(lent))?;
    running.run();
    for (tensor, buffer) in running.collect()?.iter().zip(targets) {
        if tensor.bytes().as_ptr() != buffer.as_ptr() {
            buffer.copy_from_slice(tensor.bytes());
        }
    }
    Ok(running.report())
}

#[allow(unsafe_code)]
fn lend(buffer: &mut [u8]) -> Lent {
    // SAFETY: `load_into` holds the borrow, returns when nothing is in flight, and reads the
    // delivered tensors only for comparing addresses or copying out of other memory.
    unsafe { Lent::new(buffer) }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start a thread for the load").because(error)
        })
}

/// Positions by name, when that order was asked for.
fn ranks(plan: &ReadPlan, order: Order) -> Option<Box<[u32]>> {
    if order == Order::Arrival {
        return None;
    }
    let mut by_name: Vec<u32> = (0..plan.tensors.len() as u32).collect();
    by_name.sort_by_key(|&index| &plan.tensors[index as usize].name);
    let mut ranks = vec![0; by_name.len()];
    for (rank, &index) in by_name.iter().enumerate() {
        ranks[index as usize] = rank as u32;
    }
    Some(ranks.into())
}
