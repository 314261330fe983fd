//! What is in the cache: models, their snapshots, sizes, and what is unfinished.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::cache::{HubCache, MODELS, is_absent, names, read_ref};
use super::local::{INCOMPLETE, ModelFolder};
use super::pull::Pull;
use crate::error::{Error, Result};

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedModel {
    /// `org/name`.
    pub id: String,
    /// Its folder.
    pub path: PathBuf,
    /// Its snapshots, by commit.
    pub snapshots: Vec<CachedSnapshot>,
    /// Bytes on disk, each file counted once; unfinished downloads included.
    pub bytes: u64,
    /// Bytes of unfinished downloads.
    pub unfinished_bytes: u64,
}

/// One commit of a [`CachedModel`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedSnapshot {
    /// Of the model.
    pub commit: String,
    /// The branches and tags that are at this commit, as far as the cache knows.
    pub refs: Vec<String>,
    /// Its folder.
    pub path: PathBuf,
    /// Files that are there.
    pub files: u64,
    /// Their sizes together, in bytes; other snapshots may share them.
    pub bytes: u64,
    /// Whether all files are there that a load of the weights needs.
    pub complete: bool,
}

impl HubCache {
    /// The models of this cache, sorted by id. A cache that does not exist has none.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when it cannot be read.
    pub fn models(&self) -> Result<Vec<CachedModel>> {
        let mut models = Vec::new();
        for name in names(self.root())? {
            if let Some(slug) = name.strip_prefix(MODELS) {
                match self.cached_model(slug.replacen("--", "/", 1)) {
                    Ok(model) => models.push(model),
                    // Of somebody else, in a cache that is shared.
                    Err(error) => tracing::warn!("a model is left out: {error:#}"),
                }
            }
        }
        models.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(models)
    }

    fn cached_model(&self, id: String) -> Result<CachedModel> {
        let path = self.model(&id);
        let folder = ModelFolder::new(self, &id, true);
        let mut refs = BTreeMap::new();
        collect_refs(&path.join("refs"), "", &mut refs)?;
        let mut snapshots = Vec::new();
        // Links do not count: what they point to lies in blobs.
        let mut bytes = 0;
        let mut unfinished_bytes = 0;
        visit(&path.join("blobs"), &mut |file| {
            let len = file.symlink_metadata().map_or(0, |found| found.len());
            bytes += len;
            if file.to_string_lossy().ends_with(INCOMPLETE) {
                unfinished_bytes += len;
            }
        })?;
        for commit in names(&path.join("snapshots"))? {
            let place = folder.snapshot(&commit);
            let (mut files, mut size) = (0, 0);
            visit(&place, &mut |file| {
                if let Ok(found) = file.metadata()
                    && found.is_file()
                {
                    files += 1;
                    size += found.len();
                    if !file.is_symlink() {
                        bytes += found.len();
                    }
                }
            })?;
            let need = folder.need(&commit, &Pull::new(&*id));
            snapshots.push(CachedSnapshot {
                refs: refs
                    .iter()
                    .filter(|(_, at)| **at == commit)
                    .map(|(name, _)| name.clone())
                    .collect(),
                path: place,
                files,
                bytes: size,
                complete: need.is_ok_and(|need| need.is_usable()),
                commit,
            });
        }
        Ok(CachedModel {
            id,
            path,
            snapshots,
            bytes,
            unfinished_bytes,
        })
    }
}

/// Refs and their commits; one that cannot be read is left out, as nothing can follow it.
fn collect_refs(folder: &Path, prefix: &str, refs: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in entries(folder)? {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = entry.path();
        if path.is_dir() {
            collect_refs(&path, &format!("{prefix}{name}/"), refs)?;
        } else if !name.starts_with('.')
            && let Ok(Some(commit)) = read_ref(&path)
        {
            refs.insert(format!("{prefix}{name}"), commit);
        }
    }
    Ok(())
}

/// All files below a folder; links to folders are not followed.
fn visit(folder: &Path, see: &mut dyn FnMut(&Path)) -> Result<()> {
    for entry in entries(folder)? {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => visit(&entry.path(), see)?,
            Ok(_) => see(&entry.path()),
            // It has gone meanwhile.
            Err(_) => {}
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<std::fs::DirEntry>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        other => other.map_err(|error| Error::io("list", folder, error))?,
    };
    entries
        .collect::<std::io::Result<_>>()
        .map_err(|error| Error::io("list", folder, error))
}
