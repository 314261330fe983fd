//! Plans of SafeTensors files: one, or several with an index.
//!
//! Two choices of ours, both within the format:
//!
//! * The header is padded with spaces so that the data begin on a 4096-byte page. A direct read of
//!   a tensor then starts where the device wants it to, at a cost of less than a page per file.
//! * Tensors of one file are ordered by element size, largest first, and otherwise as they were
//!   given. The format has no holes, so this is what aligns every tensor to its element size; files
//!   of one dtype, nearly all there are, keep the given order, and with it the locality of a layer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::converters::{
    OutputFile, OutputIndex, OutputPlan, OutputTensor, Placement, checked_sizes, even_runs, json,
};
use crate::error::{Error, ErrorKind, Result};

/// Where data begin by default: at a multiple of this many bytes.
pub(super) const DATA_ALIGNMENT: usize = 4096;

/// The format's limit on the length of a header, padding included.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// How tensors are spread over files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharding {
    /// One file without an index.
    #[default]
    Single,
    /// This many files, each with a run of consecutive tensors, of about the same size where tensors
    /// allow it. None is empty: fewer where there are fewer tensors with bytes.
    Count(u32),
    /// As many files as it takes for each to hold at most this many bytes of tensors. A tensor that
    /// is larger has a file for itself.
    MaxBytes(u64),
}

/// Options of a SafeTensors plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafetensorsOptions {
    /// How tensors are spread over files. A checkpoint that needs only one file has no index.
    pub sharding: Sharding,
    /// The `__metadata__` of every file. The default is `{"format": "pt"}`, which readers of the
    /// Transformers family ask for.
    pub metadata: BTreeMap<String, String>,
    /// What file names begin with; `model` by default.
    pub stem: String,
    /// Where data begin in a file: at a multiple of this many bytes, a power of two and at least 8.
    /// 4096 by default.
    pub alignment: usize,
}

impl Default for SafetensorsOptions {
    fn default() -> Self {
        Self {
            sharding: Sharding::Single,
            metadata: BTreeMap::from([("format".into(), "pt".into())]),
            stem: "model".into(),
            alignment: DATA_ALIGNMENT,
        }
    }
}

/// Decides names, headers and offsets of a SafeTensors checkpoint.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for names that are given twice or reserved, sizes that overflow,
/// zero files, an alignment that is none, or a stem that is no file name, and a header that would pass
/// the format's limit of 100,000,000 bytes.
pub fn plan(tensors: Vec<OutputTensor>, options: &SafetensorsOptions) -> Result<OutputPlan> {
    let stem = &options.stem;
    if stem.is_empty() || stem.starts_with('.') || stem.contains(['/', '\\', '\0']) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{stem:?} cannot begin a file name"),
        ));
    }
    let alignment = options.alignment;
    if !alignment.is_power_of_two() || !(8..=MAX_HEADER_BYTES).contains(&alignment) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("data cannot be aligned to {alignment} bytes"),
        )
        .help("choose a power of two, and at least 8"));
    }
    if tensors.iter().any(|tensor| &*tensor.name == "__metadata__") {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "SafeTensors headers reserve this name",
        )
        .tensor("__metadata__")
        .help("rename the tensor, or keep the checkpoint in the other layout"));
    }
    let sizes = checked_sizes(&tensors)?;
    let shards = shards(&sizes, options.sharding)?;
    let index_name = format!("{stem}.safetensors.index.json");
    let sharded = shards.len() > 1;

    let mut placements = vec![
        Placement {
            file: 0,
            offset: 0,
            len: 0
        };
        tensors.len()
    ];
    let mut files = Vec::with_capacity(shards.len());
    for (number, mut members) in shards.iter().cloned().enumerate() {
        let name = if sharded {
            format!(
                "{stem}-{:05}-of-{:05}.safetensors",
                number + 1,
                shards.len()
            )
        } else {
            format!("{stem}.safetensors")
        };
        members.sort_by_key(|&index| std::cmp::Reverse(tensors[index].dtype.bits()));
        let mut end = 0;
        for &index in &members {
            placements[index] = Placement {
                file: number as u32,
                offset: end,
                len: sizes[index],
            };
            end += sizes[index];
        }
        let limit = MAX_HEADER_BYTES;
        let head = header(&tensors, &placements, &members, options, limit)
            .map_err(|error| error.at(&name))?;
        for &index in &members {
            placements[index].offset += head.len() as u64;
        }
        let len = head.len() as u64 + end;
        files.push(OutputFile { name, head, len });
    }

    let (index, superseded) = if sharded {
        let weight_map = tensors
            .iter()
            .zip(&placements)
            .map(|(tensor, place)| (&*tensor.name, files[place.file as usize].name.as_str()))
            .collect();
        let bytes = index_json(sizes.iter().sum(), weight_map);
        (
            Some(OutputIndex {
                name: index_name,
                bytes,
            }),
            Vec::new(),
        )
    } else {
        (None, vec![index_name])
    };
    Ok(OutputPlan {
        tensors,
        placements,
        files,
        index,
        superseded,
    })
}

/// Runs of tensor indices, one for each file; never none.
fn shards(sizes: &[u64], sharding: Sharding) -> Result<Vec<Vec<usize>>> {
    let files = match sharding {
        Sharding::Single => vec![0; sizes.len()],
        Sharding::Count(0) | Sharding::MaxBytes(0) => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a checkpoint has at least one file of at least one byte",
            ));
        }
        Sharding::Count(count) => even_runs(sizes, count as usize),
        Sharding::MaxBytes(limit) => bounded_runs(sizes, limit),
    };
    let mut shards = vec![Vec::new(); files.last().map_or(1, |last| last + 1)];
    for (index, file) in files.into_iter().enumerate() {
        shards[file].push(index);
    }
    Ok(shards)
}

/// The file of each tensor when files have at most `limit` bytes, or one tensor.
fn bounded_runs(sizes: &[u64], limit: u64) -> Vec<usize> {
    let (mut file, mut filled) = (0, 0_u64);
    let place = |&size: &u64| {
        if filled > 0 && size > 0 && filled + size > limit {
            (file, filled) = (file + 1, 0);
        }
        filled += size;
        file
    };
    sizes.iter().map(place).collect()
}

/// The length prefix and the JSON of one file, padded so that data begin where they are to.
fn header(
    tensors: &[OutputTensor],
    placements: &[Placement],
    members: &[usize],
    options: &SafetensorsOptions,
    limit: usize,
) -> Result<Vec<u8>> {
    let metadata = &options.metadata;
    let mut text = String::with_capacity(128 * (members.len() + 1));
    text.push('{');
    if !metadata.is_empty() {
        let _ = write!(text, "\"__metadata__\":{}", json(metadata));
    }
    for &index in members {
        if text.len() > 1 {
            text.push(',');
        }
        let (tensor, place) = (&tensors[index], &placements[index]);
        let _ = write!(
            text,
            "{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
            json(&*tensor.name),
            tensor.dtype,
            json(&*tensor.shape),
            place.offset,
            place.offset + place.len,
        );
    }
    text.push('}');
    let end = (8 + text.len()).next_multiple_of(options.alignment);
    if end - 8 > limit {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the header of {} tensors takes {} bytes, and the format allows {limit}",
                members.len(),
                end - 8
            ),
        )
        .help("spread the tensors over more files, or leave out some of the metadata"));
    }
    let mut head = Vec::with_capacity(end);
    head.extend_from_slice(&((end - 8) as u64).to_le_bytes());
    head.extend_from_slice(text.as_bytes());
    head.resize(end, b' ');
    Ok(head)
}

fn index_json(total_size: u64, weight_map: BTreeMap<&str, &str>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Metadata {
        total_size: u64,
    }
    #[derive(Serialize)]
    struct Index<'a> {
        metadata: Metadata,
        weight_map: BTreeMap<&'a str, &'a str>,
    }
    let index = Index {
        metadata: Metadata { total_size },
        weight_map,
    };
    let mut bytes =
        serde_json::to_vec_pretty(&index).expect("strings and numbers are always valid JSON");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn sharded(sharding: Sharding) -> SafetensorsOptions {
        SafetensorsOptions {
            sharding,
            ..Default::default()
        }
    }

    #[test]
    fn the_reference_reader_accepts_a_header_with_every_dtype_and_finds_it_aligned() {
        let tensors: Vec<_> = Dtype::ALL
            .iter()
            .map(|dtype| OutputTensor::new(format!("t.\"{dtype}\"\n"), *dtype, [3, 8]))
            .collect();
        let plan = plan(tensors, &SafetensorsOptions::default()).unwrap();
        assert_eq!(plan.files.len(), 1);
        let file = &plan.files[0];
        assert_eq!(file.head.len() % DATA_ALIGNMENT, 0);
        let mut bytes = file.head.clone();
        bytes.resize(file.len as usize, 0);
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.len(), Dtype::ALL.len());
        for (tensor, place) in plan.tensors.iter().zip(&plan.placements) {
            let view = read.tensor(&tensor.name).unwrap();
            assert_eq!(view.dtype().to_string(), tensor.dtype.name());
            assert_eq!(view.data().len() as u64, place.len);
            let at = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            assert_eq!(at as u64, place.offset);
            let size = u64::from(tensor.dtype.bits() / 8).max(1);
            assert_eq!(place.offset % size, 0, "{}", tensor.dtype);
        }
    }

    #[test]
    fn the_given_order_stays_within_one_dtype() {
        let tensors = ["z", "a", "m"].map(|name| OutputTensor::new(name, Dtype::BF16, [4]));
        let plan = plan(tensors.into(), &SafetensorsOptions::default()).unwrap();
        assert_eq!(plan.disk_order(), [0, 1, 2]);
        assert_eq!(plan.superseded, ["model.safetensors.index.json"]);
    }

    #[test]
    fn shards_are_balanced_runs_and_never_empty() {
        let sizes = [10, 10, 10, 10, 10, 10, 10, 10];
        let four = shards(&sizes, Sharding::Count(4)).unwrap();
        assert_eq!(four, [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(shards(&[1], Sharding::Count(9)).unwrap(), [[0]]);
        assert_eq!(shards(&[0, 0], Sharding::Count(2)).unwrap(), [[0, 1]]);
        assert_eq!(
            shards(&[], Sharding::Count(3)).unwrap(),
            [Vec::<usize>::new()]
        );
        let uneven = shards(&[1, 1, 98, 1, 1], Sharding::Count(3)).unwrap();
        assert_eq!(uneven.concat(), [0, 1, 2, 3, 4]);
        assert_eq!(uneven.len(), 3);
        // One giant leaves as many files, each with something in it.
        for at in 0..5 {
            let mut sizes = [1, 1, 1, 1, 1, 0];
            sizes[at] = 1000;
            for count in 1..7 {
                let runs = shards(&sizes, Sharding::Count(count)).unwrap();
                assert_eq!(runs.len(), count.min(5) as usize, "{at}, {count}");
                let filled = |run: &Vec<usize>| run.iter().any(|&index| sizes[index] > 0);
                assert!(runs.iter().all(filled));
                assert_eq!(runs.concat(), [0, 1, 2, 3, 4, 5]);
            }
        }
        let by_size = shards(&[3, 3, 3, 50, 0, 3], Sharding::MaxBytes(7)).unwrap();
        assert_eq!(by_size, [vec![0, 1], vec![2], vec![3, 4], vec![5]]);
        assert!(shards(&[1], Sharding::Count(0)).is_err());
    }

    #[test]
    fn the_index_names_every_tensor_and_the_total() {
        let tensors = (0..4).map(|i| OutputTensor::new(format!("w{i}"), Dtype::F32, [8]));
        let plan = plan(tensors.collect(), &sharded(Sharding::Count(2))).unwrap();
        let index = plan.index.unwrap();
        assert_eq!(index.name, "model.safetensors.index.json");
        let value: serde_json::Value = serde_json::from_slice(&index.bytes).unwrap();
        assert_eq!(value["metadata"]["total_size"], 128);
        assert_eq!(
            value["weight_map"]["w3"],
            "model-00002-of-00002.safetensors"
        );
        assert!(plan.superseded.is_empty());
    }

    #[test]
    fn reserved_names_and_stems_are_refused() {
        let reserved = vec![OutputTensor::new("__metadata__", Dtype::U8, [1])];
        let error = plan(reserved, &SafetensorsOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        for stem in ["", "../up", "a\\b", ".hidden"] {
            let options = SafetensorsOptions {
                stem: stem.into(),
                ..Default::default()
            };
            let error = plan(Vec::new(), &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{stem}");
        }
    }

    #[test]
    fn a_header_beyond_the_limit_is_unsupported() {
        let plan = plan(
            (0..100)
                .map(|i| OutputTensor::new(format!("t{i}"), Dtype::U8, [1]))
                .collect(),
            &SafetensorsOptions::default(),
        )
        .unwrap();
        let members: Vec<usize> = (0..100).collect();
        let header = |limit| {
            let options = SafetensorsOptions {
                metadata: BTreeMap::new(),
                ..Default::default()
            };
            header(&plan.tensors, &plan.placements, &members, &options, limit)
        };
        // Padding counts: the header ends where the data begin.
        assert_eq!(header(8184).unwrap().len(), 8192);
        let error = header(8183).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("8184 bytes"), "{error}");
    }
}
