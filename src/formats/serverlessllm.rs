//! The ServerlessLLM layout: `tensor_index.json` beside partition files `tensor.data_N`.
//!
//! Two dialects exist and are told apart by the number of elements of an entry:
//! `[offset, size, shape, stride, dtype, partition]` with offsets local to a partition, and
//! `[offset, size, shape, stride, dtype]` with offsets over all partition files one after the
//! other, as they lie on disk (padding of their tails included).

use std::fmt;
use std::path::PathBuf;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::{SmallVec, smallvec};

use super::Names;
use super::json::{Dims, Inspect, Text, note, refusal, stop};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Extent, Shape, TensorMeta};

/// The name of the index file.
pub const INDEX_FILE: &str = "tensor_index.json";

/// Largest logical size of an expanded view (stride 0: few stored bytes stand for many), in
/// bytes. It bounds what a few bytes on disk can make a load allocate.
pub const MAX_EXPANDED_BYTES: u64 = 256 << 20;

/// Most extents that tensors may be cut into in all, so that a small index over many partitions
/// cannot ask for unbounded memory.
const MAX_EXTENTS: usize = 1 << 22;

/// The file name of partition `id`.
pub fn partition_file(id: u64) -> String {
    format!("tensor.data_{id}")
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
        let mut visitor = IndexVisitor {
            dialect: None,
            entries: Vec::new(),
            failure: None,
        };
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let parsed = deserializer
            .deserialize_map(&mut visitor)
            .and_then(|()| deserializer.end());
        if let Err(error) = parsed {
            return Err(refusal(
                "the index",
                ErrorKind::BadIndex,
                error,
                visitor.failure,
            ));
        }
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

/// Decides what the strides mean for the stored bytes: `None` when they are contiguous.
fn check_view(
    dtype: Dtype,
    shape: &[u64],
    strides: &[u64],
    size: u64,
) -> Result<Option<Box<[u64]>>> {
    let refuse = |kind, message| Err(Error::new(kind, message));
    if shape.len() != strides.len() {
        let (dims, given) = (shape.len(), strides.len());
        return refuse(
            ErrorKind::BadEntry,
            format!(
                "its shape {shape:?} has {dims} dimensions, its stride {strides:?} has {given}"
            ),
        );
    }
    let Some(logical) = dtype.nbytes(shape) else {
        return refuse(
            ErrorKind::ShapeMismatch,
            format!("{dtype} of shape {shape:?} does not take a whole number of bytes below 2^64"),
        );
    };
    if is_contiguous(shape, strides) {
        if logical == size {
            return Ok(None);
        }
        return refuse(
            ErrorKind::ShapeMismatch,
            format!("{dtype} of shape {shape:?} takes {logical} bytes, but its size is {size}"),
        );
    }
    if dtype.bits() < 8 {
        return refuse(
            ErrorKind::BadEntry,
            format!(
                "stride {strides:?} of shape {shape:?} cuts through the bytes of packed {dtype}"
            ),
        );
    }
    let span = shape
        .iter()
        .zip(strides)
        .try_fold(1_u64, |span, (&dim, &stride)| {
            span.checked_add((dim - 1).checked_mul(stride)?)
        })
        .and_then(|elements| dtype.bytes_for(elements));
    if span != Some(size) {
        let covered = span.map_or("more than 2^64".to_owned(), |span| span.to_string());
        return refuse(
            ErrorKind::BadEntry,
            format!(
                "its shape {shape:?} with stride {strides:?} is a view over {covered} bytes, but \
                 {size} are stored, and the layout does not record where the view begins"
            ),
        );
    }
    if logical > size && logical > MAX_EXPANDED_BYTES {
        return refuse(
            ErrorKind::BadEntry,
            format!(
                "its shape {shape:?} with stride {strides:?} repeats {size} stored bytes into \
                 {logical}; the limit is {MAX_EXPANDED_BYTES}"
            ),
        );
    }
    Ok(Some(strides.into()))
}

/// Whether elements follow each other in row-major order. The stride of a dimension of one
/// element is never used, and a tensor without elements has nothing to stride over.
fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected: u64 = 1;
    for (&dim, &stride) in shape.iter().zip(strides).rev() {
        if dim != 1 && stride != expected {
            return false;
        }
        // The product was checked to fit when the size was computed; saturation is never equal.
        expected = expected.saturating_mul(dim);
    }
    true
}

struct IndexVisitor {
    dialect: Option<Dialect>,
    entries: Vec<Entry>,
    failure: Option<Error>,
}

impl<'de> Visitor<'de> for &mut IndexVisitor {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(Text)? {
            let fields = map.next_value_seed(EntryVisitor {
                failure: &mut self.failure,
            });
            let finished = match fields {
                Ok(fields) => self.entry(fields).map_err(|error| {
                    self.failure = Some(error);
                    stop()
                }),
                Err(error) => {
                    let message = "its entry must be a list [offset, size, shape, stride, dtype, \
                                   partition]";
                    Err(note(&mut self.failure, ErrorKind::BadEntry, message, error))
                }
            };
            match finished {
                Ok(entry) => self.entries.push(Entry { name, ..entry }),
                Err(error) => {
                    self.failure = self.failure.take().map(|error| error.tensor(name));
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl IndexVisitor {
    /// Checks the fields of one entry; the name is filled in by the caller.
    fn entry(&mut self, mut fields: Fields) -> Result<Entry> {
        let dialect = match fields.partition {
            Some(_) => Dialect::Local,
            None => Dialect::Global,
        };
        if *self.dialect.get_or_insert(dialect) != dialect {
            return Err(Error::new(
                ErrorKind::BadEntry,
                "entries of 5 and of 6 elements are mixed in one index, so offsets are ambiguous",
            ));
        }
        let (dtype, counts_pairs) = fields.dtype;
        if counts_pairs {
            pairs_to_elements(&mut fields.shape, &mut fields.stride, fields.size);
        }
        Ok(Entry {
            name: Box::default(),
            strides: check_view(dtype, &fields.shape, &fields.stride, fields.size)?,
            offset: fields.offset,
            size: fields.size,
            shape: fields.shape,
            dtype,
            partition: fields.partition.unwrap_or(0),
        })
    }
}

/// torch's `float4_e2m1fn_x2` counts pairs: its shape has one byte per element. The size tells
/// such a shape from one that counts 4-bit elements, as ours do.
fn pairs_to_elements(shape: &mut [u64], stride: &mut [u64], size: u64) {
    if Dtype::U8.nbytes(shape) != Some(size) || size == 0 || !is_contiguous(shape, stride) {
        return;
    }
    let Some((last, outer)) = shape.split_last_mut() else {
        return;
    };
    if let Some(doubled) = last.checked_mul(2) {
        *last = doubled;
        let outer_strides = stride.iter_mut().take(outer.len());
        for stride in outer_strides {
            *stride = stride.saturating_mul(2);
        }
        if let Some(innermost) = stride.last_mut() {
            *innermost = 1;
        }
    }
}

struct Fields {
    offset: u64,
    size: u64,
    shape: Shape,
    stride: Shape,
    /// And whether the spelling is one that counts pairs.
    dtype: (Dtype, bool),
    partition: Option<u64>,
}

struct EntryVisitor<'f> {
    failure: &'f mut Option<Error>,
}

impl<'de> DeserializeSeed<'de> for EntryVisitor<'_> {
    type Value = Fields;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Fields, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl EntryVisitor<'_> {
    /// The next element of the entry, which must be there and must be `what`.
    fn next<'de, A: SeqAccess<'de>, S: DeserializeSeed<'de>>(
        &mut self,
        list: &mut A,
        seed: S,
        what: &str,
    ) -> Result<S::Value, A::Error> {
        match list.next_element_seed(seed) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => {
                let message = format!("its entry ends before {what}; 5 or 6 elements are needed");
                *self.failure = Some(Error::new(ErrorKind::BadEntry, message));
                Err(stop())
            }
            Err(error) => {
                let message = format!("its entry is malformed at {what}");
                Err(note(self.failure, ErrorKind::BadEntry, &message, error))
            }
        }
    }
}

impl<'de> Visitor<'de> for EntryVisitor<'_> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of 5 or 6 elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Fields, A::Error> {
        use std::marker::PhantomData;
        let list = &mut list;
        let offset = self.next(list, PhantomData, "the offset, a whole number")?;
        let size = self.next(list, PhantomData, "the size, a whole number")?;
        let shape = self.next(list, Dims, "the shape, a list of whole numbers")?;
        let stride = self.next(list, Dims, "the stride, a list of whole numbers")?;
        let look = |name: &str| match Dtype::from_torch(name) {
            Some(dtype) => Ok((dtype, name.ends_with("_x2"))),
            None => Err(Box::<str>::from(name)),
        };
        let dtype = match self.next(list, Inspect(look), "the dtype, a string")? {
            Ok(dtype) => dtype,
            Err(name) => {
                let message = format!("unknown dtype {name:?}");
                *self.failure = Some(Error::new(ErrorKind::UnknownDtype, message));
                return Err(stop());
            }
        };
        let partition = list.next_element().map_err(|error| {
            let message = "its entry is malformed at the partition, a whole number";
            note(self.failure, ErrorKind::BadEntry, message, error)
        })?;
        if partition.is_some() && list.next_element::<IgnoredAny>()?.is_some() {
            let message = "its entry has more than 6 elements";
            *self.failure = Some(Error::new(ErrorKind::BadEntry, message));
            return Err(stop());
        }
        Ok(Fields {
            offset,
            size,
            shape,
            stride,
            dtype,
            partition,
        })
    }
}
