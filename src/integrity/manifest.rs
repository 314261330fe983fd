//! Manifests: what a checkpoint is to hold, with a SHA-256 for each tensor, as one JSON file.

use std::collections::btree_map;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::converters::SingleFile;
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::integrity::digest::{BadSha256, Entries, Entry};
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
    tensors: Listed,
}

/// Entries in the order of the file, so that a name that is there twice is noticed, and with the
/// digests as text, so that a bad one is reported with its tensor.
struct Listed(Vec<(Box<str>, ReadEntry)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadEntry {
    dtype: Dtype,
    shape: Box<[u64]>,
    nbytes: u64,
    sha256: String,
}

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Listed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listed, A::Error> {
                let mut listed = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    listed.push(pair);
                }
                Ok(Listed(listed))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// The entries that the file lists, each of which must be possible.
fn checked(listed: Listed) -> Result<Entries> {
    let mut entries = Entries::new();
    for (name, read) in listed.0 {
        let bad = |what: String| malformed(what).tensor(&*name);
        let (dtype, shape, nbytes) = (read.dtype, read.shape, read.nbytes);
        match dtype.nbytes(&shape) {
            Some(right) if right == nbytes => {}
            Some(right) => {
                let what =
                    format!("the manifest says {nbytes} bytes, and {dtype} {shape:?} has {right}");
                return Err(bad(what));
            }
            None => {
                let what =
                    format!("{dtype} {shape:?} overflows 64 bits or does not fill whole bytes");
                return Err(bad(what));
            }
        }
        let sha256 = read
            .sha256
            .parse()
            .map_err(|error: BadSha256| bad(error.to_string()))?;
        let entry = Entry {
            dtype,
            shape,
            nbytes,
            sha256,
        };
        match entries.entry(name) {
            btree_map::Entry::Vacant(place) => {
                place.insert(entry);
            }
            btree_map::Entry::Occupied(place) => {
                let what = "the manifest lists this tensor more than once";
                return Err(malformed(what.to_owned()).tensor(&**place.key()));
            }
        }
    }
    Ok(entries)
}

fn malformed(what: String) -> Error {
    Error::new(ErrorKind::BadIndex, what)
        .help("make the manifest again with tensora hash --manifest")
}

/// All bytes of a manifest. Neither a pipe, which may never end, nor a device; of a file that grows
/// while it is read, no more than the limit.
fn read_bounded(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| Error::io("read", path, error);
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        let kind = if found.is_dir() {
            "a folder"
        } else {
            "a pipe or a device"
        };
        let what = format!("a manifest is a regular file, and this is {kind}");
        return Err(Error::new(ErrorKind::NotAFile, what)
            .at(path)
            .help("name a file that tensora hash --manifest has written"));
    }
    let mut bytes = Vec::new();
    if found.len() <= MAX_BYTES {
        let file = File::open(path).map_err(failed)?;
        let mut bounded = file.take(MAX_BYTES + 1);
        bounded.read_to_end(&mut bytes).map_err(failed)?;
    }
    let len = found.len().max(bytes.len() as u64);
    if len > MAX_BYTES {
        let what = format!("a manifest has at most {MAX_BYTES} bytes, and this has {len}");
        return Err(Error::new(ErrorKind::BadIndex, what).at(path));
    }
    Ok(bytes)
}

impl Manifest {
    /// The manifest of a checkpoint that holds these.
    pub fn new(tensors: Entries) -> Self {
        Self { tensors }
    }

    /// Reads a file that [`write`](Self::write) has written.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Io`], [`ErrorKind::NotAFile`];
    /// [`ErrorKind::BadIndex`] for what is no manifest, has more than 1 GiB, is of a later version,
    /// or says of a tensor what cannot be or says it twice.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bad = |what: String| Error::new(ErrorKind::BadIndex, what).at(path);
        let bytes = read_bounded(path)?;
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
        Ok(Self::new(
            checked(read.tensors).map_err(|error| error.at(path))?,
        ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_no_manifest_and_names_the_tensor() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("m.json");
        let sha = "ab".repeat(32);
        let entry = |bytes: u64, sha: &str| {
            format!(
                r#""t": {{"dtype": "F32", "shape": [2], "nbytes": {bytes}, "sha256": "{sha}"}}"#
            )
        };
        let read = |tensors: &str| {
            let text = format!(r#"{{"format": "{FORMAT}", "tensors": {{{tensors}}}}}"#);
            std::fs::write(&path, text).unwrap();
            Manifest::read(&path)
        };
        assert_eq!(read(&entry(8, &sha)).unwrap().tensors.len(), 1);
        let twice = format!("{0}, {0}", entry(8, &sha));
        for (bad, said) in [
            (&twice, "more than once"),
            (&entry(7, &sha), "7 bytes"),
            (&entry(8, &sha[1..]), "64 hexadecimal digits"),
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadIndex);
            assert_eq!(error.tensor_name(), Some("t"), "{error}");
            assert_eq!(error.path(), Some(&*path));
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn only_a_file_of_bounded_size_is_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("m.json");
        let file = File::create(&path).unwrap();
        file.set_len(MAX_BYTES + 1).unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(
            error.contains("1073741824") && error.contains("1073741825"),
            "{error}"
        );
        let folder = Manifest::read(scratch.path()).unwrap_err();
        assert_eq!(folder.kind(), ErrorKind::NotAFile);
        #[cfg(target_os = "linux")]
        for endless in ["/dev/zero", "/dev/null"] {
            let error = Manifest::read(endless).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotAFile);
        }
    }
}
