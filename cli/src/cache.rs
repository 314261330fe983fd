//! The folder that the programs keep samples and copies in, and the names in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tensora::{Checkpoint, Layout, TensorMeta, text};

use crate::folders::Folder;

/// `TENSORA_CACHE_DIR`, else `tensora` in the cache folder of the operating system.
pub fn root() -> Result<PathBuf> {
    Folder::CACHE
        .path()
        .context("the home folder is unknown; set TENSORA_CACHE_DIR to a folder to keep samples in")
}

/// Where the converted copy of a model's snapshot lies: six-element entries, in so many partitions.
///
/// Ids never hold `--`, so replacing the slash by it keeps different ids apart; a snapshot's name is
/// its commit, so a new revision is a new folder; and neither holds `@` or `+`.
pub fn converted(id: &str, snapshot: &Path, partitions: u64) -> Result<PathBuf> {
    let revision = snapshot
        .file_name()
        .context("the snapshot of a model has a name")?;
    let mut slug = OsString::from(id.replace('/', "--"));
    slug.push("@");
    slug.push(revision);
    slug.push(format!("+tensora-{partitions}"));
    Ok(root()?.join(slug).join("serverlessllm"))
}

/// What is wrong with a copy that is there: it has to open, and to hold the tensors of its original,
/// as far as headers, indexes and sizes tell. `None` for one that is good.
pub fn objection(copy: &Path, original: &Checkpoint) -> Option<String> {
    let opened = Checkpoint::options()
        .layout(Layout::ServerlessLlm)
        .open(copy);
    let copy = match opened {
        Ok(copy) => copy,
        Err(error) => return Some(format!("{error:#}")),
    };
    let same = |ours: &TensorMeta, theirs: &TensorMeta| {
        (ours.dtype, &ours.shape) == (theirs.dtype, &theirs.shape)
    };
    let differs = original.tensors().iter().find(|ours| {
        let theirs = copy.tensor(&ours.name);
        theirs.is_none_or(|theirs| !same(ours, theirs))
    });
    let (found, wanted) = (copy.tensors().len(), original.tensors().len());
    match differs {
        Some(tensor) => Some(format!(
            "its {} is missing, or has another type or shape",
            text::name(&tensor.name)
        )),
        None if found != wanted => Some(format!("it holds {found} tensors, not {wanted}")),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_revisions_and_partitions_do_not_collide() {
        let names = [
            ("a/b-c", "1", 1),
            ("a-b/c", "1", 1),
            ("a/b-c", "2", 1),
            ("a-b-c", "1", 1),
            ("a/b-c", "1", 2),
            ("a/b-c", "1", 11),
        ]
        .map(|(id, commit, partitions)| {
            converted(id, Path::new("/s").join(commit).as_path(), partitions).unwrap()
        });
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{}", name.display());
        }
    }
}
