//! Samples that are made once and kept in the cache folder.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use tensora::converters::OutputTensor;
use tensora::sample::{SampleSpec, write_sample};
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
    let folder = parent.join(layout.name());
    if is_sample(&folder, &spec)? {
        return Ok(folder);
    }
    let what = format!("making a sample of {} ({layout})", size::bytes(total_bytes));
    let _progress = Progress::waiting(what);
    // Beside its place, so that the sample appears whole and at once. Process ids repeat in
    // containers, so that a run that was killed may have left the same one.
    let now = SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_nanos();
    let staging = parent.join(format!(".{layout}.tmp-{}-{now}", std::process::id()));
    let unfinished = Unfinished::new(&staging, is_written)
        .with_context(|| format!("{}: cannot look into the folder", staging.display()))?;
    write_sample(&staging, &spec)?;
    put_in_place(&staging, &folder, &spec)?;
    unfinished.keep();
    Ok(folder)
}

/// Whether a sample is written with a file of this name.
pub fn is_written(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    name == "config.json"
        || name == "tensor_index.json"
        || name.starts_with("tensor.data_")
        || (name.starts_with("model")
            && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")))
}

fn put_in_place(staging: &Path, folder: &Path, spec: &SampleSpec) -> Result<()> {
    let failed = |action: &str, error| Error::io(action, folder, error);
    for last in [false, true] {
        match std::fs::rename(staging, folder) {
            Ok(()) => return Ok(()),
            Err(error) if last => return Err(failed("put the sample at", error).into()),
            // Somebody was faster, or something else is there. It lies in our own cache.
            Err(_) if is_sample(folder, spec)? => {
                let gone = std::fs::remove_dir_all(staging);
                return Ok(gone.map_err(|error| Error::io("remove", staging, error))?);
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
fn is_sample(folder: &Path, spec: &SampleSpec) -> Result<bool> {
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
