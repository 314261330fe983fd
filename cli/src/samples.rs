//! Samples that are made once and kept in the cache folder.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use tensora::converters::{OutputFolder, OutputTensor};
use tensora::sample::{SampleSpec, write_sample_in};
use tensora::{Checkpoint, Error, Layout};

use crate::cleanup::Unfinished;
use crate::progress::Progress;
use crate::{cache, size};

/// A sample of `total_bytes` in the cache folder, made now where it is not there, or is not what
/// it should be.
pub fn cached(total_bytes: u64, layout: Layout) -> Result<PathBuf> {
    let spec = SampleSpec {
        total_bytes,
        layout,
        ..SampleSpec::default()
    };
    let parent = cache::root()?.join("samples").join(key(&spec));
    Ok(in_folder(&parent, &spec).map_err(cache::advise)?)
}

fn in_folder(parent: &Path, spec: &SampleSpec) -> tensora::Result<PathBuf> {
    let layout = spec.layout;
    let folder = parent.join(layout.name());
    if is_sample(&folder, spec)? {
        return Ok(folder);
    }
    let what = format!(
        "making a sample of {} ({layout})",
        size::bytes(spec.total_bytes)
    );
    let _progress = Progress::waiting(what);
    remove_leftovers(parent, &format!(".{layout}.tmp-"));
    // Beside its place, so that the sample appears whole and at once. Process ids repeat in
    // containers, so that a run that was killed may have left the same one.
    let now = SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_nanos();
    let staging = parent.join(format!(".{layout}.tmp-{}-{now}", std::process::id()));
    let unfinished = Unfinished::claim_empty(&staging)?;
    write_sample_in(&unfinished, spec)?;
    unfinished.release(|staging| put_in_place(staging, &folder, spec))?;
    Ok(folder)
}

/// Removes folders with such names that runs that were killed have left. Only those with a lock that
/// nobody holds: others are being made, or just going to their place.
pub fn remove_leftovers(parent: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(prefix))
            && path.join(OutputFolder::LOCK_NAME).is_file();
        if is_ours && let Ok(_held) = OutputFolder::claim(&path) {
            // What cannot be removed takes space, and is in nobody's way.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn put_in_place(staging: &Path, folder: &Path, spec: &SampleSpec) -> tensora::Result<()> {
    let failed = |action: &str, error| Error::io(action, folder, error);
    for last in [false, true] {
        match std::fs::rename(staging, folder) {
            Ok(()) => return Ok(()),
            Err(error) if last => return Err(failed("put the sample at", error)),
            // Somebody was faster, or something else is there. It lies in our own cache.
            Err(_) if is_sample(folder, spec)? => {
                let gone = std::fs::remove_dir_all(staging);
                return gone.map_err(|error| Error::io("remove", staging, error));
            }
            Err(_) => {
                let removed = std::fs::remove_dir_all(folder);
                removed.map_err(|error| failed("replace what is not the sample at", error))?;
            }
        }
    }
    Ok(())
}

/// Samples of one name hold the same bytes, whatever version wrote them.
fn key(spec: &SampleSpec) -> String {
    format!(
        "{}-{}x{}",
        spec.dtype.name().to_lowercase(),
        spec.shards,
        spec.total_bytes
    )
}

/// Whether the folder holds the sample, as far as headers, indexes and sizes tell.
fn is_sample(folder: &Path, spec: &SampleSpec) -> tensora::Result<bool> {
    match folder.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(|error| Error::io("look at", folder, error))?,
    };
    let opened = Checkpoint::options().layout(spec.layout).open(folder);
    let Ok(checkpoint) = opened else {
        return Ok(false);
    };
    let found = checkpoint.tensors().iter().map(|tensor| OutputTensor {
        name: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
    });
    Ok(sorted(found.collect()) == sorted(spec.list()?))
}

fn sorted(mut tensors: Vec<OutputTensor>) -> Vec<OutputTensor> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}
