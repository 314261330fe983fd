//! Loading: from a checkpoint and a selection to tensors in memory.
//!
//! One [`Loader`] for every way: all at once ([`Loader::load`], [`Loader::load_async`]), as they
//! arrive ([`Loader::stream`]), or into memory of the caller ([`Loader::load_into`]). What it will
//! do can be seen before, without reading a byte: [`Loader::plan`] and [`Loader::schedule`].

mod cancel;
mod delivery;
mod digest;
mod eager;
mod lazy;
mod report;
mod run;
mod sink;
mod stream;
mod tensors;

use std::sync::Arc;

pub use cancel::CancelToken;
pub use digest::Digests;
pub use lazy::LazyTensors;
pub use report::LoadReport;
pub use stream::TensorStream;
pub use tensors::Tensors;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::facts::{Facts, MemoryFacts};
use crate::plan::{PlanOptions, PlanSource, ReadPlan, Selection, Span};
use crate::schedule::{Origin, RegionSpec, Schedule};
use crate::settings::{AccessMode, Order, Settings};
use crate::storage::BackendKind;
use crate::tensor::{Tensor, TensorMeta};
use crate::trace::Trace;

impl Checkpoint {
    /// Loads all tensors with the `default` backend.
    ///
    /// # Errors
    /// As [`Loader::load`].
    pub fn load(&self) -> Result<Tensors> {
        self.loader().load()
    }

    /// Reads one tensor into memory of its own, on this thread where it is short: to take many of
    /// them one by one costs little more than their reads. Longer ones are loaded with the `default`
    /// backend.
    ///
    /// # Errors
    /// [`NoSuchTensor`](crate::ErrorKind::NoSuchTensor) with near names; as [`Loader::load`].
    pub fn read(&self, name: &str) -> Result<Tensor> {
        lazy::read(self, name)
    }

    /// A loader for all tensors, to be narrowed and tuned.
    pub fn loader(&self) -> Loader {
        Loader {
            checkpoint: self.clone(),
            selection: Selection::all(),
            options: PlanOptions::default(),
            settings: Settings::default(),
            digests: Digests::default(),
            cancel: CancelToken::default(),
            trace: None,
            maps_only: false,
        }
    }

    /// Lazy handles: nothing is read before a tensor's bytes are touched.
    pub fn lazy(&self) -> LazyTensors {
        LazyTensors::new(self.clone())
    }
}

/// What to load and how. Cheap to clone; nothing is read before one of its verbs is called.
#[derive(Debug, Clone)]
pub struct Loader {
    checkpoint: Checkpoint,
    selection: Selection,
    options: PlanOptions,
    settings: Settings,
    digests: Digests,
    cancel: CancelToken,
    trace: Option<Trace>,
    /// Nothing is read now: what the page cache holds does not matter.
    maps_only: bool,
}

impl Loader {
    /// Which tensors, and which slices of them.
    #[must_use]
    pub fn select(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Who reads.
    #[must_use]
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.settings.backend = backend;
        self
    }

    /// Page cache or not.
    #[must_use]
    pub fn access(mut self, access: AccessMode) -> Self {
        self.settings.access = access;
        self
    }

    /// Threads or rings.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = Some(workers);
        self
    }

    /// Bytes that a stream may hold in flight and not yet taken. One tensor that is larger goes
    /// through alone.
    #[must_use]
    pub fn budget(mut self, bytes: u64) -> Self {
        self.settings.budget = Some(bytes);
        self
    }

    /// Aligns every tensor's address to so many bytes.
    #[must_use]
    pub fn align(mut self, bytes: u64) -> Self {
        self.settings.align = Some(bytes);
        self
    }

    /// The order in which a stream hands tensors out.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = order;
        self
    }

    /// Replaces all settings at once, the backend included.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Makes every tensor carry a digest of its bytes, computed on threads of the load while others
    /// are still being read. A tensor is handed out once it is hashed.
    #[must_use]
    pub fn digests(mut self, digests: Digests) -> Self {
        self.digests = digests;
        self
    }

    /// How reads are coalesced.
    #[must_use]
    pub fn plan_options(mut self, options: PlanOptions) -> Self {
        self.options = options;
        self
    }

    /// Lets `token` end the load from another thread.
    #[must_use]
    pub fn cancel_with(mut self, token: CancelToken) -> Self {
        self.cancel = token;
        self
    }

    /// Records the load, or each load, in `trace`: see [`crate::trace`].
    #[must_use]
    pub fn trace(mut self, trace: &Trace) -> Self {
        self.trace = Some(trace.clone());
        self
    }

    /// What will be read. Pure: the files are not looked at.
    ///
    /// # Errors
    /// [`NoSuchTensor`](crate::ErrorKind::NoSuchTensor) and
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for selections that do not fit.
    pub fn plan(&self) -> Result<ReadPlan> {
        let sources = self.checkpoint.sources().iter();
        let sources = sources
            .map(|source| PlanSource {
                path: source.path().to_owned(),
                len: source.len(),
            })
            .collect();
        let named = self.named();
        let tensors = named.as_deref().unwrap_or(self.checkpoint.tensors());
        ReadPlan::from_parts(tensors, sources, &self.selection, &self.options)
            .map_err(|error| self.checkpoint.located(error))
    }

    /// The selected tensors where the selection is a few names, so that taking one by one out of
    /// many thousands does not go through all of them each time. `None` for everything else, and
    /// for a name that there is not, whose error wants to see all.
    fn named(&self) -> Option<Vec<TensorMeta>> {
        let names = self.selection.only_names()?;
        let tensors = self.checkpoint.tensors();
        if names.len() > tensors.len() / 8 {
            return None;
        }
        let found = names.iter().map(|name| self.checkpoint.position(name));
        let mut found = found.collect::<Option<Vec<usize>>>()?;
        found.sort_unstable();
        found.dedup();
        Some(found.into_iter().map(|at| tensors[at].clone()).collect())
    }

    /// How it will be read, on this machine and with what is in the page cache now.
    ///
    /// # Errors
    /// As [`plan`](Self::plan); [`Unavailable`](crate::ErrorKind::Unavailable) for an explicit
    /// backend that cannot run here.
    pub fn schedule(&self) -> Result<Schedule> {
        let plan = self.plan()?;
        let profile = self.checkpoint.engine().profile();
        Schedule::lower_with(&plan, &self.facts(&plan), &self.settings, profile)
    }

    /// What is known of this machine and of the parts of files that `plan` reads.
    pub fn facts(&self, plan: &ReadPlan) -> Facts {
        let range = |span: &Span| (span.source, span.offset, span.len);
        let ranges: Vec<_> = match self.maps_only {
            true => Vec::new(),
            false => plan.spans.iter().map(range).collect(),
        };
        let observer = self.checkpoint.engine().observer();
        observer.observe(self.checkpoint.sources(), &ranges)
    }

    /// Loads the selection, blocking, and returns when every byte is in memory.
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule); [`Truncated`](crate::ErrorKind::Truncated),
    /// [`SourceChanged`](crate::ErrorKind::SourceChanged) and [`Io`](crate::ErrorKind::Io) with
    /// file and tensor; [`Cancelled`](crate::ErrorKind::Cancelled). After an error there are no
    /// tensors, and nothing is in flight.
    pub fn load(&self) -> Result<Tensors> {
        eager::load(self)
    }

    /// As [`load`](Self::load), for async callers: no thread of theirs is ever blocked, and any
    /// executor will do. Dropping the future cancels the load; what is in flight is drained in the
    /// background.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub async fn load_async(&self) -> Result<Tensors> {
        eager::load_async(self).await
    }

    /// Hands tensors out as they arrive, or by name, while the rest is being read. Planning
    /// happens here; reading happens on threads of the stream.
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule); what fails later is an item of the stream, its last.
    pub fn stream(&self) -> Result<TensorStream> {
        TensorStream::start(self)
    }

    /// Loads into memory of the caller: exactly one buffer of [`PlannedTensor::nbytes`] for each
    /// tensor of the selection, by name. Long runs are read into place; the rest is copied, and so
    /// is what comes around the page cache, unless offset in the file, length and address are all
    /// aligned as direct reads need it.
    ///
    /// [`PlannedTensor::nbytes`]: crate::plan::PlannedTensor::nbytes
    ///
    /// # Errors
    /// As [`load`](Self::load); [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a
    /// missing, superfluous or ill-sized buffer, and for digests, which need a tensor to carry them.
    /// After an error the buffers' contents are
    /// unspecified.
    pub fn load_into<'a>(
        &self,
        buffers: impl IntoIterator<Item = (&'a str, &'a mut [u8])>,
    ) -> Result<LoadReport> {
        eager::load_into(self, buffers.into_iter().collect())
    }

    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The same loader for a load that hands everything out at its end, where a budget would let
    /// it wait for itself.
    fn without_budget(mut self) -> Self {
        self.settings.budget = None;
        self.settings.order = Order::Arrival;
        self
    }

    /// The same loader for mappings that are not populated. To ask for the pages that are cached
    /// takes longer than to map: some milliseconds for each GiB.
    fn for_mapping(mut self) -> Self {
        self.settings.backend = BackendKind::Mmap;
        self.maps_only = true;
        self
    }

    /// Everything at once, or under a budget the largest part. Mappings count where they are brought
    /// in: pages that are read and dropped again before the end are in nobody's hand.
    fn check_memory(
        &self,
        plan: &ReadPlan,
        schedule: &Schedule,
        memory: &MemoryFacts,
    ) -> Result<()> {
        let counted = |region: &&RegionSpec| match region.origin {
            Origin::Arena => true,
            Origin::File { .. } => !self.maps_only,
            Origin::Lent { .. } => false,
        };
        let regions = || schedule.regions().iter().filter(counted);
        if self.settings.budget.is_none() {
            let all = regions().map(|region| region.charge).sum();
            return check_memory(all, memory).map_err(|error| {
                error.help(
                    "stream with a budget, select fewer tensors or slices, or map them lazily",
                )
            });
        }
        let Some(largest) = regions().max_by_key(|region| region.charge) else {
            return Ok(());
        };
        check_memory(largest.charge, memory).map_err(|error| {
            let error = error.help("leave it out, select slices of it, or map it lazily");
            match largest.tenants.as_slice() {
                [tenants] => error.tensor(&*plan.tensors[tenants[0] as usize].name),
                _ => error,
            }
        })
    }

    /// Plan, schedule and everything else that comes before the first read; `lent` as for
    /// [`Schedule::lower_for`].
    fn prepare(&self, lent: Option<&[u64]>) -> Result<(Arc<ReadPlan>, Schedule)> {
        let plan = Arc::new(self.plan()?);
        let facts = self.facts(&plan);
        let schedule = Schedule::lower_for(
            &plan,
            &facts,
            &self.settings,
            self.checkpoint.engine().profile(),
            lent,
        )?;
        self.check_memory(&plan, &schedule, &facts.memory)
            .map_err(|error| self.checkpoint.located(error))?;
        let decision = schedule.decision();
        tracing::debug!(backend = %decision.backend, reason = %decision.reason, "load scheduled");
        Ok((plan, schedule))
    }
}

/// Refuses what cannot fit, before the system ends the process half way through it.
fn check_memory(needed: u64, memory: &MemoryFacts) -> Result<()> {
    let Some(ceiling) = memory.ceiling_bytes().filter(|&ceiling| needed > ceiling) else {
        return Ok(());
    };
    let what =
        format!("this takes {needed} bytes of memory at once, and there are {ceiling} in all");
    Err(Error::new(ErrorKind::OutOfMemory, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_fit_is_refused_and_what_is_unknown_is_tried() {
        let memory = |total, cgroup| MemoryFacts {
            total_bytes: total,
            cgroup_limit_bytes: cgroup,
            ..MemoryFacts::default()
        };
        check_memory(100, &memory(Some(100), None)).unwrap();
        check_memory(100, &memory(None, None)).unwrap();
        let refused = check_memory(101, &memory(Some(1000), Some(100))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        assert!(refused.to_string().contains("101") && refused.to_string().contains("100"));
    }

    #[test]
    fn a_few_names_are_planned_as_among_all_tensors() {
        use crate::converters::{OutputTensor, SaveOptions, serialize};
        use crate::plan::{Slice, Steps};
        use crate::storage::MemorySource;
        use crate::{Dtype, Layout};

        let data = [0; 24];
        let tensors: Vec<_> = (0..64)
            .map(|i| {
                (
                    OutputTensor::new(format!("w{i}"), Dtype::U8, [4, 6]),
                    &data[..],
                )
            })
            .collect();
        let bytes = serialize(&tensors, &SaveOptions::default()).unwrap();
        let source = Arc::new(MemorySource::new("memory", bytes));
        let checkpoint = Checkpoint::from_sources(Layout::SafeTensors, vec![source], None).unwrap();
        let names = || Selection::names(["w7", "w3", "w7"]);
        let part = || {
            Slice::Steps(vec![
                None,
                Some(Steps {
                    start: 1,
                    count: 2,
                    step: 1,
                }),
            ])
        };
        let sliced = |target| names().with_slice(target, part()).unwrap();
        for (selection, narrow) in [
            (names(), true),
            (sliced("w3"), true),
            (sliced("w*"), false),
            (sliced("w4"), false),
            (Selection::names(["w1", "none"]), false),
            (names().or(Selection::glob("w1?").unwrap()), false),
        ] {
            let loader = checkpoint.loader().select(selection);
            assert_eq!(loader.named().is_some(), narrow);
            let wide = Loader {
                selection: loader.selection.clone().or(Selection::names(
                    // More than a few.
                    loader
                        .selection
                        .only_names()
                        .into_iter()
                        .flatten()
                        .cycle()
                        .take(32),
                )),
                ..loader.clone()
            };
            match (loader.plan(), wide.plan()) {
                (Ok(plan), Ok(wide)) => assert_eq!(plan, wide),
                (Err(error), Err(wide)) => assert_eq!(error.to_string(), wide.to_string()),
                other => panic!("{other:?}"),
            }
        }
    }
}
