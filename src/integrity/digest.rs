//! A digest, and what is said of a tensor with it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

use crate::dtype::Dtype;
use crate::tensor::Tensor;
use crate::text;

/// A SHA-256 digest; as text, 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Its 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Sha256 {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Lower case.
impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

/// A text that is no SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSha256(String);

impl fmt::Display for BadSha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = text::quoted(&self.0);
        write!(f, "a SHA-256 digest has 64 hexadecimal digits, not {found}")
    }
}

impl std::error::Error for BadSha256 {}

/// Digits of either case.
impl FromStr for Sha256 {
    type Err = BadSha256;

    fn from_str(text: &str) -> Result<Self, BadSha256> {
        let bad = || BadSha256(text.to_owned());
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(bad());
        }
        let value = |digit: u8| (digit as char).to_digit(16).ok_or_else(bad);
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a tensor is, and the digest of its bytes: contiguous, row-major, little-endian.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Box<[u64]>,
    /// Length in bytes.
    pub nbytes: u64,
    /// The digest of its bytes.
    pub sha256: Sha256,
}

/// Entries by name.
pub type Entries = BTreeMap<Box<str>, Entry>;

impl Entry {
    /// That of a tensor in memory. Hashes the bytes, unless the tensor carries their digest.
    pub fn of(tensor: &Tensor) -> Self {
        Self {
            dtype: tensor.dtype(),
            shape: tensor.shape().into(),
            nbytes: tensor.nbytes() as u64,
            sha256: match tensor.sha256() {
                Some(carried) => Sha256(*carried),
                None => Sha256::of(tensor.bytes()),
            },
        }
    }

    /// How `found` differs from this, which is expected, if it does.
    pub fn objection(&self, found: &Entry) -> Option<String> {
        if self.dtype != found.dtype {
            Some(format!("it is {}, not {}", found.dtype, self.dtype))
        } else if self.shape != found.shape {
            let (shape, expected) = (&found.shape, &self.shape);
            Some(format!("its shape is {shape:?}, not {expected:?}"))
        } else if self.nbytes != found.nbytes {
            let (bytes, expected) = (found.nbytes, self.nbytes);
            Some(format!("it has {bytes} bytes, not {expected}"))
        } else {
            let (sha, expected) = (found.sha256, self.sha256);
            (sha != expected).then(|| format!("its bytes hash to {sha}, not {expected}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_and_read_as_hexadecimal_digits() {
        let sha = Sha256::of(b"abc");
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha.to_string(), digits);
        assert_eq!(digits.parse(), Ok(sha));
        assert_eq!(digits.to_uppercase().parse(), Ok(sha));
        assert_eq!(
            serde_json::to_string(&sha).unwrap(),
            format!("\"{digits}\"")
        );
        let g = "g".repeat(64);
        for bad in ["", &digits[1..], &g, &"é".repeat(32)] {
            let error = bad.parse::<Sha256>().unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
    }

    #[test]
    fn the_first_thing_that_differs_is_said() {
        let expected = Entry {
            dtype: Dtype::U8,
            shape: [4].into(),
            nbytes: 4,
            sha256: Sha256::of(b"1234"),
        };
        assert_eq!(expected.objection(&expected), None);
        let mut found = expected.clone();
        found.sha256 = Sha256::of(b"1235");
        assert!(expected.objection(&found).unwrap().contains("hash to"));
        found.nbytes = 5;
        assert!(expected.objection(&found).unwrap().contains("5 bytes"));
        found.shape = [2, 2].into();
        assert!(expected.objection(&found).unwrap().contains("[2, 2]"));
        found.dtype = Dtype::I8;
        assert!(expected.objection(&found).unwrap().contains("I8"));
    }
}
