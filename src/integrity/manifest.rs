//! Manifests: what a checkpoint is to hold, with a SHA-256 for each tensor, as one JSON file.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::converters::SingleFile;
use crate::error::{Error, ErrorKind, Result};
use crate::integrity::digest::Entries;
use crate::text;

/// What `format` says.
const FORMAT: &str = "tensora-manifest-1";

/// Largest manifest that is read, in bytes: some millions of tensors.
const MAX_BYTES: u64 = 1 << 30;

/// What a checkpoint is to hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    /// Its tensors, by name.
    pub tensors: Entries,
}

#[derive(Serialize)]
struct Written<'a> {
    format: &'static str,
    tensors: &'a Entries,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    format: String,
    tensors: Entries,
}

impl Manifest {
    /// The manifest of a checkpoint that holds these.
    pub fn new(tensors: Entries) -> Self {
        Self { tensors }
    }

    /// Reads a file that [`write`](Self::write) has written.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and [`ErrorKind::Io`]; [`ErrorKind::BadIndex`] for what is no
    /// manifest, has more than 1 GiB, or is of a later version.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |error| Error::io("read", path, error);
        let bad = |what: String| Error::new(ErrorKind::BadIndex, what).at(path);
        let len = std::fs::metadata(path).map_err(failed)?.len();
        if len > MAX_BYTES {
            let what = format!("a manifest has at most {MAX_BYTES} bytes, and this has {len}");
            return Err(bad(what));
        }
        let bytes = std::fs::read(path).map_err(failed)?;
        let read: Read = serde_json::from_slice(&bytes).map_err(|error| {
            bad("this is no manifest".to_owned())
                .help("make one with tensora hash --manifest")
                .because(error)
        })?;
        if read.format != FORMAT {
            let found = text::quoted(&read.format);
            let what = format!("this manifest is {found}, and only {FORMAT} is known");
            return Err(bad(what));
        }
        Ok(Self::new(read.tensors))
    }

    /// Writes it to a file, whole or not at all; one that is there is replaced.
    ///
    /// # Errors
    /// Those of [`SingleFile::at`] and [`SingleFile::write`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        self.write_to(SingleFile::at(path.as_ref())?)
    }

    /// As [`write`](Self::write), to a place that was tried before the work.
    ///
    /// # Errors
    /// Those of [`SingleFile::write`].
    pub fn write_to(&self, place: SingleFile) -> Result<()> {
        let written = Written {
            format: FORMAT,
            tensors: &self.tensors,
        };
        place.write(|file| {
            serde_json::to_writer_pretty(&mut *file, &written)?;
            file.write_all(b"\n")
        })
    }

    /// Whether bytes begin as those of a manifest do.
    pub fn is_begun_by(bytes: &[u8]) -> bool {
        let start: String = String::from_utf8_lossy(bytes)
            .chars()
            .filter(|c| !c.is_whitespace())
            .take(64)
            .collect();
        start.starts_with("{\"format\":\"tensora-manifest-")
    }
}
