//! One unfinished download on disk: it grows from the front only, and is hashed as it grows.
//!
//! The file is called `ETAG.incomplete`, as clients that append to it and resume at its length
//! expect (older Python ones do; newer ones use names of their own, and leave this one alone).
//! Whoever else may write to it writes the same bytes to the same places, since a blob's name is
//! its digest: so a file system that ignores locks cannot mix two contents. For the same reason a
//! file is never truncated here, but removed and made anew: somebody may have finished it, and
//! given it its name, a moment ago.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha1::Digest as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::api::Digest;
use super::local::not_writable;
use crate::error::{Error, ErrorKind, Result};

/// Parts that wait for the disk. One has some ten to some hundred thousand bytes.
const QUEUE: usize = 64;

/// What the blob has to be.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    pub(super) size: u64,
    pub(super) etag: String,
    pub(super) digest: Digest,
}

/// What has become of it.
#[derive(Debug)]
pub(super) enum Outcome {
    /// All bytes are on disk, and are the right ones.
    Whole,
    /// All bytes are there, and have another digest.
    Wrong { actual: String },
    /// The download ended before.
    Unfinished,
}

/// Writes and hashes on a thread of its own, so that requests go on meanwhile.
#[derive(Debug)]
pub(super) struct Writer {
    parts: mpsc::Sender<Bytes>,
    /// `None` once it has ended with an error, which was reported.
    task: Option<JoinHandle<Result<Outcome>>>,
    /// The bytes that were there already.
    pub(super) start: u64,
}

impl Writer {
    /// Opens the unfinished file, or begins it.
    pub(super) async fn open(path: PathBuf, expected: Expected) -> Result<Self> {
        let (parts, queue) = mpsc::channel(QUEUE);
        let (tell_start, start) = oneshot::channel();
        let task = tokio::task::spawn_blocking(move || write(&path, &expected, queue, tell_start));
        match start.await {
            Ok(start) => Ok(Self {
                parts,
                task: Some(task),
                start,
            }),
            // It could not open the file.
            Err(_) => Err(ended(task.await).err().unwrap_or_else(stopped)),
        }
    }

    /// The next bytes; waits while the disk is slower than the network.
    pub(super) async fn write(&mut self, part: Bytes) -> Result<()> {
        if self.parts.send(part).await.is_ok() {
            return Ok(());
        }
        // The thread has ended before the last byte, which it does on errors only.
        match self.task.take() {
            Some(task) => ended(task.await).and(Err(stopped())),
            None => Err(stopped()),
        }
    }

    /// No more bytes come.
    pub(super) async fn finish(self) -> Result<Outcome> {
        drop(self.parts);
        match self.task {
            Some(task) => ended(task.await),
            None => Ok(Outcome::Unfinished),
        }
    }
}

fn ended(task: Result<Result<Outcome>, tokio::task::JoinError>) -> Result<Outcome> {
    match task {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(stopped()),
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Io, "the writing of a download ended early")
}

fn write(
    path: &Path,
    expected: &Expected,
    mut queue: mpsc::Receiver<Bytes>,
    start: oneshot::Sender<u64>,
) -> Result<Outcome> {
    let failed = |action: &'static str| move |error| Error::io(action, path, error);
    let (mut file, mut len) = open(path, expected.size)?;
    // Nobody listens to a download that was given up.
    let _ = start.send(len);
    let mut hasher = Hasher::new(expected);
    hash_start(&mut file, len, &mut hasher).map_err(failed("read what was downloaded before"))?;
    file.seek(SeekFrom::Start(len))
        .map_err(failed("continue the download"))?;
    while len < expected.size {
        let Some(part) = queue.blocking_recv() else {
            return Ok(Outcome::Unfinished);
        };
        if part.len() as u64 > expected.size - len {
            let message = format!("more than the declared {} bytes came", expected.size);
            return Err(Error::new(ErrorKind::BadDownload, message).at(path));
        }
        file.write_all(&part)
            .map_err(failed("write the download"))?;
        hasher.update(&part);
        len += part.len() as u64;
    }
    let actual = hasher.finish();
    if actual != expected.etag {
        return Ok(Outcome::Wrong { actual });
    }
    // Before the rename: a crash must not leave a whole name on half a file.
    file.sync_all()
        .map_err(failed("flush the download to disk"))?;
    Ok(Outcome::Whole)
}

/// The file, and how much of it can be continued.
fn open(path: &Path, size: u64) -> Result<(File, u64)> {
    let failed = |error| not_writable(Error::io("open the unfinished download", path, error));
    match path.symlink_metadata() {
        Ok(found) if found.is_file() && found.len() <= size => {}
        // Of another content, or no file at all.
        Ok(found) => {
            tracing::warn!(path = %path.display(), bytes = found.len(), size, "what was downloaded before does not belong to this file, and is begun anew");
            std::fs::remove_file(path).map_err(failed)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    // It may have grown since.
    Ok((file, len.min(size)))
}

fn hash_start(file: &mut File, len: u64, hasher: &mut Hasher) -> io::Result<()> {
    let mut buffer = vec![0; (1 << 20).min(len) as usize];
    let mut left = len;
    while left > 0 {
        let most = left.min(buffer.len() as u64) as usize;
        match file.read(&mut buffer[..most]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                left -= count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The digest that names the blob.
enum Hasher {
    Sha256(sha2::Sha256),
    Git(sha1::Sha1),
}

impl Hasher {
    fn new(expected: &Expected) -> Self {
        match expected.digest {
            Digest::Sha256 => Self::Sha256(sha2::Sha256::new()),
            Digest::Git => {
                let mut hasher = sha1::Sha1::new();
                hasher.update(format!("blob {}\0", expected.size));
                Self::Git(hasher)
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(hasher) => hex(&hasher.finalize()),
            Self::Git(hasher) => hex(&hasher.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(etag: &str, size: u64, digest: Digest) -> Expected {
        Expected {
            size,
            etag: etag.to_owned(),
            digest,
        }
    }

    /// Downloads `parts` over what the file holds.
    fn download(
        path: &Path,
        parts: &[&'static [u8]],
        expected: Expected,
    ) -> (u64, Result<Outcome>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut writer = Writer::open(path.to_owned(), expected).await.unwrap();
            let start = writer.start;
            for part in parts {
                if let Err(error) = writer.write(Bytes::from_static(part)).await {
                    return (start, Err(error));
                }
            }
            (start, writer.finish().await)
        })
    }

    #[test]
    fn small_files_have_the_names_that_git_gives_them() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x");
        // git hash-object of "hello\n".
        let hello = "ce013625030ba8dba906f756967f9e9ca394464a";
        let (start, outcome) = download(&path, &[b"hel"], expected(hello, 6, Digest::Git));
        assert!(matches!(
            (start, outcome.unwrap()),
            (0, Outcome::Unfinished)
        ));
        let (start, outcome) = download(&path, &[b"lo", b"\n"], expected(hello, 6, Digest::Git));
        assert!(matches!((start, outcome.unwrap()), (3, Outcome::Whole)));
        let empty = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
        let path = scratch.path().join("empty");
        let (_, outcome) = download(&path, &[], expected(empty, 0, Digest::Git));
        assert!(matches!(outcome.unwrap(), Outcome::Whole));
    }

    #[test]
    fn a_wrong_start_is_noticed_and_a_longer_file_is_begun_anew() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x");
        // sha256 of "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        std::fs::write(&path, b"x").unwrap();
        let (start, outcome) = download(&path, &[b"bc"], expected(abc, 3, Digest::Sha256));
        assert!(matches!(
            (start, outcome.unwrap()),
            (1, Outcome::Wrong { .. })
        ));
        std::fs::write(&path, b"abcd").unwrap();
        let (start, outcome) = download(&path, &[b"abc"], expected(abc, 3, Digest::Sha256));
        assert!(matches!((start, outcome.unwrap()), (0, Outcome::Whole)));
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
    }

    #[test]
    fn never_more_than_declared_is_written() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x");
        let (_, outcome) = download(
            &path,
            &[b"ab", b"cd"],
            expected(&"0".repeat(64), 3, Digest::Sha256),
        );
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::BadDownload);
        assert_eq!(std::fs::read(&path).unwrap(), b"ab");
    }
}
