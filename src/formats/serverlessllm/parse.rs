//! The JSON of `tensor_index.json`, entry by entry.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::view::{check_view, pairs_to_elements};
use super::{Dialect, Entry};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::json::{Collector, Dims, Inspect, Text, Whole, note, stop};
use crate::tensor::Shape;
use crate::text;

/// Collects the entries; what is wrong with one is in `failure`.
#[derive(Default)]
pub(super) struct IndexVisitor {
    pub(super) dialect: Option<Dialect>,
    pub(super) entries: Vec<Entry>,
    failure: Option<Error>,
}

impl Collector for IndexVisitor {
    fn into_failure(self) -> Option<Error> {
        self.failure
    }
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
        let list = &mut list;
        let offset = self.next(list, Whole, "the offset, a whole number")?;
        let size = self.next(list, Whole, "the size, a whole number")?;
        let shape = self.next(list, Dims, "the shape, a list of whole numbers")?;
        let stride = self.next(list, Dims, "the stride, a list of whole numbers")?;
        let look = |name: &str| match Dtype::from_torch(name) {
            Some(dtype) => Ok((dtype, name.ends_with("_x2"))),
            None => Err(Box::<str>::from(name)),
        };
        let dtype = match self.next(list, Inspect(look), "the dtype, a string")? {
            Ok(dtype) => dtype,
            Err(name) => {
                let message = format!("unknown dtype {}", text::quoted(&name));
                *self.failure = Some(Error::new(ErrorKind::UnknownDtype, message));
                return Err(stop());
            }
        };
        let partition = list.next_element_seed(Whole).map_err(|error| {
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
