//! The index of a sharded SafeTensors checkpoint: which shard holds which tensor.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::de::SliceRead;

use super::Names;
use super::json::{Collector, Inspect, Text, collect, note, stop};
use crate::error::{Error, ErrorKind, Result};

/// Largest index file that is read, in bytes. Real ones have a few megabytes for a hundred
/// thousand tensors.
pub const MAX_INDEX_BYTES: u64 = 256 << 20;

/// A parsed `*.index.json`. Shard names are safe: relative, below the index's own folder.
pub struct ShardIndex {
    shards: Vec<Box<str>>,
    entries: Vec<(Box<str>, u32)>,
    names: Names,
}

impl ShardIndex {
    /// Parses the JSON of an index. Fields other than `weight_map` are ignored: `total_size` in
    /// particular is wrong in many published checkpoints.
    ///
    /// # Errors
    /// [`ErrorKind::BadIndex`], [`ErrorKind::DuplicateName`] for a tensor that is listed twice,
    /// [`ErrorKind::UnsafePath`] for a shard outside of the index's folder.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let visitor = collect(
            "the index",
            ErrorKind::BadIndex,
            SliceRead::new(json),
            IndexVisitor::default(),
        )?;
        let Some(entries) = visitor.entries else {
            return Err(Error::new(
                ErrorKind::BadIndex,
                "the index has no weight_map, so it lists no shards",
            ));
        };
        Self::new(entries, visitor.shards)
    }

    fn new(mut entries: Vec<(Box<str>, u32)>, mut shards: Vec<Box<str>>) -> Result<Self> {
        if entries.is_empty() {
            return Err(Error::new(
                ErrorKind::BadIndex,
                "the weight_map of the index is empty",
            ));
        }
        let names = Names::build(entries.len(), |at| &entries[at].0).map_err(|(_, at)| {
            Error::new(
                ErrorKind::DuplicateName,
                "duplicate tensor name: the weight_map lists it more than once",
            )
            .tensor(&*entries[at].0)
        })?;
        // By name, so that the order of sources does not depend on the order of the JSON; two
        // spellings of one file become one shard.
        let spelled = std::mem::take(&mut shards);
        for value in &spelled {
            shards.push(safe_relative(value)?);
        }
        let paths = shards.clone();
        shards.sort_unstable();
        shards.dedup();
        let position: Vec<u32> = paths
            .iter()
            .map(|path| shards.partition_point(|shard| shard < path) as u32)
            .collect();
        for entry in &mut entries {
            entry.1 = position[entry.1 as usize];
        }
        Ok(Self {
            shards,
            entries,
            names,
        })
    }

    /// Shard files, sorted, relative to the index's folder with `/` between components.
    pub fn shards(&self) -> &[Box<str>] {
        &self.shards
    }

    /// Tensor names, each with the position of its shard in [`shards`](Self::shards), in the
    /// order of the file.
    pub fn entries(&self) -> &[(Box<str>, u32)] {
        &self.entries
    }

    /// The position of a tensor in [`entries`](Self::entries).
    pub fn position(&self, tensor: &str) -> Option<usize> {
        self.names.find(tensor, |at| &self.entries[at].0)
    }
}

impl fmt::Debug for ShardIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardIndex")
            .field("shards", &self.shards)
            .field("tensors", &self.entries.len())
            .finish()
    }
}

/// Checks that `value` names something below the folder it is relative to, on every platform, and
/// drops its `.` components. Symbolic links are not looked at: those are the user's own (the Hub
/// cache is made of them).
pub(crate) fn safe_relative(value: &str) -> Result<Box<str>> {
    let bytes = value.as_bytes();
    let drive = matches!(bytes, [letter, b':', ..] if letter.is_ascii_alphabetic());
    let why = if value.is_empty() {
        "it is empty"
    } else if value.starts_with('/') || drive {
        "it is absolute"
    } else if value.contains('\\') {
        "it has a backslash"
    } else if value.contains('\0') {
        "it has a NUL character"
    } else if value.split('/').any(|part| part == "..") {
        "it leaves the folder through .."
    } else {
        let parts: Vec<&str> = value
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .collect();
        if !value.ends_with('/') && !parts.is_empty() {
            return Ok(parts.join("/").into());
        }
        "it names a folder"
    };
    Err(Error::new(
        ErrorKind::UnsafePath,
        format!(
            "the index names the shard {}, which is refused: {why}",
            crate::text::quoted(value)
        ),
    )
    .help("shards must lie in the folder of the index or below it"))
}

#[derive(Default)]
struct IndexVisitor {
    shards: Vec<Box<str>>,
    entries: Option<Vec<(Box<str>, u32)>>,
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
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(is_map) = map.next_key_seed(Inspect(|key: &str| key == "weight_map"))? {
            if !is_map {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if self.entries.is_some() {
                self.failure = Some(Error::new(
                    ErrorKind::BadIndex,
                    "the index has weight_map more than once",
                ));
                return Err(stop());
            }
            let seed = WeightMap {
                shards: &mut self.shards,
                failure: &mut self.failure,
            };
            let entries = map.next_value_seed(seed).map_err(|error| {
                let message =
                    "the weight_map of the index must be a complete object of tensor names \
                               and shard files";
                note(&mut self.failure, ErrorKind::BadIndex, message, error)
            })?;
            self.entries = Some(entries);
        }
        Ok(())
    }
}

struct WeightMap<'v> {
    shards: &'v mut Vec<Box<str>>,
    failure: &'v mut Option<Error>,
}

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = Vec<(Box<str>, u32)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = Vec<(Box<str>, u32)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensor names and shard files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Self { shards, failure } = self;
        let mut known = std::collections::HashMap::<Box<str>, u32>::new();
        let mut entries: Vec<(Box<str>, u32)> = Vec::new();
        while let Some(name) = map.next_key_seed(Text)? {
            let last = entries.last().map(|entry| entry.1);
            let find = |file: &str| {
                // Neighbours mostly share a shard.
                if let Some(last) = last.filter(|&last| *shards[last as usize] == *file) {
                    return last;
                }
                if let Some(&shard) = known.get(file) {
                    return shard;
                }
                let shard = shards.len() as u32;
                shards.push(file.into());
                known.insert(file.into(), shard);
                shard
            };
            match map.next_value_seed(Inspect(find)) {
                Ok(shard) => entries.push((name, shard)),
                Err(error) => {
                    let message = "the weight_map of the index must give a shard file for it";
                    let error = note(failure, ErrorKind::BadIndex, message, error);
                    *failure = failure.take().map(|error| error.tensor(name));
                    return Err(error);
                }
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_sorted_and_entries_point_to_them() {
        let index = ShardIndex::parse(
            br#" {"metadata": {"total_size": 1e99, "x": [[{}]]}, "weight_map":
               {"b": "z.safetensors", "a\u0041": "sub/a.safetensors", "c": "./z.safetensors"}} "#,
        )
        .unwrap();
        let shards: Vec<&str> = index.shards().iter().map(|shard| &**shard).collect();
        assert_eq!(shards, ["sub/a.safetensors", "z.safetensors"]);
        let at = index.position("aA").unwrap();
        assert_eq!((&*index.entries()[at].0, index.entries()[at].1), ("aA", 0));
        assert_eq!(index.entries()[index.position("c").unwrap()].1, 1);
        assert_eq!(index.position("d"), None);
    }

    #[test]
    fn unsafe_paths_are_refused_and_shown() {
        for value in [
            "../x",
            "a/../../x",
            "..",
            "/etc/passwd",
            "C:/x",
            "c:x",
            "a\\b",
            "a\0b",
            "",
            ".",
            "a/",
        ] {
            let json = serde_json::json!({"weight_map": {"w": value}}).to_string();
            let error = ShardIndex::parse(json.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnsafePath, "{value:?}");
            assert!(error.to_string().contains(&format!("{value:?}")), "{error}");
        }
        for value in ["..x", "x..", "a/b/c", "./a", "ab:c", "모델.safetensors"] {
            let json = serde_json::json!({"weight_map": {"w": value}}).to_string();
            assert!(ShardIndex::parse(json.as_bytes()).is_ok(), "{value:?}");
        }
    }

    #[test]
    fn malformed_indexes_have_their_own_messages() {
        let cases = [
            ("", ErrorKind::BadIndex, "ends in the middle"),
            ("[]", ErrorKind::BadIndex, "another shape"),
            ("{}", ErrorKind::BadIndex, "no weight_map"),
            (r#"{"weight_map": null}"#, ErrorKind::BadIndex, "weight_map"),
            (r#"{"weight_map": {}}"#, ErrorKind::BadIndex, "empty"),
            (r#"{"weight_map": {"w": 3}}"#, ErrorKind::BadIndex, "\"w\""),
            (r#"{"weight_map": {"w": "#, ErrorKind::BadIndex, "\"w\""),
            (
                r#"{"weight_map": {"w": "a"}"#,
                ErrorKind::BadIndex,
                "ends in",
            ),
            (
                r#"{"weight_map": {"w": "a"}} x"#,
                ErrorKind::BadIndex,
                "not valid",
            ),
            (
                "{\"weight_map\": {\"\u{1}\": \"a\"}}",
                ErrorKind::BadIndex,
                "not valid",
            ),
            (
                r#"{"weight_map": {"w": "a"}, "weight_map": {"v": "a"}}"#,
                ErrorKind::BadIndex,
                "more than once",
            ),
            (
                r#"{"weight_map": {"w": "a", "v": "a", "w": "b"}}"#,
                ErrorKind::DuplicateName,
                "tensor \"w\": duplicate",
            ),
        ];
        for (json, kind, text) in cases {
            let error = ShardIndex::parse(json.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), kind, "{json}: {error}");
            assert!(error.to_string().contains(text), "{json}: {error}");
        }
        let error = ShardIndex::parse(b"{\"weight_map\": {\"\xff\": \"a\"}}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadIndex);
    }
}
