//! Jobs over sources in memory, for the tests of what executes them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::facts::{DirectAlign, Facts, IoUringAvailability, IoUringFacts};
use crate::plan::{PlanOptions, PlanSource, ReadPlan, Selection};
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::storage::job::{Job, Sink};
use crate::storage::region::Tenancy;
use crate::storage::{MemorySource, Source};
use crate::tensor::{Extent, TensorMeta};

/// Tensors around a chunk of 4096 bytes: in place, misaligned, small and large. Fewer for Miri.
pub(crate) const SIZES: &[u64] = if cfg!(miri) {
    &[5000, 6, 4098, 20]
} else {
    &[10_000, 6, 4098, 4096, 20, 9_000]
};

/// A job, what it should deliver, and what it does.
pub(crate) struct Trial {
    pub(crate) job: Arc<Job>,
    pub(crate) outcome: Arc<Outcome>,
    expected: BTreeMap<u32, Vec<u8>>,
}

/// What a sink was told.
#[derive(Default)]
pub(crate) struct Outcome {
    delivered: Mutex<BTreeMap<u32, Vec<u8>>>,
    failure: Mutex<Option<Error>>,
    pub(crate) cancelled: AtomicBool,
    /// (limit, used): room comes back when somebody waits for it.
    budget: Mutex<(Option<u64>, u64)>,
}

struct TrialSink(Arc<Outcome>);

/// Tensors of these sizes one after the other from byte 64 on, each after a gap of its own. The
/// third of every three lies misaligned.
pub(crate) fn tensors(sizes: &[u64]) -> (Vec<TensorMeta>, Vec<u8>) {
    let mut at = 64_u64;
    let mut metas = Vec::new();
    for (index, &len) in sizes.iter().enumerate() {
        at = at.next_multiple_of(8) + u64::from(index % 3 == 2);
        metas.push(TensorMeta {
            name: format!("t{index}").into(),
            dtype: Dtype::U16,
            shape: [len / 2].as_slice().into(),
            strides: None,
            extents: [Extent {
                source: 0,
                offset: at,
                len,
            }]
            .as_slice()
            .into(),
        });
        at += len;
    }
    let word = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let bytes = (0..at / 8 + 20).flat_map(word).collect();
    (metas, bytes)
}

impl Trial {
    /// A job that reads tensors of `sizes` (even numbers of bytes) out of one source, direct reads
    /// being possible. `wrap` may put another source over the one in memory.
    pub(crate) fn new(
        sizes: &[u64],
        settings: &Settings,
        wrap: impl FnOnce(Arc<dyn Source>) -> Arc<dyn Source>,
    ) -> Self {
        let (metas, bytes) = tensors(sizes);
        let plan_source = PlanSource {
            path: "memory".into(),
            len: bytes.len() as u64,
        };
        let options = PlanOptions::default();
        let plan =
            ReadPlan::from_parts(&metas, vec![plan_source], &Selection::all(), &options).unwrap();
        let mut facts = Facts::neutral(1);
        facts.io_uring = IoUringAvailability::Available(IoUringFacts {
            coop_taskrun: false,
            single_issuer: false,
            defer_taskrun: false,
        });
        facts.sources[0].direct = Some(DirectAlign {
            memory: 512,
            offset: 512,
        });
        let schedule = Schedule::lower(&plan, &facts, settings).unwrap();
        let expected = metas
            .iter()
            .enumerate()
            .map(|(index, meta)| {
                let extent = meta.extents[0];
                let range = extent.offset as usize..extent.end() as usize;
                (index as u32, bytes[range].to_vec())
            })
            .collect();
        let outcome = Arc::new(Outcome::default());
        outcome.budget().0 = settings.budget;
        let source = wrap(Arc::new(MemorySource::new("memory", bytes)));
        let sink = Box::new(TrialSink(Arc::clone(&outcome)));
        let job = Arc::new(Job::new(schedule, vec![source], Vec::new(), sink));
        Self {
            job,
            outcome,
            expected,
        }
    }

    /// Every tensor came, nothing failed, and nothing is in flight.
    #[track_caller]
    pub(crate) fn assert_delivered(&self) {
        if let Some(error) = &*self.outcome.failure() {
            panic!("{error}: {:?}", std::error::Error::source(error));
        }
        let delivered = self.outcome.delivered.lock().unwrap();
        assert!(*delivered == self.expected, "delivered bytes differ");
        assert_eq!(self.job.in_flight(), 0);
        let decision = self.job.schedule().decision();
        let buffers = self.job.staging_buffers();
        assert!(
            buffers <= decision.workers * decision.queue_depth,
            "{buffers} staging buffers"
        );
    }
}

impl Outcome {
    pub(crate) fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn budget(&self) -> MutexGuard<'_, (Option<u64>, u64)> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for TrialSink {
    fn try_admit(&self, bytes: u64) -> bool {
        let mut budget = self.0.budget();
        let fits = budget.1 == 0 || budget.0.is_none_or(|limit| budget.1 + bytes <= limit);
        budget.1 += if fits { bytes } else { 0 };
        fits
    }

    fn wait_for_room(&self, _bytes: u64) {
        self.0.budget().1 = 0;
    }

    fn poll_room(&self, bytes: u64, _context: &Context<'_>) -> Poll<()> {
        self.wait_for_room(bytes);
        Poll::Ready(())
    }

    fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    fn fail(&self, error: Error) {
        self.0.failure().get_or_insert(error);
        self.0.cancelled.store(true, Ordering::SeqCst);
    }

    fn deliver(&self, tensor: u32, bytes: Tenancy) -> Result<()> {
        let mut delivered = self.0.delivered.lock().unwrap();
        let earlier = delivered.insert(tensor, bytes.bytes().to_vec());
        assert!(earlier.is_none(), "tensor {tensor} was delivered twice");
        Ok(())
    }

    fn name(&self, _tensor: u32) -> &str {
        "some tensor"
    }
}
