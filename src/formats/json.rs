//! What the layouts' JSON visitors share.
//!
//! serde's errors are text. A visitor that knows better (an unknown dtype, a missing field) puts
//! an [`Error`] with kind and tensor into a `failure` slot and stops the parse with [`stop`];
//! [`collect`] looks into the slot first.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::de::Read;

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Shape;
use crate::text;

/// A visitor of a whole document, which keeps what it finds.
pub(super) trait Collector {
    /// What the failure slot holds.
    fn into_failure(self) -> Option<Error>;
}

/// Reads a document, which must be one object with nothing after it, into `collector`. Errors
/// that the collector has nothing to say about are of `kind` and call the document `what`.
pub(super) fn collect<'de, R, C>(
    what: &str,
    kind: ErrorKind,
    document: R,
    mut collector: C,
) -> Result<C>
where
    R: Read<'de>,
    C: Collector,
    for<'c> &'c mut C: Visitor<'de, Value = ()>,
{
    let mut deserializer = serde_json::Deserializer::new(document);
    let parsed = deserializer
        .deserialize_map(&mut collector)
        .and_then(|()| deserializer.end());
    match parsed {
        Ok(()) => Ok(collector),
        Err(error) => Err(refusal(what, kind, error, collector.into_failure())),
    }
}

/// Ends the parse; the reason is in the failure slot.
pub(super) fn stop<E: de::Error>() -> E {
    E::custom("refused")
}

/// Fills the failure slot unless something more precise is in it already.
pub(super) fn note<E: fmt::Display>(
    failure: &mut Option<Error>,
    kind: ErrorKind,
    message: &str,
    error: E,
) -> E {
    failure.get_or_insert_with(|| {
        // It may quote a value of any length.
        Error::new(kind, message).because(text::message(&error.to_string()).into_owned())
    });
    error
}

/// The error for a document that serde_json did not get through: what the visitor noted where
/// the JSON is sound, and the place in the text where it is not.
fn refusal(what: &str, kind: ErrorKind, error: serde_json::Error, failure: Option<Error>) -> Error {
    use serde_json::error::Category;
    let failure = match failure {
        Some(failure) if error.is_data() => return failure,
        other => other,
    };
    let (line, column) = (error.line(), error.column());
    let message = match error.classify() {
        Category::Data => {
            format!("{what} is JSON of another shape (line {line}, column {column})")
        }
        Category::Eof => {
            format!("{what} ends in the middle of its JSON (line {line}, column {column})")
        }
        Category::Syntax | Category::Io => {
            format!("{what} is not valid JSON (line {line}, column {column})")
        }
    };
    // The place is in the message already.
    let text = error.to_string();
    let cause = text
        .rsplit_once(" at line ")
        .map_or(&*text, |(cause, _)| cause);
    let refused = Error::new(kind, message).because(text::message(cause).into_owned());
    match failure.as_ref().and_then(Error::tensor_name) {
        Some(tensor) => refused.tensor(tensor),
        None => refused,
    }
}

/// A string, taken over with one allocation whether it has escapes or not.
pub(super) struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Box<str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Box<str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Text {
    type Value = Box<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Box<str>, E> {
        Ok(text.into())
    }
}

/// Looks at a string in place and keeps what the function makes of it.
pub(super) struct Inspect<F>(pub(super) F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Inspect<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Inspect<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

/// A list of whole numbers of 64 bits.
pub(super) struct Dims;

impl<'de> DeserializeSeed<'de> for Dims {
    type Value = Shape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Dims {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of whole numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
        let mut dims = Shape::new();
        while let Some(dim) = list.next_element_seed(Whole)? {
            dims.push(dim);
        }
        Ok(dims)
    }
}

/// A whole number of 64 bits.
pub(super) struct Whole;

impl<'de> DeserializeSeed<'de> for Whole {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_u64(self)
    }
}

impl Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    // JSON has no integers: those that 64 bits cannot hold come as this, and lose their digits.
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<u64, E> {
        // 2^64, exactly.
        if number >= 18_446_744_073_709_551_616.0 {
            return Err(E::custom("a number in it is not below 2^64"));
        }
        Err(E::invalid_type(de::Unexpected::Float(number), &self))
    }
}

/// A list of exactly two whole numbers.
pub(super) struct Pair;

impl<'de> DeserializeSeed<'de> for Pair {
    type Value = (u64, u64);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(u64, u64), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Pair {
    type Value = (u64, u64);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of two whole numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(u64, u64), A::Error> {
        let mut pair = [0; 2];
        for (have, number) in pair.iter_mut().enumerate() {
            *number = list
                .next_element_seed(Whole)?
                .ok_or_else(|| de::Error::invalid_length(have, &self))?;
        }
        if list.next_element::<de::IgnoredAny>()?.is_some() {
            return Err(de::Error::custom("it has more than two elements"));
        }
        Ok(pair.into())
    }
}
