//! Names that this library gives to files, and the files under them. What has another name belongs
//! to somebody else.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use crate::formats::serverlessllm::{INDEX_FILE, is_partition_file};

/// Keeps what a checkpoint says beside its tensors, where the target has no place for it: an object
/// of strings, the `__metadata__`; and, as JSON under a key of ours, what an index has more.
pub const METADATA_FILE: &str = "safetensors_metadata.json";

/// What the names of configuration and tokenizer files end with.
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

/// Whether a name is one that a conversion gives to a data file, an index or kept metadata.
pub(super) fn is_output(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_shard = |name: &str| {
        let numbers = name
            .strip_prefix("model-")
            .and_then(|name| name.strip_suffix(".safetensors"))
            .and_then(|name| name.split_once("-of-"));
        numbers.is_some_and(|(number, count)| digits(number) && digits(count))
    };
    name == INDEX_FILE
        || name == METADATA_FILE
        || is_partition_file(name)
        || name == "model.safetensors"
        || name == "model.safetensors.index.json"
        || is_shard(name)
}

/// Whether a file that is not finished may be ours by the name that it will have: that of an output
/// or of what is copied along.
pub(super) fn is_written_here(name: &str) -> bool {
    let is_weights = name.starts_with("model") && name.ends_with(".safetensors");
    let is_index = name.ends_with(".safetensors.index.json");
    is_output(name) || is_weights || is_index || is_companion(name)
}

/// Whether a file name is that of a configuration or tokenizer file, and not of weights or of an
/// index of them.
pub fn is_companion(name: &str) -> bool {
    let ours = name.ends_with(".index.json") || name == INDEX_FILE || name == METADATA_FILE;
    let plain = !name.starts_with('.') && !name.contains('/');
    plain && !ours && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Of `.NAME.tmp-PID-N`, the form of temporary names, the name and the process.
pub(super) fn temporary(name: &OsStr) -> Option<(&str, u32)> {
    let (name, numbers) = name.to_str()?.strip_prefix('.')?.rsplit_once(".tmp-")?;
    let (pid, n) = numbers.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let ours = !name.is_empty() && is_number(pid) && is_number(n);
    // No process has a number that is larger.
    ours.then(|| (name, pid.parse().unwrap_or(u32::MAX)))
}

/// Reads a file that is one: to open a pipe would wait for somebody who writes into it.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    match path.metadata()?.is_file() {
        true => std::fs::read(path),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this is not a regular file",
        )),
    }
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

    #[test]
    fn only_names_that_conversions_give_are_removed() {
        for name in [
            "tensor_index.json",
            "tensor.data_0",
            "tensor.data_17",
            "model.safetensors",
            "model-00001-of-00003.safetensors",
            "model.safetensors.index.json",
        ] {
            assert!(is_output(name), "{name}");
        }
        for name in [
            "config.json",
            "tensor.data_",
            "tensor.data_x",
            "tensor.data_007",
            "adapter_model.safetensors",
            "model-a-of-b.safetensors",
            "my model.safetensors",
        ] {
            assert!(!is_output(name), "{name}");
        }
    }

    #[test]
    fn unfinished_files_are_known_by_the_names_that_they_will_have() {
        for name in ["model_ema.safetensors", "tensor.data_1", "config.json"] {
            assert!(is_written_here(name), "{name}");
        }
        for name in ["film.mkv", "tensor.data_01", "x", "other.safetensors"] {
            assert!(!is_written_here(name), "{name}");
        }
        assert_eq!(temporary(".a.b.tmp-1-2".as_ref()), Some(("a.b", 1)));
        assert_eq!(
            temporary(".a.tmp-99999999999-2".as_ref()).unwrap().1,
            u32::MAX
        );
        for name in [
            "a.tmp-1-2",
            ".tmp-1-2",
            ".a.tmp-1",
            ".a.tmp-1-2a",
            ".a.tmp--2",
        ] {
            assert_eq!(temporary(name.as_ref()), None, "{name}");
        }
    }
}
