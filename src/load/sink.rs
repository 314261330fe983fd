//! From stored bytes to tensors: the end of every read.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use crate::error::{Error, Result};
use crate::load::delivery::{Delivery, Parcel};
use crate::plan::{Gather, PlannedTensor, ReadPlan};
use crate::schedule::Schedule;
use crate::storage::job::Sink;
use crate::storage::region::{Region, SlotSpec, Tenancy};
use crate::tensor::{Tensor, contiguous_strides};

/// Makes tensors of stored bytes and passes them on.
pub(crate) struct LoadSink {
    pub(crate) plan: Arc<ReadPlan>,
    pub(crate) delivery: Arc<Delivery>,
    /// For each tensor the bytes that taking it gives back to the budget.
    pub(crate) credits: Box<[u64]>,
    /// Where strided views are gathered to when the caller lent memory.
    pub(crate) lent: Mutex<Vec<Option<LentBytes>>>,
}

/// The caller's memory for one tensor whose result is not what lies in the file.
pub(crate) type LentBytes = crate::storage::region::Landing;

impl LoadSink {
    pub(crate) fn new(plan: &Arc<ReadPlan>, schedule: &Schedule, delivery: &Arc<Delivery>) -> Self {
        Self {
            plan: Arc::clone(plan),
            delivery: Arc::clone(delivery),
            credits: credits(plan, schedule),
            lent: Mutex::default(),
        }
    }
}

impl Sink for LoadSink {
    fn try_admit(&self, bytes: u64) -> bool {
        self.delivery.try_admit(bytes)
    }

    fn wait_for_room(&self, bytes: u64) {
        self.delivery.wait_for_room(bytes);
    }

    fn poll_room(&self, bytes: u64, context: &Context<'_>) -> Poll<()> {
        self.delivery.poll_room(bytes, context)
    }

    fn is_cancelled(&self) -> bool {
        self.delivery.is_cancelled()
    }

    fn fail(&self, error: Error) {
        self.delivery.fail(error);
    }

    fn deliver(&self, tensor: u32, bytes: Tenancy) -> Result<()> {
        let planned = &self.plan.tensors[tensor as usize];
        let bytes = match &planned.gather {
            None => bytes,
            Some(view) => gathered(planned, view, &bytes)?,
        };
        let made = Tensor::new(planned.name.clone(), planned.dtype, planned.shape.clone(), bytes);
        self.delivery.push(Parcel { index: tensor, tensor: made, credit: self.credits[tensor as usize] });
        Ok(())
    }

    fn name(&self, tensor: u32) -> &str {
        &self.plan.tensors[tensor as usize].name
    }
}
