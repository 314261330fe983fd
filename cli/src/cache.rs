//! The folder that the programs keep samples and copies in, and the names in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
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

/// A converted copy of a model.
#[derive(Debug, Serialize)]
pub struct Copied {
    pub id: String,
    pub commit: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// The converted copies that are there, sorted; none where the folder does not exist.
pub fn copies() -> Result<Vec<Copied>> {
    let root = root()?;
    let failed = |error| tensora::Error::io("list", &root, error);
    let entries = match std::fs::read_dir(&root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut copies = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('@'));
        let path = entry.path().join("serverlessllm");
        if let Some((slug, commit)) = parts
            && let Ok(files) = std::fs::read_dir(&path)
        {
            let sizes = files
                .flatten()
                .filter_map(|file| Some(file.metadata().ok()?.len()));
            copies.push(Copied {
                id: slug.replacen("--", "/", 1),
                // Behind it is in how many partitions the copy is.
                commit: commit.split('+').next().unwrap_or(commit).to_owned(),
                bytes: sizes.sum(),
                path,
            });
        }
    }
    copies.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(copies)
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
