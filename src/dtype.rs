//! The one table of tensor element types.
//!
//! The 22 dtypes of the SafeTensors 0.8 reference with their spellings, sizes and torch names.
//! Parsing, printing, both layouts, the converters and language bindings all read this table.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal $torch:expr, [$($alias:literal),*], $doc:literal;)*) => {
        /// A tensor element type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        #[non_exhaustive]
        pub enum Dtype { $(#[doc = $doc] $variant,)* }

        impl Dtype {
            /// Every dtype, in the order of the table.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant,)*];

            const TABLE: &'static [Row] = &[$(Row {
                name: $name, bits: $bits, torch: $torch, aliases: &[$($alias),*],
            },)*];
        }
    };
}

struct Row {
    name: &'static str,
    bits: u32,
    torch: Option<&'static str>,
    /// Lower-case spellings besides the SafeTensors and torch names, as ServerlessLLM indexes have them.
    aliases: &'static [&'static str],
}

dtypes! {
    Bool "BOOL" 8 Some("bool"), [], "Boolean, one byte.";
    F4 "F4" 4 Some("float4_e2m1fn_x2"), ["float4_e2m1fn"], "4-bit float, two elements per byte.";
    F6E2M3 "F6_E2M3" 6 None, [], "6-bit float, 2 exponent bits, packed.";
    F6E3M2 "F6_E3M2" 6 None, [], "6-bit float, 3 exponent bits, packed.";
    U8 "U8" 8 Some("uint8"), ["byte"], "Unsigned byte.";
    I8 "I8" 8 Some("int8"), ["char"], "Signed byte.";
    F8E5M2 "F8_E5M2" 8 Some("float8_e5m2"), [], "8-bit float, 5 exponent bits.";
    F8E4M3 "F8_E4M3" 8 Some("float8_e4m3fn"), ["float8_e4m3"], "8-bit float, 4 exponent bits, finite.";
    F8E8M0 "F8_E8M0" 8 Some("float8_e8m0fnu"), ["float8_e8m0"], "8-bit power-of-two scale.";
    F8E4M3Fnuz "F8_E4M3FNUZ" 8 Some("float8_e4m3fnuz"), [], "8-bit float, finite, no negative zero.";
    F8E5M2Fnuz "F8_E5M2FNUZ" 8 Some("float8_e5m2fnuz"), [], "8-bit float, finite, no negative zero.";
    I16 "I16" 16 Some("int16"), ["short"], "Signed 16-bit integer.";
    U16 "U16" 16 Some("uint16"), [], "Unsigned 16-bit integer.";
    F16 "F16" 16 Some("float16"), ["half"], "IEEE half precision.";
    BF16 "BF16" 16 Some("bfloat16"), [], "Brain float.";
    I32 "I32" 32 Some("int32"), ["int"], "Signed 32-bit integer.";
    U32 "U32" 32 Some("uint32"), [], "Unsigned 32-bit integer.";
    F32 "F32" 32 Some("float32"), ["float"], "IEEE single precision.";
    C64 "C64" 64 Some("complex64"), ["cfloat"], "Complex of two single-precision floats.";
    F64 "F64" 64 Some("float64"), ["double"], "IEEE double precision.";
    I64 "I64" 64 Some("int64"), ["long"], "Signed 64-bit integer.";
    U64 "U64" 64 Some("uint64"), [], "Unsigned 64-bit integer.";
}

impl Dtype {
    fn row(self) -> &'static Row {
        &Self::TABLE[self as usize]
    }

    /// The SafeTensors spelling, such as `BF16`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Bits per element: 4, 6, 8, 16, 32 or 64.
    pub fn bits(self) -> u32 {
        self.row().bits
    }

    /// The attribute of the `torch` module that this dtype is, without the `torch.` prefix.
    /// `None` where torch has no such dtype.
    pub fn torch_name(self) -> Option<&'static str> {
        self.row().torch
    }

    /// Bytes that an element's address must be a multiple of: the element size, 1 for sub-byte
    /// types and 4 for `C64` (a pair of single-precision floats).
    pub fn alignment(self) -> u64 {
        match self {
            Dtype::C64 => 4,
            other => u64::from(other.bits() / 8).max(1),
        }
    }

    /// The exact SafeTensors spelling, upper case.
    pub fn from_safetensors(name: &str) -> Option<Self> {
        Self::find(|row| row.name == name)
    }

    /// A spelling of a ServerlessLLM index: `torch.float16`, `float16`, `f16` or `F16`.
    pub fn from_torch(name: &str) -> Option<Self> {
        let bare = name.strip_prefix("torch.").unwrap_or(name);
        Self::find(|row| {
            row.torch == Some(bare)
                || row.aliases.contains(&bare)
                || row.name.eq_ignore_ascii_case(bare)
        })
    }

    fn find(matches: impl Fn(&Row) -> bool) -> Option<Self> {
        Self::TABLE
            .iter()
            .position(matches)
            .map(|index| Self::ALL[index])
    }

    /// Bytes that `elements` take, or `None` on overflow or when they do not fill whole bytes.
    pub fn bytes_for(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(u64::from(self.bits()));
        match bits {
            Some(bits) => bits.is_multiple_of(8).then_some(bits / 8),
            // Sizes are counted in bytes, so 2^61 and more elements of one byte still fit.
            None if self.bits().is_multiple_of(8) => {
                elements.checked_mul(u64::from(self.bits() / 8))
            }
            None => None,
        }
    }

    /// Bytes of a contiguous tensor of `shape` (`[]` is a scalar), or `None` on overflow or when
    /// the elements do not fill whole bytes. A dimension of 0 gives 0 bytes whatever the others are.
    pub fn nbytes(self, shape: &[u64]) -> Option<u64> {
        if shape.contains(&0) {
            return Some(0);
        }
        let elements = shape
            .iter()
            .try_fold(1_u64, |product, &dim| product.checked_mul(dim))?;
        self.bytes_for(elements)
    }

    /// Why [`nbytes`](Self::nbytes) has no answer for `shape`, after "F4 of shape [3] ".
    pub(crate) fn why_no_size(self, shape: &[u64]) -> &'static str {
        let bits = shape
            .iter()
            .try_fold(u64::from(self.bits()), |bits, &dim| bits.checked_mul(dim));
        match bits {
            Some(_) => "does not take a whole number of bytes",
            None => "overflows 64 bits",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Dtype {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Dtype::from_safetensors(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown dtype {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_22_dtypes_and_every_spelling_is_unique() {
        assert_eq!(Dtype::ALL.len(), 22);
        for &dtype in Dtype::ALL {
            assert_eq!(Dtype::from_safetensors(dtype.name()), Some(dtype));
            assert_eq!(Dtype::from_torch(dtype.name()), Some(dtype));
            assert_eq!(Dtype::from_torch(&dtype.name().to_lowercase()), Some(dtype));
            if let Some(torch) = dtype.torch_name() {
                assert_eq!(Dtype::from_torch(torch), Some(dtype));
                assert_eq!(Dtype::from_torch(&format!("torch.{torch}")), Some(dtype));
            }
            for alias in dtype.row().aliases {
                assert_eq!(Dtype::from_torch(alias), Some(dtype), "{alias}");
            }
        }
        assert_eq!(Dtype::from_torch("float9"), None);
        assert_eq!(Dtype::from_safetensors("f32"), None);
    }

    #[test]
    fn the_reference_crate_agrees_on_names_and_bits() {
        for &dtype in Dtype::ALL {
            let theirs: safetensors::Dtype =
                serde_json::from_value(serde_json::Value::String(dtype.name().into())).unwrap();
            assert_eq!(theirs.bitsize(), dtype.bits() as usize, "{dtype}");
        }
    }

    #[test]
    fn sizes_do_not_wrap_and_sub_byte_types_fill_whole_bytes() {
        assert_eq!(Dtype::F32.nbytes(&[]), Some(4));
        assert_eq!(Dtype::F32.nbytes(&[3, 0, u64::MAX]), Some(0));
        assert_eq!(Dtype::F32.nbytes(&[1 << 62, 4]), None);
        assert_eq!(Dtype::U8.nbytes(&[1 << 62, 2]), Some(1 << 63));
        assert_eq!(Dtype::F64.nbytes(&[1 << 61]), None);
        assert_eq!(Dtype::F4.nbytes(&[2, 4]), Some(4));
        assert_eq!(Dtype::F4.nbytes(&[3]), None);
        assert_eq!(Dtype::F6E2M3.nbytes(&[2, 4]), Some(6));
    }
}
