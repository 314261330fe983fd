//! Plans of ServerlessLLM folders: `tensor_index.json` and partition files `tensor.data_N`, in both
//! dialects that readers know.
//!
//! * Six elements, `[offset, size, [shape], [stride], dtype, partition]`: offsets are local to their
//!   partition, and partitions are balanced. Each tensor begins at a multiple of 64 bytes, a cache
//!   line and what the widest vector loads want; the bytes between tensors are zero.
//! * Five elements, `[offset, size, [shape], [stride], dtype]`: offsets count over all partitions,
//!   one after the other. Tensors keep their order, so that partitions are runs of them, and each
//!   record is padded with zeros to 8 bytes. Nothing else is padded, so that an offset means the
//!   same to a reader that adds up records and to one that adds up files.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;

use crate::converters::{
    OutputFile, OutputIndex, OutputPlan, OutputTensor, Placement, checked_sizes, even_runs, json,
};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::serverlessllm::{Dialect, INDEX_FILE, partition_file};
use crate::tensor::contiguous_strides;

/// The partition size that the paper's implementation recommends: 512 MiB.
pub const RECOMMENDED_PARTITION_BYTES: u64 = 512 << 20;

/// Where tensors of the six-element dialect begin: at multiples of this many bytes.
const TENSOR_ALIGNMENT: u64 = 64;

/// What records of the five-element dialect are padded to, as the store that reads it expects.
const RECORD_ALIGNMENT: u64 = 8;

/// Options of a ServerlessLLM plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerlessLlmOptions {
    /// Number of partition files; `None` takes one for each [`RECOMMENDED_PARTITION_BYTES`] begun.
    /// Never more are written than there are tensors with bytes: an empty partition file is what
    /// a failed save looks like.
    pub partitions: Option<u32>,
    /// Six-element entries ([`Dialect::Local`], the default) or five.
    pub dialect: Dialect,
    /// No bytes between the tensors of the six-element dialect. Smaller by at most 63 bytes for each
    /// tensor, and slower to read into aligned memory.
    pub packed: bool,
}

impl Default for ServerlessLlmOptions {
    fn default() -> Self {
        Self {
            partitions: None,
            dialect: Dialect::Local,
            packed: false,
        }
    }
}

/// Decides partitions, offsets and the index of a ServerlessLLM folder.
///
/// Partitions are balanced. Six elements: the tensors, largest first, each go to the partition that
/// is filled least, and within a partition they keep the order in which they were given. Five
/// elements: partitions are runs of tensors, each with the same share of the bytes but for the
/// tensor that lies across the border.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for names that are given twice, sizes that overflow or zero
/// partitions; [`ErrorKind::Unsupported`] for dtypes that the layout cannot express: those without
/// a name in torch, and packed ones, whose elements torch counts in another way.
pub fn plan(tensors: Vec<OutputTensor>, options: &ServerlessLlmOptions) -> Result<OutputPlan> {
    let own: Vec<usize> = (0..tensors.len()).collect();
    plan_tied(tensors, &own, options)
}

/// As [`plan`], with tied weights: `owner[i]` is the tensor whose bytes tensor `i` shares, itself
/// for most. An owner owns itself and has as many bytes.
pub(super) fn plan_tied(
    tensors: Vec<OutputTensor>,
    owner: &[usize],
    options: &ServerlessLlmOptions,
) -> Result<OutputPlan> {
    let sizes = checked_sizes(&tensors)?;
    let dtypes = tensors
        .iter()
        .map(torch_dtype)
        .collect::<Result<Vec<&str>>>()?;
    // Only owners take space.
    let stored: Vec<u64> = (0..sizes.len())
        .map(|at| if owner[at] == at { sizes[at] } else { 0 })
        .collect();
    let partitions = partition_count(&stored, options.partitions)?;
    let (mut placements, lens) = match options.dialect {
        Dialect::Local => balanced(&stored, partitions, options.packed),
        Dialect::Global => in_runs(&stored, partitions),
    };
    for at in 0..owner.len() {
        placements[at] = placements[owner[at]];
    }
    // Tensors without bytes that come before others would otherwise claim their lengths.
    for (place, &size) in placements.iter_mut().zip(&sizes) {
        place.len = size;
    }
    let global = global_starts(&lens);
    let entry_end = |place: &Placement| match options.dialect {
        Dialect::Local => (place.offset, Some(place.file)),
        Dialect::Global => (global[place.file as usize] + place.offset, None),
    };
    let bytes = index_json(&tensors, &placements, &dtypes, entry_end);
    let files = lens
        .into_iter()
        .zip(0..)
        .map(|(len, number)| OutputFile {
            name: partition_file(number),
            head: Vec::new(),
            len,
        })
        .collect();
    Ok(OutputPlan {
        tensors,
        placements,
        files,
        index: Some(OutputIndex {
            name: INDEX_FILE.into(),
            bytes,
        }),
        superseded: Vec::new(),
    })
}

/// Where each partition begins when they lie one after the other.
fn global_starts(lens: &[u64]) -> Vec<u64> {
    let mut end = 0;
    lens.iter()
        .map(|len| {
            let start = end;
            end += len;
            start
        })
        .collect()
}

/// Places of the six-element dialect, and the lengths of the partitions.
fn balanced(sizes: &[u64], partitions: usize, packed: bool) -> (Vec<Placement>, Vec<u64>) {
    let alignment = if packed { 1 } else { TENSOR_ALIGNMENT };
    let mut placements = assign(sizes, partitions, alignment);
    let mut lens = vec![0_u64; partitions];
    for place in &mut placements {
        if place.len > 0 {
            let end = &mut lens[place.file as usize];
            place.offset = end.next_multiple_of(alignment);
            *end = place.offset + place.len;
        }
    }
    (placements, lens)
}

/// Places of the five-element dialect, in runs, and the lengths of the partitions.
fn in_runs(sizes: &[u64], partitions: usize) -> (Vec<Placement>, Vec<u64>) {
    let padded = |size: u64| size.next_multiple_of(RECORD_ALIGNMENT);
    let records: Vec<u64> = sizes.iter().map(|&size| padded(size)).collect();
    let mut lens = vec![0_u64; partitions];
    let files = even_runs(&records, partitions);
    let places = files.into_iter().zip(sizes).map(|(file, &len)| {
        let offset = lens[file];
        lens[file] += padded(len);
        Placement {
            file: file as u32,
            offset,
            len,
        }
    });
    (places.collect(), lens)
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
fn assign(sizes: &[u64], partitions: usize, alignment: u64) -> Vec<Placement> {
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
        let padded = sizes[index].next_multiple_of(alignment);
        fill.push(Reverse((filled + padded, partition)));
    }
    placements
}

/// `entry_end` gives the offset of a place and, where entries have one, its partition.
fn index_json(
    tensors: &[OutputTensor],
    placements: &[Placement],
    dtypes: &[&str],
    entry_end: impl Fn(&Placement) -> (u64, Option<u32>),
) -> Vec<u8> {
    let mut text = String::with_capacity(128 * (tensors.len() + 1));
    text.push('{');
    for (number, ((tensor, place), dtype)) in tensors.iter().zip(placements).zip(dtypes).enumerate()
    {
        text.push_str(if number == 0 { "\n" } else { ",\n" });
        let (offset, partition) = entry_end(place);
        let _ = write!(
            text,
            "{}: [{offset}, {}, {}, {}, \"torch.{dtype}\"",
            json(&*tensor.name),
            place.len,
            json(&*tensor.shape),
            json(&*contiguous_strides(&tensor.shape)),
        );
        if let Some(partition) = partition {
            let _ = write!(text, ", {partition}");
        }
        text.push(']');
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
            ..ServerlessLlmOptions::default()
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
    fn five_elements_count_over_all_partitions_and_pad_records_to_8_bytes() {
        let options = ServerlessLlmOptions {
            dialect: Dialect::Global,
            ..partitions(2)
        };
        let plan = plan(bytes(&[5, 0, 16, 3, 9]), &options).unwrap();
        let lens: Vec<_> = plan.files.iter().map(|file| file.len).collect();
        assert_eq!(lens, [24, 24]);
        let index: serde_json::Value =
            serde_json::from_slice(&plan.index.as_ref().unwrap().bytes).unwrap();
        let entry = |name: &str| index[name].clone();
        assert_eq!(
            entry("t0"),
            serde_json::json!([0, 5, [5], [1], "torch.uint8"])
        );
        assert_eq!(
            entry("t1"),
            serde_json::json!([8, 0, [0], [1], "torch.uint8"])
        );
        assert_eq!(
            entry("t2"),
            serde_json::json!([8, 16, [16], [1], "torch.uint8"])
        );
        assert_eq!(
            entry("t3"),
            serde_json::json!([24, 3, [3], [1], "torch.uint8"])
        );
        assert_eq!(
            entry("t4"),
            serde_json::json!([32, 9, [9], [1], "torch.uint8"])
        );
    }

    #[test]
    fn tied_tensors_share_one_place_and_packed_ones_touch() {
        for dialect in [Dialect::Local, Dialect::Global] {
            let options = ServerlessLlmOptions {
                dialect,
                packed: true,
                ..partitions(1)
            };
            let plan = plan_tied(bytes(&[5, 7, 5]), &[0, 1, 0], &options).unwrap();
            assert_eq!(plan.placements[0], plan.placements[2]);
            let expected = match dialect {
                Dialect::Local => 12,
                Dialect::Global => 16,
            };
            assert_eq!(plan.files[0].len, expected);
        }
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
