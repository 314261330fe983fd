//! What the layouts' JSON visitors share.
//!
//! serde's errors are text. A visitor that knows better (an unknown dtype, a missing field) puts
//! an [`Error`] with kind and tensor into a `failure` slot and stops the parse with [`stop`]; the
//! caller looks into the slot first.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};

use crate::error::{Error, ErrorKind};
use crate::tensor::Shape;

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
    failure.get_or_insert_with(|| Error::new(kind, message).because(error.to_string()));
    error
}

/// The error for a document that serde_json did not get through: what the visitor noted where
/// the JSON is sound, and the place in the text where it is not.
pub(super) fn refusal(
    what: &str,
    kind: ErrorKind,
    error: serde_json::Error,
    failure: Option<Error>,
) -> Error {
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
    let refused = Error::new(kind, message).because(error);
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
        while let Some(dim) = list.next_element()? {
            dims.push(dim);
        }
        Ok(dims)
    }
}
