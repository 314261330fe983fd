//! From stored bytes to tensors: the end of every read.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::{Error, ErrorKind, Result};
use crate::load::delivery::{Delivery, Parcel};
use crate::load::digest::Hashing;
use crate::plan::{Gather, PlannedTensor, ReadPlan};
use crate::schedule::Schedule;
use crate::storage::job::Sink;
use crate::storage::region::{Region, Tenancy};
use crate::tensor::Tensor;

/// Makes tensors of stored bytes and passes them on.
pub(super) struct LoadSink {
    plan: Arc<ReadPlan>,
    delivery: Arc<Delivery>,
    hashing: Arc<Hashing>,
    /// For each tensor the bytes that taking it gives back to the budget.
    credits: Box<[u64]>,
}

impl LoadSink {
    pub(super) fn new(
        plan: &Arc<ReadPlan>,
        schedule: &Schedule,
        delivery: &Arc<Delivery>,
        hashing: &Arc<Hashing>,
    ) -> Self {
        Self {
            plan: Arc::clone(plan),
            delivery: Arc::clone(delivery),
            hashing: Arc::clone(hashing),
            credits: credits(schedule),
        }
    }

    /// Tensors without bytes have nothing to wait for.
    pub(super) fn deliver_empty(&self) {
        for (index, planned) in self.plan.tensors.iter().enumerate() {
            if planned.stored_bytes == 0 {
                let tensor =
                    Tensor::empty(planned.name.clone(), planned.dtype, planned.shape.clone());
                self.hashing.push(Parcel {
                    index: index as u32,
                    tensor,
                    credit: 0,
                });
            }
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
        let made = Tensor::new(
            planned.name.clone(),
            planned.dtype,
            planned.shape.clone(),
            bytes,
        );
        self.hashing.push(Parcel {
            index: tensor,
            tensor: made,
            credit: self.credits[tensor as usize],
        });
        Ok(())
    }

    fn name(&self, tensor: u32) -> &str {
        &self.plan.tensors[tensor as usize].name
    }
}

/// Splits the charge of every region among its tensors: each gives back its share of its slot, and
/// the first one what the region holds besides.
fn credits(schedule: &Schedule) -> Box<[u64]> {
    let mut credits = vec![0; schedule.places.len()];
    for region in &schedule.regions {
        let mut left = region.charge;
        for (slot, tenants) in region.slots.iter().zip(&region.tenants) {
            let share = slot.bytes.len() as u64 / tenants.len() as u64;
            for &tensor in tenants {
                credits[tensor as usize] = share;
                left -= share;
            }
        }
        if let Some(&first) = region.tenants.first().and_then(|tenants| tenants.first()) {
            credits[first as usize] += left;
        }
    }
    credits.into()
}

/// Copies a strided view into memory of its own, contiguous.
fn gathered(planned: &PlannedTensor, view: &Gather, stored: &Tenancy) -> Result<Tenancy> {
    let out_of_memory = |error| {
        Error::new(
            ErrorKind::OutOfMemory,
            format!("cannot reserve {} bytes of memory", planned.nbytes),
        )
        .tensor(&*planned.name)
        .because(error)
    };
    let len = usize::try_from(planned.nbytes)
        .map_err(|error| out_of_memory(std::io::Error::other(error)))?;
    let element = (planned.dtype.bits() / 8) as usize;
    Region::filled(len, |into| {
        let from = stored.bytes();
        let mut to = 0;
        walk(
            &planned.shape,
            &view.strides,
            view.offset as usize,
            &mut |at| {
                into[to..to + element].copy_from_slice(&from[at * element..(at + 1) * element]);
                to += element;
            },
        );
    })
    .map_err(out_of_memory)
}

/// Visits the elements of a view in row-major order; `at` is what the indices so far name.
fn walk(shape: &[u64], strides: &[u64], at: usize, visit: &mut impl FnMut(usize)) {
    match (shape.split_first(), strides.split_first()) {
        (Some((&len, shape)), Some((&stride, strides))) => {
            for index in 0..len {
                walk(shape, strides, at + (index * stride) as usize, visit);
            }
        }
        _ => visit(at),
    }
}
