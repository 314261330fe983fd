//! Configuration, tokenizer and other small files beside the weights, without which a checkpoint
//! cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use crate::converters::names::is_companion;
use crate::error::{Error, Result};
use crate::storage::local::open_error;

/// A file to copy, and its length in bytes when it was found.
#[derive(Debug, Clone)]
pub(super) struct Companion {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) len: u64,
}

/// What lies beside the weights under names as of configuration or tokenizer.
#[derive(Debug, Default)]
pub(super) struct Companions {
    /// To be copied, by name.
    pub(super) files: Vec<Companion>,
    /// No regular files, or of names that are not UTF-8.
    pub(super) skipped: Vec<PathBuf>,
}

impl Companions {
    /// Those of a folder. Links of the Hub cache are followed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for a link whose target is missing, with
    /// both: without the tokenizer a copy is no use, and nobody would miss it until then.
    pub(super) fn of(folder: &Path) -> Result<Self> {
        let failed = |error: io::Error| Error::io("list", folder, error);
        let mut found = Self::default();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, name) = (entry.path(), entry.file_name());
            if !is_companion(&name.to_string_lossy()) {
                continue;
            }
            let metadata = path.metadata().map_err(|error| open_error(&path, error))?;
            match name.to_str().filter(|_| metadata.is_file()) {
                Some(name) => found.files.push(Companion {
                    name: name.to_owned(),
                    len: metadata.len(),
                    path,
                }),
                None => found.skipped.push(path),
            }
        }
        found.files.sort_by(|a, b| a.name.cmp(&b.name));
        found.skipped.sort_unstable();
        Ok(found)
    }
}
