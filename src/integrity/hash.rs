//! The digests of a checkpoint, within a budget.

use std::collections::HashMap;

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::integrity::digest::{Entries, Entry};
use crate::integrity::lanes;
use crate::integrity::options::HashOptions;
use crate::load::Digests;
use crate::plan::Selection;
use crate::settings::Order;
use crate::tensor::Extent;

/// A tensor that is larger than one of so many parts of the budget is hashed in pieces: of smaller
/// ones several are in memory, for as many cores.
const WHOLE_PART: u64 = 4;

/// The SHA-256 of every tensor, on every core, while others are being read. `progress` is told bytes
/// as they are hashed, also within a tensor.
///
/// Tensors of more than a quarter of the budget are read and hashed in pieces, so that none is ever
/// whole in memory; the digest is that of the whole. Those with strides (views in a ServerlessLLM
/// layout) are the exception: their bytes in order are not known before all are there. Pieces have
/// 64 KiB at least, whatever the budget.
///
/// # Errors
/// What [`Loader::stream`](crate::Loader::stream) reports; [`Cancelled`](crate::ErrorKind::Cancelled).
pub fn hash(
    checkpoint: &Checkpoint,
    options: &HashOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Entries> {
    options.settings.check()?;
    let budget = options.budget();
    let tensors = checkpoint.tensors();
    let is_large = |at: usize| {
        tensors[at].strides.is_none() && tensors[at].nbytes() > (budget / WHOLE_PART).max(1)
    };
    let (large, whole): (Vec<_>, Vec<_>) = (0..tensors.len()).partition(|&at| is_large(at));
    let mut entries = Entries::new();
    if !whole.is_empty() || large.is_empty() {
        let selection = match large.is_empty() {
            true => Selection::all(),
            false => Selection::names(whole.iter().map(|&at| &*tensors[at].name)),
        };
        let loader = options
            .loader(checkpoint, budget, Order::Arrival)
            .select(selection)
            .digests(Digests::Sha256);
        for tensor in loader.stream()? {
            let tensor = tensor?;
            progress(tensor.nbytes() as u64);
            entries.insert(tensor.name().into(), Entry::of(&tensor));
        }
    }
    // Tied tensors have one digest.
    let mut first_of: HashMap<&[Extent], usize> = HashMap::new();
    let firsts: Vec<usize> = large
        .iter()
        .copied()
        .filter(|&at| *first_of.entry(&tensors[at].extents).or_insert(at) == at)
        .collect();
    let digests = lanes::digests(checkpoint, &firsts, options, progress)?;
    for at in large {
        let (tensor, first) = (&tensors[at], first_of[&*tensors[at].extents]);
        let entry = Entry {
            dtype: tensor.dtype,
            shape: tensor.shape.as_slice().into(),
            nbytes: tensor.nbytes(),
            sha256: digests[&first],
        };
        if at != first {
            progress(entry.nbytes);
        }
        entries.insert(tensor.name.clone(), entry);
    }
    Ok(entries)
}
