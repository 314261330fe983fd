//! The ServerlessLLM layout: `tensor_index.json` beside partition files `tensor.data_N`.
//!
//! Two dialects exist and are told apart by the number of elements of an entry:
//! `[offset, size, shape, stride, dtype, partition]` with offsets local to a partition, and
//! `[offset, size, shape, stride, dtype]` with offsets over all partition files one after the
//! other, as they lie on disk (padding of their tails included).

mod parse;
mod view;

use std::fmt;
use std::path::PathBuf;

use serde_json::de::SliceRead;
use smallvec::{SmallVec, smallvec};

pub use view::MAX_EXPANDED_BYTES;

use super::Names;
use super::json::collect;
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Extent, Shape, TensorMeta};

/// The name of the index file.
pub const INDEX_FILE: &str = "tensor_index.json";

/// Most extents that tensors may be cut into in all, so that a small index over many partitions
/// cannot ask for unbounded memory.
const MAX_EXTENTS: usize = 1 << 22;

/// The file name of partition `id`.
pub fn partition_file(id: u64) -> String {
    format!("tensor.data_{id}")
}

/// Whether a file name is that of a partition.
pub(crate) fn is_partition_file(name: &str) -> bool {
    let Some(id) = name.strip_prefix("tensor.data_") else {
        return false;
    };
    // No partition has a number of more digits than it needs.
    let is_plain = id == "0" || !id.starts_with('0');
    is_plain && !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())
}

/// How entries place their tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Six elements: an offset in the named partition.
    Local,
    /// Five elements: an offset over the partitions one after the other.
    Global,
}

/// A partition file that is there.
#[derive(Debug, Clone)]
pub struct Partition {
    /// The N of `tensor.data_N`.
    pub id: u64,
    /// The name for messages.
    pub path: PathBuf,
    /// Size in bytes.
    pub len: u64,
}

/// A parsed index whose entries were checked by themselves, but not yet against the partitions.
pub struct PartitionIndex {
    dialect: Dialect,
    entries: Vec<Entry>,
    names: Names,
}

struct Entry {
    name: Box<str>,
    offset: u64,
    size: u64,
    shape: Shape,
    strides: Option<Box<[u64]>>,
    dtype: Dtype,
    partition: u64,
}

impl PartitionIndex {
    /// Parses the JSON of an index.
    ///
    /// # Errors
    /// [`ErrorKind::BadIndex`], and with the tensor's name [`ErrorKind::BadEntry`],
    /// [`ErrorKind::UnknownDtype`], [`ErrorKind::ShapeMismatch`], [`ErrorKind::Overflow`],
    /// [`ErrorKind::DuplicateName`].
    pub fn parse(json: &[u8]) -> Result<Self> {
        let visitor = collect(
            "the index",
            ErrorKind::BadIndex,
            SliceRead::new(json),
            parse::IndexVisitor::default(),
        )?;
        let mut entries = visitor.entries;
        entries.sort_unstable_by(|a, b| {
            (a.partition, a.offset, &a.name).cmp(&(b.partition, b.offset, &b.name))
        });
        let names = Names::build(entries.len(), |at| &entries[at].name).map_err(|(_, at)| {
            Error::new(
                ErrorKind::DuplicateName,
                "duplicate tensor name: the index lists it more than once",
            )
            .tensor(&*entries[at].name)
        })?;
        Ok(Self {
            // An index without entries needs no partition at all.
            dialect: visitor.dialect.unwrap_or(Dialect::Local),
            entries,
            names,
        })
    }

    /// How offsets are to be read.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The partitions that entries of the local dialect name: ascending, each once. The list is
    /// never longer than the index, whatever numbers it names.
    pub fn partition_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = match self.dialect {
            Dialect::Local => self.entries.iter().map(|entry| entry.partition).collect(),
            Dialect::Global => Vec::new(),
        };
        ids.dedup();
        ids
    }

    /// Places every tensor in `partitions`, which are sorted by id; their positions become the
    /// extents' sources. The result is ordered by partition, offset and name.
    pub(crate) fn place(self, partitions: &[Partition]) -> Result<(Vec<TensorMeta>, Names)> {
        // ends[i] is the global offset one past partition i; u64 because files are real.
        let mut ends = Vec::with_capacity(partitions.len());
        let mut total: u64 = 0;
        for partition in partitions {
            total = total.checked_add(partition.len).ok_or_else(|| {
                Error::new(
                    ErrorKind::Overflow,
                    "the sizes of the partitions overflow 64 bits",
                )
            })?;
            ends.push(total);
        }
        let mut budget = MAX_EXTENTS;
        let mut tensors = Vec::with_capacity(self.entries.len());
        for entry in self.entries {
            let Some(end) = entry.offset.checked_add(entry.size) else {
                let (offset, size) = (entry.offset, entry.size);
                return Err(Error::new(
                    ErrorKind::Overflow,
                    format!("offset {offset} plus size {size} overflows 64 bits"),
                )
                .tensor(entry.name));
            };
            let extents = match self.dialect {
                Dialect::Local => local(&entry, end, partitions)?,
                Dialect::Global => global(&entry, end, partitions, &ends)?,
            };
            budget = budget.checked_sub(extents.len()).ok_or_else(|| {
                Error::new(
                    ErrorKind::BadEntry,
                    format!("the tensors are cut into more than {MAX_EXTENTS} pieces"),
                )
            })?;
            tensors.push(TensorMeta {
                name: entry.name,
                dtype: entry.dtype,
                shape: entry.shape,
                strides: entry.strides,
                extents,
            });
        }
        Ok((tensors, self.names))
    }
}

impl fmt::Debug for PartitionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionIndex")
            .field("dialect", &self.dialect)
            .field("tensors", &self.entries.len())
            .finish()
    }
}

/// The error for a partition that is used but not there.
pub(crate) fn partition_missing(id: u64, tensor: Option<&str>) -> Error {
    let error = Error::new(
        ErrorKind::PartitionMissing,
        format!(
            "the index uses partition {id}, but {} is not there",
            partition_file(id)
        ),
    )
    .help("copy every partition file, or convert the model again");
    match tensor {
        Some(tensor) => error.tensor(tensor),
        None => error,
    }
}

fn local(entry: &Entry, end: u64, partitions: &[Partition]) -> Result<SmallVec<[Extent; 1]>> {
    let id = entry.partition;
    let Ok(source) = partitions.binary_search_by_key(&id, |partition| partition.id) else {
        return Err(partition_missing(id, Some(&entry.name)));
    };
    let partition = &partitions[source];
    if end > partition.len {
        return Err(Error::new(
            ErrorKind::PartitionTooSmall,
            format!(
                "it needs bytes {}..{end}, but the partition has {} bytes",
                entry.offset, partition.len
            ),
        )
        .at(&partition.path)
        .tensor(&*entry.name)
        .help("the save or copy did not finish; copy or convert the model again"));
    }
    if entry.size == 0 {
        return Ok(smallvec![]);
    }
    Ok(smallvec![Extent {
        source: source as u32,
        offset: entry.offset,
        len: entry.size,
    }])
}

fn global(
    entry: &Entry,
    end: u64,
    partitions: &[Partition],
    ends: &[u64],
) -> Result<SmallVec<[Extent; 1]>> {
    let total = ends.last().copied().unwrap_or(0);
    if end > total {
        let error = Error::new(
            ErrorKind::PartitionTooSmall,
            format!(
                "it needs bytes {}..{end} of all partitions together, but the {} of them have \
                 {total} bytes",
                entry.offset,
                partitions.len()
            ),
        )
        .tensor(&*entry.name)
        .help(format!(
            "the last one was cut short, or {} is missing; copy or convert the model again",
            partition_file(partitions.len() as u64)
        ));
        return Err(match partitions.last() {
            Some(last) => error.at(&last.path),
            None => error,
        });
    }
    let mut extents = SmallVec::new();
    let mut offset = entry.offset;
    let mut source = ends.partition_point(|&end| end <= offset);
    while offset < end {
        let first = ends[source] - partitions[source].len;
        let until = end.min(ends[source]);
        if until > offset {
            extents.push(Extent {
                source: source as u32,
                offset: offset - first,
                len: until - offset,
            });
        }
        offset = until;
        source += 1;
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions(lens: &[u64]) -> Vec<Partition> {
        (0..)
            .zip(lens)
            .map(|(id, &len)| Partition {
                id,
                path: partition_file(id).into(),
                len,
            })
            .collect()
    }

    fn placed(json: &str, lens: &[u64]) -> Result<Vec<TensorMeta>> {
        Ok(PartitionIndex::parse(json.as_bytes())?
            .place(&partitions(lens))?
            .0)
    }

    #[test]
    fn global_offsets_cross_partitions_as_they_lie_on_disk() {
        // The first partition is padded: 24 bytes of tensors in 32; the third one is empty.
        let json = r#"{"a": [0, 24, [24], [1], "torch.uint8"],
            "b": [28, 24, [3, 2], [2, 1], "torch.float32"],
            "c": [56, 0, [0], [1], "torch.float32"]}"#;
        let tensors = placed(json, &[32, 8, 0, 16]).unwrap();
        let extent = |source, offset, len| Extent {
            source,
            offset,
            len,
        };
        assert_eq!(tensors[0].extents[..], [extent(0, 0, 24)]);
        assert_eq!(
            tensors[1].extents[..],
            [extent(0, 28, 4), extent(1, 0, 8), extent(3, 0, 12)]
        );
        assert!(tensors[2].extents.is_empty());
        let error = placed(json, &[32, 8, 0, 11]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PartitionTooSmall);
        let text = error.to_string();
        for fact in ["tensor.data_3", "28..52", "51", "tensor.data_4 is missing"] {
            assert!(text.contains(fact), "{text}");
        }
    }

    #[test]
    fn local_offsets_name_their_partitions_without_a_table_of_ids() {
        let json = r#"{"a": [0, 4, [4], [1], "u8", 18446744073709551615],
            "b": [0, 4, [4], [1], "u8", 1], "c": [2, 2, [2], [1], "u8", 1]}"#;
        let index = PartitionIndex::parse(json.as_bytes()).unwrap();
        assert_eq!(index.dialect(), Dialect::Local);
        assert_eq!(index.partition_ids(), [1, u64::MAX]);
        let error = placed(json, &[9, 9]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PartitionMissing);
        assert!(
            error
                .to_string()
                .contains("tensor.data_18446744073709551615")
        );
    }

    #[test]
    fn strides_of_one_element_do_not_count_and_views_keep_theirs() {
        let strides = |json: &str| {
            let json = format!(r#"{{"a": {json}}}"#);
            placed(&json, &[1 << 20]).map(|tensors| tensors[0].strides.clone())
        };
        for contiguous in [
            r#"[0, 24, [2, 3], [3, 1], "f32", 0]"#,
            r#"[0, 24, [2, 1, 3], [3, 99, 1], "f32", 0]"#,
            r#"[0, 24, [1, 6], [0, 1], "f32", 0]"#,
            r#"[0, 4, [], [], "f32", 0]"#,
            r#"[0, 4, [1, 1], [7, 7], "f32", 0]"#,
            r#"[0, 0, [3, 0], [5, 5], "f32", 0]"#,
            r#"[0, 0, [18446744073709551615, 18446744073709551615, 0], [1, 1, 1], "f32", 0]"#,
        ] {
            assert_eq!(strides(contiguous).unwrap(), None, "{contiguous}");
        }
        let view = strides(r#"[0, 24, [3, 2], [1, 3], "f32", 0]"#).unwrap();
        assert_eq!(view.as_deref(), Some(&[1, 3][..]));
        let expanded = strides(r#"[0, 12, [1000, 3], [0, 1], "f32", 0]"#).unwrap();
        assert_eq!(expanded.as_deref(), Some(&[0, 1][..]));
        let limit = MAX_EXPANDED_BYTES;
        let repeated = |times: u64| strides(&format!(r#"[0, 1, [{times}], [0], "u8", 0]"#));
        assert!(repeated(limit).is_ok());
        assert_eq!(repeated(limit + 1).unwrap_err().kind(), ErrorKind::BadEntry);
    }

    #[test]
    fn pairs_of_four_bit_floats_become_elements() {
        let shape = |json: &str| {
            let json = format!(r#"{{"a": {json}}}"#);
            placed(&json, &[64]).map(|tensors| tensors[0].shape.to_vec())
        };
        let pairs = r#"[0, 6, [2, 3], [3, 1], "torch.float4_e2m1fn_x2", 0]"#;
        assert_eq!(shape(pairs).unwrap(), [2, 6]);
        let elements = r#"[0, 6, [2, 6], [6, 1], "torch.float4_e2m1fn_x2", 0]"#;
        assert_eq!(shape(elements).unwrap(), [2, 6]);
        let ours = r#"[0, 6, [2, 6], [6, 1], "F4", 0]"#;
        assert_eq!(shape(ours).unwrap(), [2, 6]);
        let wrong = shape(r#"[0, 6, [2, 3], [3, 1], "F4", 0]"#).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::ShapeMismatch);
    }

    #[test]
    fn malformed_entries_have_their_kind_and_name_the_tensor() {
        use ErrorKind::{BadEntry, Overflow, PartitionTooSmall, ShapeMismatch, UnknownDtype};
        let cases = [
            (r#"3"#, BadEntry),
            (r#"{}"#, BadEntry),
            (r#"null"#, BadEntry),
            (r#"[]"#, BadEntry),
            (r#"[0, 4, [4], [1]]"#, BadEntry),
            (r#"[0, 4, [4], [1], "u8", 0, 0]"#, BadEntry),
            (r#"[-1, 4, [4], [1], "u8", 0]"#, BadEntry),
            (r#"[0.5, 4, [4], [1], "u8", 0]"#, BadEntry),
            (r#"[18446744073709551616, 4, [4], [1], "u8", 0]"#, BadEntry),
            (r#"["0", 4, [4], [1], "u8", 0]"#, BadEntry),
            (r#"[0, 4, 4, [1], "u8", 0]"#, BadEntry),
            (r#"[0, 4, [4], [-1], "u8", 0]"#, BadEntry),
            (r#"[0, 4, [4], [1], 8, 0]"#, BadEntry),
            (r#"[0, 4, [4], [1], "u8", null]"#, BadEntry),
            (r#"[0, 4, [4], [1], "u8", -1]"#, BadEntry),
            (r#"[0, 4, [4], [1, 1], "u8", 0]"#, BadEntry),
            (r#"[0, 4, [], [1], "f32", 0]"#, BadEntry),
            (r#"[0, 4, [4], [1], "u9", 0]"#, UnknownDtype),
            (r#"[0, 5, [4], [1], "u8", 0]"#, ShapeMismatch),
            (r#"[0, 3, [4], [1], "u8", 0]"#, ShapeMismatch),
            (
                r#"[0, 0, [4611686018427387904, 4], [4, 1], "f32", 0]"#,
                ShapeMismatch,
            ),
            (r#"[0, 2, [3], [1], "F4", 0]"#, ShapeMismatch),
            // A view into the middle of something larger, or past its end.
            (r#"[0, 64, [3, 2], [1, 3], "f32", 0]"#, BadEntry),
            (r#"[0, 20, [3, 2], [1, 3], "f32", 0]"#, BadEntry),
            (
                r#"[0, 9, [2, 2], [18446744073709551615, 1], "u8", 0]"#,
                BadEntry,
            ),
            (r#"[0, 4, [4, 2], [1, 4], "F4", 0]"#, BadEntry),
            (r#"[18446744073709551615, 4, [4], [1], "u8", 0]"#, Overflow),
            (r#"[61, 4, [4], [1], "u8", 0]"#, PartitionTooSmall),
            (r#"[65, 0, [0], [1], "u8", 0]"#, PartitionTooSmall),
        ];
        for (entry, kind) in cases {
            let error = placed(&format!(r#"{{"a.w": {entry}}}"#), &[64]).unwrap_err();
            assert_eq!(error.kind(), kind, "{entry}: {error}");
            assert!(error.to_string().contains("\"a.w\""), "{entry}: {error}");
        }
    }

    #[test]
    fn the_index_as_a_whole_is_checked() {
        let cases = [
            ("", ErrorKind::BadIndex),
            ("[]", ErrorKind::BadIndex),
            (r#"{"a": [0, 4, [4], [1], "u8", 0]"#, ErrorKind::BadIndex),
            (
                r#"{"a": [0, 4, [4], [1], "u8", 0]} {}"#,
                ErrorKind::BadIndex,
            ),
            (
                r#"{"a": [0, 4, [4], [1], "u8", 0], "a": [0, 4, [4], [1], "u8", 0]}"#,
                ErrorKind::DuplicateName,
            ),
            (
                r#"{"a": [0, 4, [4], [1], "u8", 0], "b": [0, 4, [4], [1], "u8"]}"#,
                ErrorKind::BadEntry,
            ),
        ];
        for (json, kind) in cases {
            let error = PartitionIndex::parse(json.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), kind, "{json}: {error}");
        }
        assert!(placed("{}", &[]).unwrap().is_empty());
    }
}
