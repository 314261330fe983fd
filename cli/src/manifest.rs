//! Manifests: what a checkpoint is to hold, with a SHA-256 for each tensor, as one JSON file.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use tensora::converters::OutputFolder;
use tensora::{Dtype, Error, text};

use crate::digest::{Digests, Entry};

/// What `format` says.
const FORMAT: &str = "tensora-manifest-1";

/// Largest manifest that is read, in bytes: some millions of tensors.
const MAX_BYTES: u64 = 1 << 30;

#[derive(Serialize)]
struct Written<'a> {
    format: &'static str,
    tensors: &'a Digests,
}

/// A manifest that was read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: String,
    /// By name.
    pub tensors: BTreeMap<String, Expected>,
}

/// What a tensor is to be.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    dtype: Dtype,
    shape: Vec<u64>,
    nbytes: u64,
    sha256: String,
}

impl Expected {
    /// What is wrong with a tensor, if something is.
    pub fn objection(&self, found: &Entry) -> Option<String> {
        if self.dtype != found.dtype {
            Some(format!("it is {}, not {}", found.dtype, self.dtype))
        } else if self.shape[..] != found.shape[..] {
            Some(format!(
                "its shape is {:?}, not {:?}",
                found.shape, self.shape
            ))
        } else if self.nbytes != found.nbytes {
            Some(format!(
                "it has {} bytes, not {}",
                found.nbytes, self.nbytes
            ))
        } else {
            let sha = found.sha256.to_string();
            let same = sha.eq_ignore_ascii_case(&self.sha256);
            (!same).then(|| format!("its bytes hash to {sha}, not {}", text::name(&self.sha256)))
        }
    }
}

/// Writes a manifest, whole or not at all; one that is there is replaced.
pub fn write(path: &Path, digests: &Digests) -> Result<()> {
    let written = Written {
        format: FORMAT,
        tensors: digests,
    };
    let mut bytes = serde_json::to_vec_pretty(&written)?;
    bytes.push(b'\n');
    let name = path.file_name().context("a manifest needs a file name")?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = OutputFolder::claim(folder)?;
    let mut file = folder.file(name)?;
    file.write_all(&bytes)
        .map_err(|error| Error::io("write", file.target(), error))?;
    file.commit_over()?;
    folder.release(|_| Ok(()))?;
    Ok(())
}

/// Reads a manifest.
pub fn read(path: &Path) -> Result<Manifest> {
    let len = std::fs::metadata(path)
        .map_err(|error| Error::io("read", path, error))?
        .len();
    let shown = text::path(path);
    if len > MAX_BYTES {
        bail!("{shown}: a manifest has at most {MAX_BYTES} bytes, and this has {len}");
    }
    let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
    let manifest: Manifest = serde_json::from_slice(&bytes).with_context(|| {
        format!("{shown}: this is no manifest; make one with tensora hash --manifest")
    })?;
    if manifest.format != FORMAT {
        bail!(
            "{shown}: this manifest is {}, and only {FORMAT} is known",
            text::quoted(&manifest.format)
        );
    }
    Ok(manifest)
}
