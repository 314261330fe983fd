//! Everything at once: into memory of ours, of the caller, mapped, or awaited.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::load::Loader;
use crate::load::cancel::CancelToken;
use crate::load::digest::Digests;
use crate::load::report::LoadReport;
use crate::load::run::{FinishOnDrop, Running, spawn};
use crate::load::tensors::Tensors;
use crate::storage::backends::{Backend, MmapBackend};
use crate::storage::job::Lent;
use crate::tensor::Tensor;

pub(super) fn load(loader: &Loader) -> Result<Tensors> {
    let running = Running::new(&loader.clone().without_budget(), None)?;
    running.run();
    let tensors = running.collect()?;
    Ok(Tensors::new(tensors, running.report()))
}

/// Maps the selection without bringing pages in; what cannot be mapped is read.
pub(super) fn map(loader: Loader) -> Result<Vec<Tensor>> {
    let loader = loader.for_mapping();
    let running = Running::new(&loader, None)?;
    let end = FinishOnDrop(&running);
    let crew = Arc::clone(loader.checkpoint().engine().crew());
    MmapBackend::lazy(crew).execute(&running.job);
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

pub(super) fn load_into(loader: &Loader, buffers: Vec<(&str, &mut [u8])>) -> Result<LoadReport> {
    if loader.digests != Digests::None {
        let what = "loading into memory of the caller makes no tensors that could carry digests";
        return Err(Error::new(ErrorKind::InvalidArgument, what)
            .help("use load or stream, or hash the buffers"));
    }
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
