//! Configuration, tokenizer and other small files beside the weights, without which a checkpoint
//! cannot be used.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::target::METADATA_FILE;
use crate::error::{Error, Result};
use crate::formats::serverlessllm::INDEX_FILE;

/// What their names end with.
const ENDINGS: [&str; 12] = [
    ".json",
    ".txt",
    ".model",
    ".jinja",
    ".tiktoken",
    ".vocab",
    ".bpe",
    ".py",
    ".md",
    ".yaml",
    ".yml",
    ".spm",
];

/// A file to copy, and its length in bytes when it was found.
#[derive(Debug, Clone)]
pub(super) struct Companion {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) len: u64,
}

/// Those of a folder, by name. Links of the Hub cache are followed.
pub(super) fn companions(folder: &Path) -> Result<Vec<Companion>> {
    let failed = |error: io::Error| Error::io("list", folder, error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let name = entry.file_name();
        if let Some(name) = is_companion(&name)
            && let Ok(metadata) = path.metadata()
            && metadata.is_file()
        {
            found.push(Companion {
                path: path.clone(),
                name: name.to_owned(),
                len: metadata.len(),
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The name of a configuration or tokenizer file, and not of weights or an index.
fn is_companion(name: &OsStr) -> Option<&str> {
    let name = name.to_str()?;
    let licence = name == "LICENSE" || name == "NOTICE";
    let known = licence || ENDINGS.iter().any(|ending| name.ends_with(ending));
    let ours = name.ends_with(".index.json") || name == INDEX_FILE || name == METADATA_FILE;
    (!name.starts_with('.') && known && !ours).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_copied_and_weights_and_indexes_are_not() {
        let is = |name: &str| is_companion(OsStr::new(name)).is_some();
        for name in [
            "config.json",
            "tokenizer.model",
            "merges.txt",
            "chat_template.jinja",
            "LICENSE",
        ] {
            assert!(is(name), "{name}");
        }
        for name in [
            "model.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin.index.json",
            "tensor_index.json",
            "safetensors_metadata.json",
            "tensor.data_0",
            "pytorch_model.bin",
            ".gitattributes",
            ".x.json",
        ] {
            assert!(!is(name), "{name}");
        }
    }
}
