//! What a conversion writes: tensors, ties, metadata, and where every byte goes. Pure but for one
//! small file, the metadata that the source keeps beside its partitions.

use std::collections::HashMap;

use super::ConvertOptions;
use super::metadata::{self, Metadata, MetadataConflict};
use crate::checkpoint::Checkpoint;
use crate::converters::serverlessllm_writer::plan_tied;
use crate::converters::{
    OutputPlan, OutputTensor, RECOMMENDED_PARTITION_BYTES, SafetensorsOptions,
    ServerlessLlmOptions, Sharding, plan_safetensors,
};
use crate::error::{Error, Result};
use crate::formats::Layout;
use crate::tensor::{Extent, TensorMeta};

/// Largest SafeTensors file where nothing is asked for, in bytes, as the Hub's tools have it.
pub const DEFAULT_SHARD_BYTES: u64 = 5_000_000_000;

/// What is to be written.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) layout: Layout,
    pub(super) plan: OutputPlan,
    /// The tensor whose stored bytes are written for each tensor: itself, unless it is tied.
    pub(super) owner: Vec<usize>,
    /// Names that share bytes in the source and cannot in the target.
    pub(super) untied: Vec<Box<str>>,
    /// Bytes that are written more often than they are stored.
    pub(super) doubled_bytes: u64,
    /// A file of metadata that have no place in the layout.
    pub(super) metadata_file: Option<Vec<u8>>,
    /// Keys of metadata with more than one value.
    pub(super) conflicts: Vec<MetadataConflict>,
}

impl Target {
    pub(super) fn new(checkpoint: &Checkpoint, options: &ConvertOptions) -> Result<Self> {
        let layout = options.to.unwrap_or(match checkpoint.layout() {
            Layout::SafeTensors => Layout::ServerlessLlm,
            Layout::ServerlessLlm => Layout::SafeTensors,
        });
        options.check(layout)?;
        let tensors: Vec<OutputTensor> = checkpoint
            .tensors()
            .iter()
            .map(|tensor| OutputTensor {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
            })
            .collect();
        let tied = owners(checkpoint.tensors());
        let metadata = Metadata::of(checkpoint)?;
        let named = |error: Error| in_input(checkpoint, error);
        let mut target = match layout {
            Layout::ServerlessLlm => {
                let stored = |(at, tensor): (usize, &TensorMeta)| match tied[at] == at {
                    true => tensor.nbytes(),
                    false => 0,
                };
                let tensors_and_places = checkpoint.tensors().iter().enumerate();
                let bytes: u64 = tensors_and_places.map(stored).sum();
                let standard = bytes.div_ceil(RECOMMENDED_PARTITION_BYTES).max(1);
                let partitions = u64::from(options.partitions.unwrap_or(0));
                let partitions = if partitions == 0 {
                    standard
                } else {
                    partitions
                };
                let wanted = ServerlessLlmOptions {
                    partitions: Some(u32::try_from(partitions).unwrap_or(u32::MAX)),
                    dialect: options.dialect,
                    packed: options.packed,
                };
                Self {
                    layout,
                    plan: plan_tied(tensors, &tied, &wanted).map_err(named)?,
                    owner: tied,
                    untied: Vec::new(),
                    doubled_bytes: 0,
                    metadata_file: None,
                    conflicts: Vec::new(),
                }
            }
            Layout::SafeTensors => {
                let sharding = match (options.partitions, options.max_shard_bytes) {
                    (Some(count), _) => Sharding::Count(count),
                    (None, limit) => Sharding::MaxBytes(limit.unwrap_or(DEFAULT_SHARD_BYTES)),
                };
                let wanted = SafetensorsOptions {
                    sharding,
                    metadata: metadata.headers.clone(),
                    ..SafetensorsOptions::default()
                };
                let mut shared: Vec<bool> = vec![false; tied.len()];
                let mut doubled_bytes = 0;
                for (at, &owner) in tied.iter().enumerate() {
                    if owner != at {
                        (shared[at], shared[owner]) = (true, true);
                        doubled_bytes += checkpoint.tensors()[at].nbytes();
                    }
                }
                let names = checkpoint.tensors().iter().zip(&shared);
                Self {
                    layout,
                    untied: names
                        .filter(|(_, shared)| **shared)
                        .map(|(tensor, _)| tensor.name.clone())
                        .collect(),
                    plan: plan_safetensors(tensors, &wanted).map_err(named)?,
                    owner: (0..tied.len()).collect(),
                    doubled_bytes,
                    metadata_file: None,
                    conflicts: Vec::new(),
                }
            }
        };
        target.metadata_file = metadata.place(layout, &mut target.plan);
        target.conflicts = metadata::conflicts(checkpoint);
        Ok(target)
    }
}

/// An error about a tensor that cannot be written, as one about the file that has it.
fn in_input(checkpoint: &Checkpoint, error: Error) -> Error {
    let tensor = error.tensor_name().and_then(|name| checkpoint.tensor(name));
    let extent = tensor.and_then(|tensor| tensor.extents.first());
    match extent.and_then(|extent| checkpoint.sources().get(extent.source as usize)) {
        Some(source) => error.at(source.path()),
        // Without bytes, or about the whole.
        None if error.path().is_none() => error.at(checkpoint.root()),
        None => error,
    }
}

/// For each tensor the first one with the same stored bytes, read in the same way.
fn owners(tensors: &[TensorMeta]) -> Vec<usize> {
    let mut seen: HashMap<&[Extent], usize> = HashMap::new();
    tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| match tensor.extents.is_empty() {
            true => at,
            // The shape says how strides are walked.
            false if tensor.strides.is_some() => {
                let same = |other: &TensorMeta| {
                    (&other.extents, &other.strides, &other.shape, other.dtype)
                        == (
                            &tensor.extents,
                            &tensor.strides,
                            &tensor.shape,
                            tensor.dtype,
                        )
                };
                let before = tensors[..at].iter().rev();
                // Sorted by place: equals are near.
                let near = before.take_while(|other| {
                    other.extents.first().map(|e| (e.source, e.offset))
                        == tensor.extents.first().map(|e| (e.source, e.offset))
                });
                let equal = near.enumerate().filter(|(_, other)| same(other)).last();
                equal.map_or(at, |(back, _)| at - 1 - back)
            }
            false => *seen.entry(&tensor.extents[..]).or_insert(at),
        })
        .collect()
}
