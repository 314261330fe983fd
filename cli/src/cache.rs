//! The folder that the programs keep samples and copies in.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use tensora::{Error, ErrorKind};

use crate::folders::Folder;

/// `TENSORA_CACHE_DIR`, else `tensora` in the cache folder of the operating system.
pub fn root() -> Result<PathBuf> {
    Folder::CACHE.path().context(
        "the home folder is unknown; set TENSORA_CACHE_DIR to a folder to keep samples and copies in",
    )
}

/// Says what to do about a failure to write below the cache folder, which the user may never have
/// named.
pub fn advise(error: Error) -> Error {
    let is_below = |root| error.path().is_some_and(|path| path.starts_with(root));
    match error.kind() {
        ErrorKind::Io | ErrorKind::NotFound if root().is_ok_and(is_below) => error.help(
            "set TENSORA_CACHE_DIR to a folder that you may write to, on a disk with enough space",
        ),
        _ => error,
    }
}
