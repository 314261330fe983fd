//! Configuration, tokenizer and other small files beside the weights, without which a checkpoint
//! cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use super::metadata::METADATA_FILE;
use crate::error::{Error, Result};
use crate::formats::serverlessllm::INDEX_FILE;

/// What their names end with.
const ENDINGS: [&str; 8] = [
    ".json",
    ".txt",
    ".model",
    ".jinja",
    ".tiktoken",
    ".vocab",
    ".bpe",
    ".py",
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
        if let Some(name) = name.to_str().filter(|name| is_companion(name))
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

/// Whether a file name is that of a configuration or tokenizer file, and not of weights or of an
/// index of them.
pub(crate) fn is_companion(name: &str) -> bool {
    let ours = name.ends_with(".index.json") || name == INDEX_FILE || name == METADATA_FILE;
    let plain = !name.starts_with('.') && !name.contains('/');
    plain && !ours && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_copied_and_weights_and_indexes_are_not() {
        for name in [
            "config.json",
            "tokenizer.model",
            "merges.txt",
            "chat_template.jinja",
        ] {
            assert!(is_companion(name), "{name}");
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
            "onnx/config.json",
        ] {
            assert!(!is_companion(name), "{name}");
        }
    }
}
