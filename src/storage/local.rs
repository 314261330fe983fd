//! Local files: identity, positioned reads, and a bounded cache of descriptors so that hundreds of
//! shards load under a small `ulimit -n`.

use std::collections::VecDeque;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, ErrorKind, Result, is_out_of_descriptors};
use crate::storage::source::{Identity, Source};

/// Which way a descriptor goes to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Through the page cache.
    Buffered,
    /// Around it: `O_DIRECT`, with aligned offset, length and address. Linux only.
    Direct,
}

/// A regular file, opened by path as often as needed and always checked to be the same file.
#[derive(Debug)]
pub struct LocalFile {
    id: u64,
    path: PathBuf,
    identity: Identity,
    descriptors: Arc<DescriptorCache>,
}

impl LocalFile {
    /// Opens `path`, following symbolic links, and records its identity.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] (a dangling symbolic link names its missing target),
    /// [`ErrorKind::NotAFile`], [`ErrorKind::Io`].
    pub fn open(path: impl Into<PathBuf>, descriptors: &Arc<DescriptorCache>) -> Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let path = path.into();
        // A directory or FIFO is recognised before it is opened: opening a FIFO would wait.
        let metadata = std::fs::metadata(&path).map_err(|error| open_error(&path, error))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() {
                "a folder"
            } else {
                "a special file"
            };
            return Err(
                Error::new(ErrorKind::NotAFile, format!("this is {what}, not a file")).at(path),
            );
        }
        // What is opened counts: the name may be given to another file at any time.
        let opened = descriptors.open(&path, Access::Buffered);
        let opened = opened.map_err(|error| open_error(&path, error))?;
        let identity = opened
            .metadata()
            .map_err(|error| Error::io("look at", &path, error))?;
        let file = Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            path,
            identity: identity_of(&identity),
            descriptors: Arc::clone(descriptors),
        };
        descriptors.put(file.id, Access::Buffered, Arc::new(opened));
        Ok(file)
    }

    /// What no other file that this process has opened is called.
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// A descriptor for reading, from the cache or freshly opened. A file that is not the one that
    /// was opened first is refused.
    pub fn descriptor(&self, access: Access) -> io::Result<Arc<File>> {
        if let Some(file) = self.descriptors.get(self.id, access) {
            return Ok(file);
        }
        let file = self.descriptors.open(&self.path, access)?;
        let now = identity_of(&file.metadata()?);
        if now != self.identity {
            return Err(io::Error::other(Replaced));
        }
        let file = Arc::new(file);
        self.descriptors.put(self.id, access, Arc::clone(&file));
        Ok(file)
    }
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        self.descriptors.forget(self.id);
    }
}

impl Source for LocalFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn probe(&self) -> Result<Identity> {
        // By path, not by descriptor: a file renamed over ours is a change too.
        let metadata = std::fs::metadata(&self.path)
            .map_err(|error| Error::io("look at", &self.path, error))?;
        Ok(identity_of(&metadata))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        read_file_at(&*self.descriptor(Access::Buffered)?, offset, into)
    }

    fn local(&self) -> Option<&LocalFile> {
        Some(self)
    }
}

/// Another file has taken the place of the one that was opened. Found through
/// [`io::Error::get_ref`] when a descriptor is opened again.
#[derive(Debug)]
pub(crate) struct Replaced;

impl std::fmt::Display for Replaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another file has taken its place")
    }
}

impl std::error::Error for Replaced {}

/// The error for a path that cannot be opened: a link to nothing names its target.
pub(crate) fn open_error(path: &Path, error: io::Error) -> Error {
    let dangling = error.kind() == io::ErrorKind::NotFound;
    match std::fs::read_link(path) {
        Ok(target) if dangling => Error::new(
            ErrorKind::NotFound,
            format!(
                "this is a symbolic link to {}, which does not exist",
                crate::text::path(&target)
            ),
        )
        .at(path)
        .help("copy the target too, or copy with links followed (cp -L)"),
        _ => Error::io("open", path, error),
    }
}

/// One positioned read; the caller continues short reads.
#[cfg(unix)]
pub(crate) fn read_file_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

/// One positioned read; the caller continues short reads.
#[cfg(windows)]
pub(crate) fn read_file_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}

fn open(path: &Path, access: Access) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    match access {
        Access::Buffered => {}
        #[cfg(target_os = "linux")]
        Access::Direct => {
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_DIRECT);
        }
        #[cfg(not(target_os = "linux"))]
        Access::Direct => return Err(io::ErrorKind::Unsupported.into()),
    }
    options.open(path)
}

/// The process's soft limit on descriptors.
pub(crate) fn descriptor_limit() -> u64 {
    #[cfg(unix)]
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    #[cfg(not(unix))]
    let limit = None;
    limit.unwrap_or(1024)
}

#[cfg(unix)]
fn identity_of(metadata: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    Identity {
        device: metadata.dev(),
        inode: metadata.ino(),
        len: metadata.len(),
        mtime_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
    }
}

#[cfg(not(unix))]
fn identity_of(metadata: &Metadata) -> Identity {
    let mtime_ns = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |since| since.as_nanos() as i128);
    Identity {
        device: 0,
        inode: 0,
        len: metadata.len(),
        mtime_ns,
    }
}

/// Open descriptors, least recently used first, never more than the capacity.
#[derive(Debug)]
pub struct DescriptorCache {
    capacity: usize,
    open: Mutex<VecDeque<(u64, Access, Arc<File>)>>,
}

impl DescriptorCache {
    /// A cache of at most `capacity` descriptors (at least one).
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            open: Mutex::new(VecDeque::new()),
        }
    }

    /// An eighth of the process's soft limit on descriptors, between 4 and 128: the rest is for the
    /// reads in flight and for the program around us.
    pub fn for_this_process() -> Self {
        Self::new((descriptor_limit() / 8).clamp(4, 128) as usize)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, VecDeque<(u64, Access, Arc<File>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: u64, access: Access) -> Option<Arc<File>> {
        let mut open = self.locked();
        let at = open
            .iter()
            .position(|entry| entry.0 == id && entry.1 == access)?;
        let entry = open.remove(at)?;
        let file = Arc::clone(&entry.2);
        open.push_back(entry);
        Some(file)
    }

    /// Opens a file, also where that takes the descriptors that are kept.
    fn open(&self, path: &Path, access: Access) -> io::Result<File> {
        match open(path, access) {
            Err(error) if is_out_of_descriptors(&error) => {
                self.clear();
                open(path, access)
            }
            other => other,
        }
    }

    fn put(&self, id: u64, access: Access, file: Arc<File>) {
        let mut open = self.locked();
        while open.len() >= self.capacity {
            open.pop_front();
        }
        open.push_back((id, access, file));
    }

    fn forget(&self, id: u64) {
        self.locked().retain(|entry| entry.0 != id);
    }

    fn clear(&self) {
        self.locked().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_never_holds_more_than_its_capacity() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Arc::new(DescriptorCache::new(3));
        let files: Vec<_> = (0..10)
            .map(|i| {
                let path = folder.path().join(i.to_string());
                std::fs::write(&path, [i]).unwrap();
                LocalFile::open(path, &cache).unwrap()
            })
            .collect();
        for (i, file) in files.iter().enumerate() {
            let mut byte = [0];
            assert_eq!(file.read_at(0, &mut byte).unwrap(), 1);
            assert_eq!(byte[0] as usize, i);
            assert!(cache.locked().len() <= 3);
        }
        drop(files);
        assert!(cache.locked().is_empty());
    }

    #[test]
    fn a_replaced_file_is_noticed_by_probe_and_by_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"first").unwrap();
        let cache = Arc::new(DescriptorCache::new(1));
        let file = LocalFile::open(&path, &cache).unwrap();
        file.check_unchanged().unwrap();
        std::fs::write(folder.path().join("b"), b"other").unwrap();
        std::fs::rename(folder.path().join("b"), &path).unwrap();
        assert_eq!(
            file.check_unchanged().unwrap_err().kind(),
            ErrorKind::SourceChanged
        );
        cache.clear();
        assert!(file.read_at(0, &mut [0; 5]).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_dangling_link_names_its_target_and_a_folder_is_not_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Arc::new(DescriptorCache::new(1));
        let link = folder.path().join("model.safetensors");
        std::os::unix::fs::symlink("../../blobs/abc", &link).unwrap();
        let error = LocalFile::open(&link, &cache).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("../../blobs/abc"), "{error}");
        let error = LocalFile::open(folder.path(), &cache).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAFile);
    }
}
