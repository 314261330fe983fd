//! A load under way: what every way of loading shares.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::load::Loader;
use crate::load::delivery::{Delivery, cancelled};
use crate::load::digest::Hashing;
use crate::load::report::LoadReport;
use crate::load::sink::LoadSink;
use crate::plan::ReadPlan;
use crate::settings::Order;
use crate::storage::Source;
use crate::storage::backends::Backend;
use crate::storage::job::{Job, Lent};
use crate::tensor::Tensor;
use crate::trace::{Recorder, Stamp, Tracing};

/// A load with everything that it needs to run, and to be reported on.
pub(super) struct Running {
    pub(super) job: Arc<Job>,
    plan: Arc<ReadPlan>,
    pub(super) delivery: Arc<Delivery>,
    hashing: Arc<Hashing>,
    backend: Box<dyn Backend>,
    /// Sources that bytes are read from.
    used: Vec<Arc<dyn Source>>,
    ended: Mutex<Option<Instant>>,
}

impl Running {
    pub(super) fn new(loader: &Loader, lent: Option<Vec<Option<Lent>>>) -> Result<Self> {
        if loader.cancel.is_cancelled() {
            return Err(cancelled());
        }
        let prepared = loader.trace.as_ref().map(|trace| (trace, Stamp::now()));
        let into_page = |lent: &Option<Lent>| lent.as_ref().map_or(0, Lent::bytes_into_page);
        let into_page: Option<Vec<u64>> = lent
            .as_ref()
            .map(|lent| lent.iter().map(into_page).collect());
        let (plan, schedule) = loader.prepare(into_page.as_deref())?;
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

        let tracing = prepared.map_or_else(Tracing::default, |(trace, since)| {
            Tracing::on(Recorder::begin(trace, &plan, schedule.decision(), since))
        });
        let delivery = Arc::new(Delivery::new(schedule.budget, ranks(&plan, schedule.order)));
        let hashing = Arc::new(Hashing::new(loader.digests, plan.tensors.len(), &delivery));
        let sink = LoadSink::new(&plan, &schedule, &delivery, &hashing);
        sink.deliver_empty();
        let job = Job::new(
            schedule,
            sources.to_vec(),
            lent.unwrap_or_default(),
            Box::new(sink),
        )
        .traced(tracing);
        loader.cancel.watch(&delivery);
        Ok(Self {
            job: Arc::new(job),
            plan,
            delivery,
            hashing,
            backend,
            used,
            ended: Mutex::new(None),
        })
    }

    /// Reads everything; when it returns nothing is in flight.
    pub(super) fn run(&self) {
        let _end = FinishOnDrop(self);
        self.hashing.during(|| self.backend.execute(&self.job));
        debug_assert_eq!(
            self.job.in_flight() as u64,
            self.job.counters.leaked.load(Ordering::Relaxed),
            "a backend returned with reads in flight"
        );
        if !self.delivery.is_cancelled() {
            self.look_for_changes();
        }
    }

    /// Ends the load where a source is not what it was.
    pub(super) fn look_for_changes(&self) {
        let mut used = self.used.iter();
        if let Err(error) = used.try_for_each(|source| source.check_unchanged()) {
            self.delivery.fail(error);
        }
    }

    /// What was delivered, in the order of the plan.
    pub(super) fn collect(&self) -> Result<Vec<Tensor>> {
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
pub(super) struct FinishOnDrop<'a>(pub(super) &'a Running);

impl Drop for FinishOnDrop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .delivery
                .fail(Error::new(ErrorKind::Io, "a reading thread panicked"));
        }
        self.0.job.tracing.end();
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.0.delivery.finish();
    }
}

/// Starts a thread of a load.
pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>> {
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
