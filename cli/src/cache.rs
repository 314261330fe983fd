//! The folder that the programs keep samples and copies in, and the names in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::folders::Folder;

/// `TENSORA_CACHE_DIR`, else `tensora` in the cache folder of the operating system.
pub fn root() -> Result<PathBuf> {
    Folder::CACHE
        .path()
        .context("the home folder is unknown; set TENSORA_CACHE_DIR to a folder to keep samples in")
}

/// Where the converted copy of a model's snapshot lies.
///
/// Ids never hold `--`, so replacing the slash by it keeps different ids apart, and a snapshot's
/// name is its commit, so a new revision is a new folder.
pub fn converted(id: &str, snapshot: &Path) -> Result<PathBuf> {
    let revision = snapshot
        .file_name()
        .context("the snapshot of a model has a name")?;
    let mut slug = OsString::from(id.replace('/', "--"));
    slug.push("@");
    slug.push(revision);
    Ok(root()?.join(slug).join("serverlessllm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_revisions_do_not_collide() {
        let names = [
            ("a/b-c", "1"),
            ("a-b/c", "1"),
            ("a/b-c", "2"),
            ("a-b-c", "1"),
        ]
        .map(|(id, commit)| converted(id, Path::new("/s").join(commit).as_path()).unwrap());
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{}", name.display());
        }
    }
}
