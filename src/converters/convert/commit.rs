//! From parts to a checkpoint: the order of renames and removals, each step of which a crash may
//! follow.
//!
//! 1. The journal becomes [`INCOMPLETE_FILE`]: from here on readers refuse the folder.
//! 2. What an earlier checkpoint left, and the new one has no use for, is removed.
//! 3. Every file gets its name, the index last, with the folder flushed before and after it.
//! 4. [`INCOMPLETE_FILE`] goes: the checkpoint is there.
//!
//! All bytes are on disk before the first step, so that whoever continues has only to rename.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use super::metadata::METADATA_FILE;
use super::parts::{is_part, part_path};
use crate::converters::OutputPlan;
use crate::converters::folder::OutputFolder;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::serverlessllm::{INDEX_FILE, is_partition_file};
use crate::formats::{INCOMPLETE_FILE, JOURNAL_FILE};

/// Puts every file of `plan`, and `others` before its index, into place.
pub(super) fn commit(folder: &OutputFolder, plan: &OutputPlan, others: &[String]) -> Result<()> {
    let path = folder.path();
    let (journal, mark) = (path.join(JOURNAL_FILE), path.join(INCOMPLETE_FILE));
    let obsolete = obsolete(path, plan, others)?;
    let data = plan.files.iter().map(|file| &file.name);
    let index = plan.index.iter().map(|index| &index.name);
    let replaces = !obsolete.is_empty()
        || data
            .clone()
            .chain(index.clone())
            .any(|name| path.join(name).symlink_metadata().is_ok());
    if journal.symlink_metadata().is_ok() {
        folder.put_in_place(&journal, &mark)?;
        folder.sync()?;
    }
    if replaces {
        // To take the new files back would leave less than there was.
        folder.leave();
    }
    for name in obsolete {
        remove(&path.join(name))?;
    }
    for name in index.clone() {
        // Readers that do not know the mark see no index of files that are being replaced.
        if part_path(path, name).symlink_metadata().is_ok() {
            remove(&path.join(name))?;
        }
    }
    for name in data.chain(others) {
        place(folder, name)?;
    }
    folder.sync()?;
    for name in index {
        place(folder, name)?;
    }
    folder.sync()?;
    remove(&mark)?;
    folder.sync()?;
    folder.sync_itself()
}

/// Whether everything that a commit was interrupted with still lies in the folder, as parts or in
/// place, as far as lengths tell.
pub(super) fn is_all_there(folder: &Path, plan: &OutputPlan, others: &[String]) -> bool {
    let len = |name: &str| {
        let part = part_path(folder, name).metadata();
        let found = part.or_else(|_| folder.join(name).metadata());
        found.ok().map(|found| found.len())
    };
    let index = plan.index.iter();
    plan.files
        .iter()
        .all(|file| len(&file.name) == Some(file.len))
        && index
            .map(|index| &index.name)
            .chain(others)
            .all(|name| len(name).is_some())
}

/// Removes parts and journals of an earlier conversion that is not continued.
pub(super) fn forget_earlier(folder: &Path) -> Result<()> {
    for name in names(folder)? {
        if is_part(&name) || name == JOURNAL_FILE {
            remove(&folder.join(name))?;
        }
    }
    Ok(())
}

fn place(folder: &OutputFolder, name: &str) -> Result<()> {
    let (part, target) = (part_path(folder.path(), name), folder.path().join(name));
    // A run before this one may have come as far as here.
    if part.symlink_metadata().is_err() && target.symlink_metadata().is_ok() {
        return Ok(());
    }
    folder.put_in_place(&part, &target)
}

/// Files of checkpoints under the names that conversions give, which are not of this one.
fn obsolete(folder: &Path, plan: &OutputPlan, others: &[String]) -> Result<Vec<String>> {
    let data = plan.files.iter().map(|file| &file.name);
    let index = plan.index.iter().map(|index| &index.name);
    let planned: HashSet<&String> = data.chain(index).chain(others).collect();
    let mut found = names(folder)?;
    found.retain(|name| is_output(name) && !planned.contains(name));
    // Indexes first: without one, the rest is no checkpoint.
    found.sort_by_key(|name| !name.ends_with(".json"));
    Ok(found)
}

/// Whether a name is one that a conversion gives to a data file or an index.
fn is_output(name: &str) -> bool {
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

fn names(folder: &Path) -> Result<Vec<String>> {
    let failed = |error: io::Error| Error::io("list", folder, error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        // What is not UTF-8 is not ours.
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Refuses a folder that holds the input: its files would be replaced while they are read.
pub(super) fn refuse_input(
    sources: impl Iterator<Item = impl AsRef<Path>>,
    out: &Path,
) -> Result<()> {
    let Ok(out_real) = out.canonicalize() else {
        return Ok(());
    };
    for source in sources {
        let within = |path: &Path| {
            let parent = path.parent().map(|parent| parent.canonicalize());
            matches!(parent, Some(Ok(parent)) if parent == out_real)
        };
        let source = source.as_ref();
        let real = source.canonicalize().unwrap_or_default();
        if within(source) || within(&real) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the output folder is the one that is read from",
            )
            .at(out)
            .help("choose another folder"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            "adapter_model.safetensors",
            "model-a-of-b.safetensors",
            "my model.safetensors",
        ] {
            assert!(!is_output(name), "{name}");
        }
    }
}
