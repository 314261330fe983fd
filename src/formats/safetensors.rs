//! The SafeTensors header.
//!
//! A file is 8 bytes of little-endian header length N, N bytes of JSON, then the data. The parser
//! is a serde visitor that goes once over the text and allocates once per tensor, for its name:
//! there is no map of entries in between. Afterwards the tensors are sorted by offset, and one
//! pass checks names, sizes, contiguity and the end of the file.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::de::StrRead;
use smallvec::smallvec;

use super::Names;
use super::json::{Collector, Dims, Inspect, Pair, Text, collect, note, stop};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Extent, Shape, TensorMeta};
use crate::text;

/// Bytes of the length prefix before the JSON.
pub const PREFIX_BYTES: u64 = 8;

/// The format's limit on the JSON, inclusive, in bytes.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// What a header says, after it was checked against itself and against the size of its file.
#[derive(Clone)]
pub struct Header {
    /// All tensors, by offset, then name; offsets are absolute in the file.
    pub tensors: Vec<TensorMeta>,
    /// The `__metadata__` object.
    pub metadata: BTreeMap<String, String>,
    pub(crate) names: Names,
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("tensors", &self.tensors)
            .field("metadata", &self.metadata)
            .finish()
    }
}

/// Length in bytes of the JSON of a file of `file_len` bytes that begins with `start`. At least
/// the first 8 bytes of the file, or all of a shorter one, must be given.
///
/// # Errors
/// [`ErrorKind::Truncated`] for a file that is empty, has no complete length, or is shorter than
/// its header; [`ErrorKind::HeaderTooLarge`] beyond [`MAX_HEADER_BYTES`].
pub fn header_len(start: &[u8], file_len: u64) -> Result<u64> {
    if file_len == 0 {
        return Err(
            Error::new(ErrorKind::Truncated, "the file is empty (0 bytes)")
                .help("the save or download did not finish; fetch the file again"),
        );
    }
    let Some(&prefix) = start.first_chunk::<8>() else {
        return Err(Error::new(
            ErrorKind::Truncated,
            format!("the file has {file_len} bytes, too short for the 8-byte header length"),
        )
        .help("the save or download did not finish; fetch the file again"));
    };
    let len = u64::from_le_bytes(prefix);
    if len > MAX_HEADER_BYTES {
        return Err(Error::new(
            ErrorKind::HeaderTooLarge,
            format!(
                "the first 8 bytes declare a header of {len} bytes; the limit is \
                 {MAX_HEADER_BYTES}, and the file has {file_len} bytes"
            ),
        )
        .help("this is not a SafeTensors file, or its beginning is damaged"));
    }
    let needed = PREFIX_BYTES + len;
    if needed > file_len {
        return Err(Error::new(
            ErrorKind::Truncated,
            format!(
                "the header alone declares {needed} bytes (8 + {len}), but the file has {file_len}"
            ),
        )
        .help("the file was cut short; fetch it again"));
    }
    Ok(len)
}

/// Parses and checks the JSON of a header. `json` is exactly the bytes between the length prefix
/// and the data, `file_len` the size of the whole file, and `source` goes into the extents.
///
/// Stricter than the reference reader in two points: a name or metadata key may occur only once,
/// and an entry must be an object. Like it, unknown fields of an entry are ignored, and JSON
/// whitespace may surround the object.
///
/// # Errors
/// [`ErrorKind::BadHeader`], [`ErrorKind::UnknownDtype`], [`ErrorKind::DuplicateName`],
/// [`ErrorKind::ShapeMismatch`], [`ErrorKind::BadOffsets`], [`ErrorKind::Truncated`],
/// [`ErrorKind::TrailingBytes`].
pub fn parse_header(json: &[u8], file_len: u64, source: u32) -> Result<Header> {
    let text = std::str::from_utf8(json).map_err(|error| {
        Error::new(
            ErrorKind::BadHeader,
            format!(
                "the header is not UTF-8: invalid at byte {} of {}",
                error.valid_up_to(),
                json.len()
            ),
        )
    })?;
    let visitor = HeaderVisitor {
        source,
        // Entries of real models take 100 to 140 bytes of JSON.
        tensors: Vec::with_capacity(json.len() / 100),
        metadata: None,
        failure: None,
    };
    let visitor = collect(
        "the header",
        ErrorKind::BadHeader,
        StrRead::new(text),
        visitor,
    )?;
    let mut tensors = visitor.tensors;
    let names = arrange(&mut tensors, PREFIX_BYTES + json.len() as u64, file_len)?;
    Ok(Header {
        tensors,
        metadata: visitor.metadata.unwrap_or_default(),
        names,
    })
}

/// Sorts by offset and checks everything that takes more than one entry to see.
fn arrange(tensors: &mut [TensorMeta], data_start: u64, file_len: u64) -> Result<Names> {
    // Until the end of this function each tensor has one extent, relative to the data.
    tensors.sort_unstable_by(|a, b| {
        let (x, y) = (&a.extents[0], &b.extents[0]);
        (x.offset, x.len, &a.name).cmp(&(y.offset, y.len, &b.name))
    });
    let names = Names::build(tensors.len(), |at| &tensors[at].name).map_err(|(_, at)| {
        Error::new(
            ErrorKind::DuplicateName,
            "duplicate tensor name: the header has it more than once",
        )
        .tensor(&*tensors[at].name)
    })?;
    let mut covered = 0;
    for at in 0..tensors.len() {
        let tensor = &tensors[at];
        let extent = tensor.extents[0];
        check_size(tensor, extent.len)?;
        if extent.offset != covered {
            return Err(gap_or_overlap(tensors, at, covered));
        }
        covered = extent.end();
    }
    let declared = u128::from(data_start) + u128::from(covered);
    if declared > u128::from(file_len) {
        return Err(Error::new(
            ErrorKind::Truncated,
            format!(
                "the header declares a file of {declared} bytes, but it has {file_len} \
                 ({} are missing)",
                declared - u128::from(file_len)
            ),
        )
        .help("the file was cut short; fetch it again"));
    }
    if declared < u128::from(file_len) {
        return Err(Error::new(
            ErrorKind::TrailingBytes,
            format!(
                "the file is longer than its header declares: {declared} bytes are declared, it \
                 has {file_len} ({} follow the last tensor)",
                u128::from(file_len) - declared
            ),
        )
        .help("something was appended to it, or its writer is faulty; fetch or write it again"));
    }
    for tensor in tensors {
        if tensor.extents[0].len == 0 {
            tensor.extents.clear();
        } else {
            tensor.extents[0].offset += data_start;
        }
    }
    Ok(names)
}

fn check_size(tensor: &TensorMeta, stored: u64) -> Result<()> {
    let needed = tensor.dtype.nbytes(&tensor.shape);
    if needed == Some(stored) {
        return Ok(());
    }
    let (dtype, shape) = (tensor.dtype, &tensor.shape);
    let message = match needed {
        Some(needed) => format!(
            "{dtype} of shape {shape:?} takes {needed} bytes, but its data_offsets cover {stored}"
        ),
        None => format!(
            "{dtype} of shape {shape:?} {}; its data_offsets cover {stored} bytes",
            dtype.why_no_size(shape)
        ),
    };
    Err(Error::new(ErrorKind::ShapeMismatch, message).tensor(&*tensor.name))
}

fn gap_or_overlap(tensors: &[TensorMeta], at: usize, covered: u64) -> Error {
    let extent = tensors[at].extents[0];
    let (begin, end) = (extent.offset, extent.end());
    let before = match at.checked_sub(1) {
        Some(at) => {
            let name = text::quoted(&tensors[at].name);
            format!("tensor {name} ends at {covered}")
        }
        None => "the data begins at 0".to_owned(),
    };
    let message = if begin < covered {
        format!("its data_offsets [{begin}, {end}] overlap others: {before}")
    } else {
        format!(
            "its data_offsets [{begin}, {end}] leave a hole of {} bytes: {before}",
            begin - covered
        )
    };
    Error::new(ErrorKind::BadOffsets, message).tensor(&*tensors[at].name)
}

struct HeaderVisitor {
    source: u32,
    tensors: Vec<TensorMeta>,
    metadata: Option<BTreeMap<String, String>>,
    failure: Option<Error>,
}

enum Key {
    Metadata,
    Tensor(Box<str>),
}

impl Collector for HeaderVisitor {
    fn into_failure(self) -> Option<Error> {
        self.failure
    }
}

impl<'de> Visitor<'de> for &mut HeaderVisitor {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let key = |name: &str| match name {
            "__metadata__" => Key::Metadata,
            name => Key::Tensor(name.into()),
        };
        while let Some(key) = map.next_key_seed(Inspect(key))? {
            match key {
                Key::Metadata => self.visit_metadata(&mut map)?,
                Key::Tensor(name) => {
                    let entry = map.next_value_seed(EntryVisitor {
                        failure: &mut self.failure,
                    });
                    let entry = match entry {
                        Ok(entry) => entry,
                        Err(error) => {
                            let error = note(
                                &mut self.failure,
                                ErrorKind::BadHeader,
                                "its entry must be an object with dtype, shape and data_offsets",
                                error,
                            );
                            self.failure = self.failure.take().map(|error| error.tensor(name));
                            return Err(error);
                        }
                    };
                    self.tensors.push(TensorMeta {
                        name,
                        dtype: entry.dtype,
                        shape: entry.shape,
                        strides: None,
                        extents: smallvec![Extent {
                            source: self.source,
                            offset: entry.begin,
                            len: entry.end - entry.begin,
                        }],
                    });
                }
            }
        }
        Ok(())
    }
}

impl HeaderVisitor {
    fn visit_metadata<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        if self.metadata.is_some() {
            self.failure = Some(Error::new(
                ErrorKind::DuplicateName,
                "the header has __metadata__ more than once",
            ));
            return Err(stop());
        }
        let seed = MetadataVisitor {
            failure: &mut self.failure,
        };
        let metadata = map.next_value_seed(seed).map_err(|error| {
            let message = "__metadata__ must be an object of strings";
            note(&mut self.failure, ErrorKind::BadHeader, message, error)
        })?;
        self.metadata = Some(metadata);
        Ok(())
    }
}

struct MetadataVisitor<'f> {
    failure: &'f mut Option<Error>,
}

impl<'de> DeserializeSeed<'de> for MetadataVisitor<'_> {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for MetadataVisitor<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    // The reference reader takes null for "no metadata", and some writers leave it there.
    fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Text).map_err(|error| {
                let message = format!(
                    "the value of {} in __metadata__ must be a string",
                    text::quoted(&key)
                );
                note(self.failure, ErrorKind::BadHeader, &message, error)
            })?;
            if metadata.contains_key(&key) {
                *self.failure = Some(Error::new(
                    ErrorKind::DuplicateName,
                    format!(
                        "__metadata__ has the key {} more than once",
                        text::quoted(&key)
                    ),
                ));
                return Err(stop());
            }
            metadata.insert(key, value.into());
        }
        Ok(metadata)
    }
}

struct RawEntry {
    dtype: Dtype,
    shape: Shape,
    begin: u64,
    end: u64,
}

struct EntryVisitor<'f> {
    failure: &'f mut Option<Error>,
}

impl EntryVisitor<'_> {
    fn refuse<T, E: de::Error>(&mut self, kind: ErrorKind, message: String) -> Result<T, E> {
        *self.failure = Some(Error::new(kind, message));
        Err(stop())
    }

    /// Puts a field in its place, once.
    fn set<T, E: de::Error>(&mut self, field: &str, to: &mut Option<T>, value: T) -> Result<(), E> {
        if to.replace(value).is_some() {
            return self.refuse(
                ErrorKind::BadHeader,
                format!("its entry has {field} more than once"),
            );
        }
        Ok(())
    }

    fn require<T, E: de::Error>(&mut self, field: &str, value: Option<T>) -> Result<T, E> {
        match value {
            Some(value) => Ok(value),
            None => self.refuse(ErrorKind::BadHeader, format!("its entry has no {field}")),
        }
    }
}

enum Field {
    Dtype,
    Shape,
    DataOffsets,
    Other,
}

impl<'de> DeserializeSeed<'de> for EntryVisitor<'_> {
    type Value = RawEntry;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawEntry, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntryVisitor<'_> {
    type Value = RawEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<RawEntry, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        let field = |name: &str| match name {
            "dtype" => Field::Dtype,
            "shape" => Field::Shape,
            "data_offsets" => Field::DataOffsets,
            _ => Field::Other,
        };
        while let Some(field) = map.next_key_seed(Inspect(field))? {
            match field {
                Field::Dtype => {
                    let look = |name: &str| Dtype::from_safetensors(name).ok_or(Box::from(name));
                    let value: Result<Dtype, Box<str>> = map
                        .next_value_seed(Inspect(look))
                        .map_err(|error| self.malformed("its dtype must be a string", error))?;
                    match value {
                        Ok(value) => self.set("dtype", &mut dtype, value)?,
                        Err(name) => {
                            let message = format!("unknown dtype {}", text::quoted(&name));
                            return self.refuse(ErrorKind::UnknownDtype, message);
                        }
                    }
                }
                Field::Shape => {
                    let value = map.next_value_seed(Dims).map_err(|error| {
                        self.malformed("its shape must be a list of whole numbers", error)
                    })?;
                    self.set("shape", &mut shape, value)?;
                }
                Field::DataOffsets => {
                    let value = map.next_value_seed(Pair).map_err(|error| {
                        let message = "its data_offsets must be two whole numbers, [begin, end]";
                        self.malformed(message, error)
                    })?;
                    self.set("data_offsets", &mut offsets, value)?;
                }
                Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let dtype = self.require("dtype", dtype)?;
        let shape = self.require("shape", shape)?;
        let (begin, end) = self.require("data_offsets", offsets)?;
        if begin > end {
            let message = format!("its data_offsets [{begin}, {end}] run backwards");
            return self.refuse(ErrorKind::BadOffsets, message);
        }
        Ok(RawEntry {
            dtype,
            shape,
            begin,
            end,
        })
    }
}

impl EntryVisitor<'_> {
    fn malformed<E: fmt::Display>(&mut self, message: &str, error: E) -> E {
        note(self.failure, ErrorKind::BadHeader, message, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_compared_before_anything_else_happens() {
        let kind = |start: &[u8], file_len| header_len(start, file_len).map_err(|e| e.kind());
        assert_eq!(kind(b"", 0), Err(ErrorKind::Truncated));
        assert_eq!(kind(b"\x02\0\0", 3), Err(ErrorKind::Truncated));
        let prefix = |len: u64| len.to_le_bytes();
        assert_eq!(kind(&prefix(0), 8), Ok(0));
        assert_eq!(kind(&prefix(2), 10), Ok(2));
        assert_eq!(kind(&prefix(3), 10), Err(ErrorKind::Truncated));
        let limit = MAX_HEADER_BYTES;
        assert_eq!(kind(&prefix(limit), limit + 8), Ok(limit));
        assert_eq!(kind(&prefix(limit), limit + 7), Err(ErrorKind::Truncated));
        let above = prefix(limit + 1);
        assert_eq!(kind(&above, u64::MAX), Err(ErrorKind::HeaderTooLarge));
        assert_eq!(kind(&prefix(u64::MAX), 10), Err(ErrorKind::HeaderTooLarge));
        let error = header_len(&prefix(u64::MAX), 10).unwrap_err().to_string();
        assert!(error.contains("18446744073709551615") && error.contains("100000000"));
    }

    #[test]
    fn refusals_say_what_is_wrong_once() {
        let entry = |shape: &str, offsets: &str| {
            format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let text = |json: &str| {
            let error = parse_header(json.as_bytes(), json.len() as u64 + 12, 0).unwrap_err();
            format!("{error:?}")
        };
        for (shape, offsets, expected) in [
            ("[1]", "[0,4,8]", "two whole numbers"),
            ("[1]", "[0,4,8]", "more than two elements"),
            ("[1]", "[0]", "invalid length 1"),
            ("[18446744073709551616]", "[0,4]", "not below 2^64"),
            (
                "[1.5]",
                "[0,4]",
                "floating point `1.5`, expected a whole number",
            ),
            ("[-1]", "[0,4]", "integer `-1`"),
            ("[9223372036854775808,4]", "[0,4]", "overflows 64 bits"),
        ] {
            let text = text(&entry(shape, offsets));
            assert!(text.contains(expected), "{text}");
            assert!(!text.contains("not valid JSON"), "{text}");
            assert!(text.starts_with("tensor \"w\": "), "{text}");
        }
        let broken = text("{\"w\":}");
        assert_eq!(broken.matches("line").count(), 1, "{broken}");
        assert_eq!(broken.matches("column").count(), 1, "{broken}");
        let packed = r#"{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,4]}}"#;
        assert!(text(packed).contains("does not take a whole number of bytes"));
    }

    #[test]
    fn tensors_come_by_offset_with_absolute_extents() {
        let json = br#" { "b" : {"dtype":"F32","shape":[1],"data_offsets":[2,6],"extra":[{}]},
            "__metadata__": {"k": "v"},
            "a\u0301": {"data_offsets":[0,2],"shape":[],"dtype":"BF16"},
            "z": {"dtype":"U8","shape":[7,0],"data_offsets":[6,6]},
            "e": {"dtype":"U8","shape":[0],"data_offsets":[6,6]} } "#;
        let start = PREFIX_BYTES + json.len() as u64;
        let header = parse_header(json, start + 6, 5).unwrap();
        let names: Vec<&str> = header.tensors.iter().map(|t| &*t.name).collect();
        assert_eq!(names, ["a\u{301}", "b", "e", "z"]);
        assert_eq!(header.metadata["k"], "v");
        let extent = |offset, len| Extent {
            source: 5,
            offset,
            len,
        };
        assert_eq!(header.tensors[0].extents[..], [extent(start, 2)]);
        assert_eq!(header.tensors[1].extents[..], [extent(start + 2, 4)]);
        assert!(header.tensors[2].extents.is_empty());
        assert_eq!(header.tensors[3].shape[..], [7, 0]);
        let at = header.names.find("b", |at| &header.tensors[at].name);
        assert_eq!(at, Some(1));
    }
}
