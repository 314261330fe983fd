//! Plans of ServerlessLLM folders: `tensor_index.json` with six-element entries
//! `[offset, size, [shape], [stride], dtype, partition]` and partition files `tensor.data_N`.
//!
//! Offsets are local to their partition. Each tensor begins at a multiple of 64 bytes, a cache line
//! and what the widest vector loads want; the bytes between tensors are zero.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;

use crate::converters::{
    OutputFile, OutputIndex, OutputPlan, OutputTensor, Placement, checked_sizes, json,
};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::contiguous_strides;

/// The partition size that the paper's implementation recommends: 512 MiB.
pub const RECOMMENDED_PARTITION_BYTES: u64 = 512 << 20;

/// Where tensors begin: at multiples of this many bytes.
const TENSOR_ALIGNMENT: u64 = 64;

/// Options of a ServerlessLLM plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerlessLlmOptions {
    /// Number of partition files; `None` takes one for each [`RECOMMENDED_PARTITION_BYTES`] begun.
    /// Never more are written than there are tensors with bytes: an empty partition file is what
    /// a failed save looks like.
    pub partitions: Option<u32>,
}

/// Decides partitions, offsets and the index of a ServerlessLLM folder.
///
/// Partitions are balanced: the tensors, largest first, each go to the partition that is filled
/// least. Within a partition they keep the order in which they were given.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for names that are given twice, sizes that overflow or zero
/// partitions; [`ErrorKind::Unsupported`] for dtypes that the layout cannot express: those without
/// a name in torch, and packed ones, whose elements torch counts in another way.
pub fn plan(tensors: Vec<OutputTensor>, options: &ServerlessLlmOptions) -> Result<OutputPlan> {
    let sizes = checked_sizes(&tensors)?;
    let dtypes = tensors
        .iter()
        .map(torch_dtype)
        .collect::<Result<Vec<&str>>>()?;
    let partitions = partition_count(&sizes, options.partitions)?;
    let mut placements = assign(&sizes, partitions);
    let mut lens = vec![0_u64; partitions];
    for place in &mut placements {
        if place.len > 0 {
            let end = &mut lens[place.file as usize];
            place.offset = end.next_multiple_of(TENSOR_ALIGNMENT);
            *end = place.offset + place.len;
        }
    }
    let files = lens
        .into_iter()
        .enumerate()
        .map(|(number, len)| OutputFile {
            name: format!("tensor.data_{number}"),
            head: Vec::new(),
            len,
        })
        .collect();
    let bytes = index_json(&tensors, &placements, &dtypes);
    Ok(OutputPlan {
        tensors,
        placements,
        files,
        index: Some(OutputIndex {
            name: "tensor_index.json".into(),
            bytes,
        }),
        superseded: Vec::new(),
    })
}

fn torch_dtype(tensor: &OutputTensor) -> Result<&'static str> {
    let dtype = tensor.dtype;
    match dtype.torch_name() {
        Some(name) if dtype.bits() >= 8 => Ok(name),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!("the ServerlessLLM layout has no spelling for {dtype}"),
        )
        .tensor(&*tensor.name)
        .help("keep this checkpoint as SafeTensors")),
    }
}

fn partition_count(sizes: &[u64], asked: Option<u32>) -> Result<usize> {
    let useful = sizes.iter().filter(|&&size| size > 0).count();
    let count = match asked {
        Some(0) => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a checkpoint has at least one partition",
            ));
        }
        Some(count) => u64::from(count),
        None => sizes
            .iter()
            .sum::<u64>()
            .div_ceil(RECOMMENDED_PARTITION_BYTES),
    };
    // Placements count files in 32 bits, which a machine with that many files would not notice.
    let useful = useful.clamp(1, u32::MAX as usize);
    Ok(usize::try_from(count)
        .unwrap_or(usize::MAX)
        .clamp(1, useful))
}

/// The partition of each tensor; offsets are still 0. Tensors without bytes lie at the start of
/// the first partition, which is within its file however small that is.
fn assign(sizes: &[u64], partitions: usize) -> Vec<Placement> {
    let mut by_size: Vec<usize> = (0..sizes.len()).filter(|&i| sizes[i] > 0).collect();
    by_size.sort_by_key(|&index| (Reverse(sizes[index]), index));
    let mut placements: Vec<_> = sizes
        .iter()
        .map(|&len| Placement {
            file: 0,
            offset: 0,
            len,
        })
        .collect();
    let mut fill: BinaryHeap<_> = (0..partitions as u32)
        .map(|p| Reverse((0_u64, p)))
        .collect();
    for index in by_size {
        let Some(Reverse((filled, partition))) = fill.pop() else {
            break;
        };
        placements[index].file = partition;
        let padded = sizes[index].next_multiple_of(TENSOR_ALIGNMENT);
        fill.push(Reverse((filled + padded, partition)));
    }
    placements
}

fn index_json(tensors: &[OutputTensor], placements: &[Placement], dtypes: &[&str]) -> Vec<u8> {
    let mut text = String::with_capacity(128 * (tensors.len() + 1));
    text.push('{');
    for (number, ((tensor, place), dtype)) in tensors.iter().zip(placements).zip(dtypes).enumerate()
    {
        text.push_str(if number == 0 { "\n" } else { ",\n" });
        let _ = write!(
            text,
            "{}: [{}, {}, {}, {}, \"torch.{dtype}\", {}]",
            json(&*tensor.name),
            place.offset,
            place.len,
            json(&*tensor.shape),
            json(&*contiguous_strides(&tensor.shape)),
            place.file,
        );
    }
    text.push_str("\n}\n");
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn bytes(sizes: &[u64]) -> Vec<OutputTensor> {
        sizes
            .iter()
            .enumerate()
            .map(|(i, &size)| OutputTensor::new(format!("t{i}"), Dtype::U8, [size]))
            .collect()
    }

    fn partitions(count: u32) -> ServerlessLlmOptions {
        ServerlessLlmOptions {
            partitions: Some(count),
        }
    }

    #[test]
    fn entries_have_six_elements_and_torch_strides() {
        let tensors = vec![
            OutputTensor::new("a \"b\"", Dtype::BF16, [2, 3, 4]),
            OutputTensor::new("scalar", Dtype::F32, []),
            OutputTensor::new("none", Dtype::F32, [0, 7]),
        ];
        let plan = plan(tensors, &ServerlessLlmOptions::default()).unwrap();
        let index: serde_json::Value =
            serde_json::from_slice(&plan.index.as_ref().unwrap().bytes).unwrap();
        assert_eq!(
            index["a \"b\""],
            serde_json::json!([0, 48, [2, 3, 4], [12, 4, 1], "torch.bfloat16", 0])
        );
        assert_eq!(
            index["scalar"],
            serde_json::json!([64, 4, [], [], "torch.float32", 0])
        );
        assert_eq!(
            index["none"],
            serde_json::json!([0, 0, [0, 7], [7, 1], "torch.float32", 0])
        );
        assert_eq!(plan.files[0].len, 68);
    }

    #[test]
    fn partitions_are_balanced_aligned_and_in_the_given_order() {
        let plan = plan(bytes(&[100, 900, 100, 400, 500, 1]), &partitions(2)).unwrap();
        assert_eq!(plan.files.len(), 2);
        let lens: Vec<_> = plan.files.iter().map(|file| file.len).collect();
        assert!(lens[0].abs_diff(lens[1]) <= 128, "{lens:?}");
        let mut ends = [0; 2];
        for place in &plan.placements {
            assert_eq!(place.offset % TENSOR_ALIGNMENT, 0);
            assert!(place.offset >= ends[place.file as usize]);
            ends[place.file as usize] = place.offset + place.len;
        }
        assert_eq!(ends.to_vec(), lens);
    }

    #[test]
    fn partitions_are_neither_empty_nor_none() {
        assert_eq!(partition_count(&[5, 0, 5], Some(9)).unwrap(), 2);
        assert_eq!(partition_count(&[], None).unwrap(), 1);
        assert_eq!(partition_count(&[1; 3], None).unwrap(), 1);
        let two = [RECOMMENDED_PARTITION_BYTES, 1];
        assert_eq!(partition_count(&two, None).unwrap(), 2);
        assert!(partition_count(&two, Some(0)).is_err());
    }

    #[test]
    fn dtypes_without_a_spelling_are_unsupported_by_name() {
        for dtype in [Dtype::F4, Dtype::F6E2M3, Dtype::F6E3M2] {
            let tensors = vec![OutputTensor::new("packed", dtype, [8])];
            let error = plan(tensors, &ServerlessLlmOptions::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.tensor_name(), Some("packed"));
            assert!(error.to_string().contains(dtype.name()), "{error}");
        }
    }
}
