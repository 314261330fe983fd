//! The files of one model in the cache: where they lie, what is missing, what is put there.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::api::RemoteFile;
use super::cache::{HubCache, folder_name};
use super::is_side_file;
use super::pull::Pull;
use crate::checkpoint::Parts;
use crate::converters::folder::sync_folder;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::index::{MAX_INDEX_BYTES, ShardIndex};
use crate::formats::serverlessllm::{PartitionIndex, partition_file};

/// How an unfinished file is called.
pub(super) const INCOMPLETE: &str = ".incomplete";

/// The weights of a model that has them in one file.
const WHOLE: &str = "model.safetensors";

/// What tells backup programs to leave a cache out (<https://bford.info/cachedir/>).
const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
# This file is a cache directory tag: what is in this folder can be downloaded again.\n";

/// `models--ORG--NAME` in a cache.
#[derive(Debug, Clone)]
pub(super) struct ModelFolder {
    cache: PathBuf,
    root: PathBuf,
    locks: PathBuf,
    symlinks: bool,
}

/// What a load needs of a snapshot, as far as the snapshot itself tells.
#[derive(Debug, Default)]
pub(super) struct Need {
    /// Relative paths.
    pub(super) files: Vec<String>,
    /// Those that are not there, or `None` where there are no weights to tell by.
    pub(super) missing: Option<Vec<String>>,
    /// The model may have more: weights beside files that another client has chosen, or side files,
    /// of which no list was kept.
    pub(super) doubtful: bool,
}

impl Need {
    /// Everything is there, and nothing has to be asked.
    pub(super) fn is_met(&self) -> bool {
        self.is_usable() && !self.doubtful
    }

    /// What is there can be loaded, as far as the snapshot tells.
    pub(super) fn is_usable(&self) -> bool {
        self.missing.as_ref().is_some_and(Vec::is_empty)
    }
}

impl ModelFolder {
    pub(super) fn new(cache: &HubCache, id: &str, symlinks: bool) -> Self {
        Self {
            root: cache.model(id),
            locks: cache.root().join(".locks").join(folder_name(id)),
            cache: cache.root().to_owned(),
            symlinks,
        }
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{etag}{INCOMPLETE}"))
    }

    pub(super) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// The name under which a load finds a file.
    pub(super) fn pointer(&self, commit: &str, path: &str) -> PathBuf {
        let snapshot = self.snapshot(commit);
        path.split('/')
            .fold(snapshot, |folder, part| folder.join(part))
    }

    fn listing(&self, commit: &str) -> PathBuf {
        self.root.join(".tensora").join(format!("{commit}.json"))
    }

    /// Bytes of a blob that any client has downloaded so far: grows while somebody does.
    pub(super) fn downloaded(&self, etag: &str) -> u64 {
        let entries = std::fs::read_dir(self.root.join("blobs"));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter(|entry| {
                let name = entry.file_name();
                name.to_str().is_some_and(|name| name.starts_with(etag))
            })
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .fold(0, u64::saturating_add)
    }

    /// Makes the folders for a download of `commit`.
    pub(super) fn prepare(&self, commit: &str) -> Result<()> {
        let snapshot = self.snapshot(commit);
        for folder in [&self.root.join("blobs"), &snapshot, &self.locks] {
            std::fs::create_dir_all(folder)
                .map_err(|error| not_writable(Error::io("make the folder", folder, error)))?;
        }
        let tag = self.cache.join("CACHEDIR.TAG");
        if !tag.exists() {
            // Only a service to backup programs.
            let _ = std::fs::write(tag, CACHEDIR_TAG);
        }
        Ok(())
    }

    /// Gives a whole, checked download the name of a blob.
    pub(super) fn finish(&self, etag: &str) -> Result<()> {
        let (partial, blob) = (self.partial(etag), self.blob(etag));
        std::fs::rename(&partial, &blob)
            .map_err(|error| Error::io("give the finished download its name", &blob, error))?;
        sync_folder(&self.root.join("blobs"))
    }

    /// Puts a blob into a snapshot: as a relative link or, where links are impossible, itself. A
    /// blob that was there before (`fresh` is false) may be another snapshot's, and is copied.
    pub(super) fn link(&self, etag: &str, pointer: &Path, path: &str, fresh: bool) -> Result<()> {
        let failed = |error| Error::io("put the file into the snapshot at", pointer, error);
        let folder = pointer.parent().unwrap_or(&self.root);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let above = "../".repeat(path.split('/').count() + 1);
        let target = PathBuf::from(format!("{above}blobs/{etag}"));
        if self.symlinks {
            if std::fs::read_link(pointer).is_ok_and(|found| found == target) {
                return Ok(());
            }
            let link = temporary(pointer);
            match symlink(&target, &link) {
                // Takes the place of a dangling link or of a damaged file at once.
                Ok(()) => return std::fs::rename(&link, pointer).map_err(failed),
                Err(error) => {
                    tracing::info!(path = %pointer.display(), "no links here, files are put into snapshots: {error}");
                }
            }
        }
        let blob = self.blob(etag);
        if fresh {
            return std::fs::rename(&blob, pointer).map_err(failed);
        }
        let copy = temporary(pointer);
        std::fs::copy(&blob, &copy)
            .and_then(|_| std::fs::rename(&copy, pointer))
            .inspect_err(|_| {
                // It would only take space.
                let _ = std::fs::remove_file(&copy);
            })
            .map_err(failed)
    }

    /// Notes which commit a branch or tag is at, unless it is noted already. After the files: a ref
    /// that points to a snapshot without weights hides the older one that has them.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<()> {
        let path = self.root.join("refs").join(revision);
        if revision.eq_ignore_ascii_case(commit)
            || std::fs::read_to_string(&path).is_ok_and(|found| found == commit)
        {
            return Ok(());
        }
        write_whole(&path, commit.as_bytes())
    }

    /// Keeps the list of files, by which a later run knows which side files there are.
    pub(super) fn write_listing(&self, commit: &str, files: &[RemoteFile]) -> Result<()> {
        write_list(&self.listing(commit), files)
    }

    fn weights_list(&self, commit: &str) -> PathBuf {
        let name = format!("{commit}.weights.json");
        self.root.join(".tensora").join(name)
    }

    /// Keeps what the weights of a commit are, once all of them are there.
    pub(super) fn write_weights(&self, commit: &str, files: &[RemoteFile]) -> Result<()> {
        write_list(&self.weights_list(commit), files)
    }

    /// The side files of a commit, where a list was kept.
    fn listed_side_files(&self, commit: &str) -> Option<Vec<String>> {
        let names = read_list(&self.listing(commit))?.into_iter();
        let names = names.map(|file| file.path);
        Some(names.filter(|name| is_side_file(name)).collect())
    }

    /// Whether a file of a snapshot is there, whole.
    pub(super) fn holds(&self, commit: &str, file: &RemoteFile) -> bool {
        is_of_size(&self.pointer(commit, &file.path), file.size)
    }

    /// What `pull` needs of the snapshot of `commit`. Reads names, and an index where there is one.
    pub(super) fn need(&self, commit: &str, pull: &Pull) -> Result<Need> {
        let snapshot = self.snapshot(commit);
        // With their sizes, where they were downloaded by us.
        let listed = read_list(&self.weights_list(commit)).unwrap_or_default();
        let mut need = match weights(&snapshot, pull) {
            Ok((files, certain)) => Need {
                missing: None,
                // The list is of what the repository has.
                doubtful: !certain
                    && !files
                        .iter()
                        .all(|file| listed.iter().any(|l| l.path == *file)),
                files,
            },
            Err(error) => match error.kind() {
                ErrorKind::NoWeights | ErrorKind::MissingShard | ErrorKind::NotFound => {
                    return Ok(Need::default());
                }
                _ => return Err(error),
            },
        };
        if pull.side_files {
            match self.listed_side_files(commit) {
                Some(side) => need.files.extend(side),
                // The weights are what a load cannot do without.
                None => need.doubtful = true,
            }
        }
        let is_there = |file: &String| match listed.iter().find(|listed| listed.path == *file) {
            Some(listed) => self.holds(commit, listed),
            None => self.pointer(commit, file).is_file(),
        };
        let missing = need.files.iter().filter(|file| !is_there(file));
        need.missing = Some(missing.cloned().collect());
        Ok(need)
    }
}

/// The files of the checkpoint in a snapshot, whether they are there or not; and whether they are
/// certainly all of them, by their index or by the one name that weights without an index have.
fn weights(snapshot: &Path, pull: &Pull) -> Result<(Vec<String>, bool)> {
    let name = |path: &Path| {
        let name = path.strip_prefix(snapshot).unwrap_or(path);
        name.to_string_lossy().into_owned()
    };
    match Parts::of_folder(snapshot, pull.layout)? {
        Parts::Files(files) => {
            let files: Vec<String> = files.iter().map(|file| name(file)).collect();
            let certain = matches!(&files[..], [only] if only == WHOLE);
            Ok((files, certain))
        }
        Parts::Index(index) => {
            let shards = shards(&read_index(&index)?, pull).map_err(|error| error.at(&index))?;
            let files = std::iter::once(name(&index)).chain(shards).collect();
            Ok((files, true))
        }
        Parts::Partitions(index) => {
            let parsed = PartitionIndex::parse(&read_index(&index)?);
            let ids = parsed.map_err(|error| error.at(&index))?.partition_ids();
            let parts = ids.into_iter().map(partition_file);
            let files = std::iter::once(name(&index)).chain(parts).collect();
            Ok((files, true))
        }
    }
}

/// The shards of an index that hold something of what is wanted.
pub(super) fn shards(index: &[u8], pull: &Pull) -> Result<Vec<String>> {
    let index = ShardIndex::parse(index)?;
    let mut wanted = vec![pull.selection.is_none(); index.shards().len()];
    for (tensor, shard) in index.entries() {
        if pull.picks(tensor) {
            wanted[*shard as usize] = true;
        }
    }
    let shards = index.shards().iter().zip(wanted);
    let shards: Vec<String> = shards
        .filter(|(_, wanted)| *wanted)
        .map(|(shard, _)| shard.to_string())
        .collect();
    match shards.is_empty() {
        true => Err(nothing_selected(&pull.id)),
        false => Ok(shards),
    }
}

pub(super) fn nothing_selected(id: &str) -> Error {
    Error::new(
        ErrorKind::NoSuchTensor,
        format!("no tensor of {id} is selected"),
    )
    .help("look at the names with `tensora inspect`, or select less narrowly")
}

pub(super) fn read_index(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| Error::io("read the index", path, error);
    let len = path.metadata().map_err(failed)?.len();
    if len > MAX_INDEX_BYTES {
        return Err(too_large_an_index(len).at(path));
    }
    std::fs::read(path).map_err(failed)
}

pub(super) fn too_large_an_index(len: u64) -> Error {
    let message = format!("the index has {len} bytes; the limit is {MAX_INDEX_BYTES}");
    Error::new(ErrorKind::BadIndex, message)
}

/// Adds what helps where a cache cannot be written to.
pub(super) fn not_writable(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Io => {
            error.help("set HF_HUB_CACHE to a folder that you may write to, on a disk with space")
        }
        _ => error,
    }
}

/// A fresh hidden name beside `path`. Ours alone: process ids repeat, but what is there is passed over
/// by whoever makes something under it.
fn temporary(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_nanos();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp-{}-{now}-{n}", std::process::id()))
}

/// Whether a file is there and has so many bytes.
pub(super) fn is_of_size(path: &Path, size: u64) -> bool {
    let found = path.metadata();
    found.is_ok_and(|found| found.is_file() && found.len() == size)
}

/// Keeps a list of files, unless it is kept already.
fn write_list(path: &Path, files: &[RemoteFile]) -> Result<()> {
    let json = serde_json::to_vec(files).map_err(|error| {
        Error::new(ErrorKind::Io, "cannot write the list of files").because(error)
    })?;
    if std::fs::read(path).is_ok_and(|found| found == json) {
        return Ok(());
    }
    write_whole(path, &json)
}

fn read_list(path: &Path) -> Option<Vec<RemoteFile>> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Writes a small file, so that nobody sees a part of it.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |error| not_writable(Error::io("write", path, error));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let whole = temporary(path);
    std::fs::write(&whole, bytes)
        .and_then(|()| std::fs::rename(&whole, path))
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&whole);
        })
        .map_err(failed)
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
