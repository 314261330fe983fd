//! What a checkpoint says beside its tensors, and where a conversion keeps it: `__metadata__` in
//! headers, more in the `metadata` of an index, and a small file where the target has neither.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::Checkpoint;
use crate::converters::names::{METADATA_FILE, read_file};
use crate::converters::{OutputPlan, SafetensorsOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Layout;
use crate::formats::index::MAX_INDEX_BYTES;
use crate::storage::local::open_error;

/// In that file, the `metadata` of the index, without the size, as a text of JSON. Numbers in it go
/// through 64 bits: integers beyond those become the nearest floating-point number.
const INDEX_KEY: &str = "tensora.index_metadata";

/// The size that an index gives, which is worked out anew.
const TOTAL_SIZE: &str = "total_size";

/// Largest such file that is read: as large as a SafeTensors header can be.
const MAX_METADATA_BYTES: u64 = 100_000_000;

/// A key of `__metadata__` that has different values in the files of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetadataConflict {
    /// The key.
    pub key: String,
    /// The value that was kept: the first file's.
    pub kept: String,
}

/// Everything that is to be kept.
#[derive(Debug)]
pub(super) struct Metadata {
    /// The `__metadata__`.
    pub(super) headers: BTreeMap<String, String>,
    /// What the index has beside the size.
    index: Map<String, Value>,
}

impl Metadata {
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let root = checkpoint.root();
        // Sources that are no files have nothing beside them.
        let kept = match root.as_os_str().is_empty() {
            true => None,
            false => kept_in(&root.join(METADATA_FILE))?,
        };
        let (kept_headers, kept_index) = match kept {
            Some((headers, index)) => (Some(headers), index),
            None => (None, Map::new()),
        };
        let standard = || SafetensorsOptions::default().metadata;
        let headers = match checkpoint.layout() {
            Layout::SafeTensors => checkpoint.metadata().clone(),
            Layout::ServerlessLlm => kept_headers.unwrap_or_else(standard),
        };
        let index = match checkpoint.safetensors_index() {
            Some(path) => index_metadata(path),
            None => kept_index,
        };
        Ok(Self { headers, index })
    }

    /// Puts what the index had into that of the target.
    ///
    /// Gives the bytes of a file for what has no place in the target.
    pub(super) fn place(&self, layout: Layout, plan: &mut OutputPlan) -> Option<Vec<u8>> {
        let mut file = BTreeMap::new();
        match (&mut plan.index, layout) {
            (_, Layout::ServerlessLlm) => file.clone_from(&self.headers),
            (Some(index), Layout::SafeTensors) if !self.index.is_empty() => {
                index.bytes = with_extras(&index.bytes, &self.index);
                return None;
            }
            _ => {}
        }
        // What the layout's own default brings back needs no file.
        let is_standard =
            file == SafetensorsOptions::default().metadata || layout == Layout::SafeTensors;
        if self.index.is_empty() && is_standard {
            return None;
        }
        if !self.index.is_empty() {
            let text = Value::Object(self.index.clone()).to_string();
            file.insert(INDEX_KEY.to_owned(), text);
        }
        Some(pretty(&file))
    }
}

/// The keys that have more than one value, with the value that is kept.
pub(super) fn conflicts(checkpoint: &Checkpoint) -> Vec<MetadataConflict> {
    let keys = checkpoint.metadata_conflicts().iter();
    keys.map(|key| MetadataConflict {
        key: key.clone(),
        kept: checkpoint.metadata().get(key).cloned().unwrap_or_default(),
    })
    .collect()
}

/// What an index says beside tensors and size. It was read before: what cannot be understood now is
/// of no account for loading either.
fn index_metadata(path: &Path) -> Map<String, Value> {
    #[derive(Deserialize)]
    struct Index {
        #[serde(default)]
        metadata: Map<String, Value>,
    }
    let is_small = path
        .metadata()
        .is_ok_and(|found| found.len() <= MAX_INDEX_BYTES);
    let bytes = if is_small { read_file(path).ok() } else { None };
    let parsed = bytes.map(|bytes| serde_json::from_slice::<Index>(&bytes));
    match parsed {
        Some(Ok(Index { mut metadata })) => {
            metadata.remove(TOTAL_SIZE);
            metadata
        }
        Some(Err(error)) => {
            tracing::warn!(index = %crate::text::path(path), "its metadata are lost: {error}");
            Map::new()
        }
        None => Map::new(),
    }
}

/// An index of ours with more metadata.
fn with_extras(index: &[u8], extras: &Map<String, Value>) -> Vec<u8> {
    let mut value: Value = serde_json::from_slice(index).expect("an index of ours is JSON");
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for (key, extra) in extras {
            metadata.entry(key).or_insert_with(|| extra.clone());
        }
    }
    pretty(&value)
}

/// `__metadata__`, and what an index has more.
type Kept = (BTreeMap<String, String>, Map<String, Value>);

/// What an earlier conversion has kept.
fn kept_in(path: &Path) -> Result<Option<Kept>> {
    let found = match path.metadata() {
        Ok(found) => found,
        Err(error) => {
            // A link to what is gone was to be read as much as any other companion.
            let is_there = path.symlink_metadata().is_ok();
            return match is_there {
                true => Err(open_error(path, error)),
                false => Ok(None),
            };
        }
    };
    let refused = |message: String| Error::new(ErrorKind::BadHeader, message).at(path);
    let remove = "remove it to convert without these metadata";
    if !found.is_file() {
        let what = match found.is_dir() {
            true => "a folder",
            false => "a special file",
        };
        let message = format!("this is {what}, not a file that keeps metadata of SafeTensors");
        return Err(refused(message).help(remove));
    }
    if found.len() > MAX_METADATA_BYTES {
        return Err(refused(format!(
            "metadata have at most {MAX_METADATA_BYTES} bytes, and this file has {}",
            found.len()
        ))
        .help(remove));
    }
    let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
    let bad = |error: serde_json::Error| {
        refused("the metadata to keep are not a JSON object of strings".into())
            .because(error)
            .help("remove the file to convert without them")
    };
    let mut headers: BTreeMap<String, String> = serde_json::from_slice(&bytes).map_err(bad)?;
    // Anything else under the key is the user's own, and was in the headers.
    let index = headers.get(INDEX_KEY);
    let index: Option<Map<String, Value>> = index.and_then(|text| serde_json::from_str(text).ok());
    if index.is_some() {
        headers.remove(INDEX_KEY);
    }
    Ok(Some((headers, index.unwrap_or_default())))
}

fn pretty(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("strings are always valid JSON");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::converters::{ConvertOptions, convert};

    /// Two shards whose metadata differ in one key, and an index that says more.
    fn write_shards(folder: &Path) {
        std::fs::create_dir(folder).unwrap();
        for (shard, author) in [("one", "ann"), ("two", "bob")] {
            let header = format!(
                r#"{{"__metadata__": {{"format": "pt", "author": "{author}", "{shard}": "x"}},
                    "{shard}": {{"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}}}"#
            );
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(b"1234");
            std::fs::write(folder.join(format!("{shard}.safetensors")), bytes).unwrap();
        }
        let index = r#"{"metadata": {"total_size": 7, "base": "m", "more": {"a": [1, 2]}},
            "weight_map": {"one": "one.safetensors", "two": "two.safetensors"}}"#;
        std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    }

    fn index_of(folder: &Path) -> Value {
        let path = folder.join("model.safetensors.index.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn what_few_may_read_stays_so() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tempfile::tempdir().unwrap();
        let (source, target) = (scratch.path().join("a"), scratch.path().join("b"));
        write_shards(&source);
        let config = source.join("config.json");
        std::fs::write(&config, b"{}").unwrap();
        std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).unwrap();
        let checkpoint = Checkpoint::open(&source).unwrap();
        convert(&checkpoint, &target, &ConvertOptions::default()).unwrap();
        let copied = target.join("config.json").metadata().unwrap();
        assert_eq!(copied.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn metadata_survive_every_way_there_and_back() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        write_shards(&at("a"));
        let conflict = MetadataConflict {
            key: "author".into(),
            kept: "ann".into(),
        };
        for (middle, to, partitions) in [
            ("partitions", Layout::ServerlessLlm, None),
            ("single", Layout::SafeTensors, Some(1)),
            ("shards", Layout::SafeTensors, Some(2)),
        ] {
            let options = ConvertOptions {
                to: Some(to),
                partitions,
                ..ConvertOptions::default()
            };
            let source = Checkpoint::open(at("a")).unwrap();
            let report = convert(&source, at(middle), &options).unwrap();
            assert_eq!(report.metadata_conflicts, std::slice::from_ref(&conflict));
            let back = format!("{middle}-back");
            let options = ConvertOptions {
                to: Some(Layout::SafeTensors),
                partitions: Some(2),
                ..ConvertOptions::default()
            };
            let source = Checkpoint::open(at(middle)).unwrap();
            let report = convert(&source, at(&back), &options).unwrap();
            assert!(report.metadata_conflicts.is_empty());
            let index = index_of(&at(&back));
            assert_eq!(index["metadata"]["total_size"], 8, "{middle}");
            assert_eq!(index["metadata"]["base"], "m", "{middle}");
            assert_eq!(index["metadata"]["more"]["a"][1], 2, "{middle}");
            assert!(!at(&back).join(METADATA_FILE).exists());
            let again = Checkpoint::open(at(&back)).unwrap();
            let keys: Vec<_> = again.metadata().keys().map(String::as_str).collect();
            assert_eq!(keys, ["author", "format", "one", "two"], "{middle}");
            assert_eq!(again.metadata()["author"], "ann");
        }
    }
}
