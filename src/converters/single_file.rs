//! One file by itself, whole or not at all, and without a lock: whoever is last wins.
//!
//! A folder of many files has [`OutputFolder`](super::OutputFolder). For a single one the rename is
//! all that writers need to agree on, and nothing is left in folders that belong to others.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::time::{Duration, Instant};

use super::folder::{create_temporary, sync_folder};
use super::links::{MAX_LINKS, folder_of, way_from};
use crate::error::{Error, ErrorKind, Result};

/// How long a pipe may be without a reader.
#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(3);

/// A place that was tried, so that a bad path is told before the work and not after it.
///
/// A file is written under a temporary name beside its place and then renamed; it keeps the
/// permissions of the file that it replaces, and else has those of any new file. A link stays, and
/// what it points to is replaced. A pipe, a device or `-` (the standard output) is written through.
#[derive(Debug)]
pub struct SingleFile {
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Where links lead to.
    Name(PathBuf),
    /// Open since the path was tried: a rename would put a file in the place of the pipe.
    Stream(File),
    Stdout,
}

impl SingleFile {
    /// Tries whether a file can be written at `path`, and opens what is written through.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a folder or a path without a file name,
    /// [`ErrorKind::NotFound`] where the folder is missing, [`ErrorKind::Io`] where nothing can be
    /// written.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let place = if path == Path::new("-") {
            Place::Stdout
        } else if is_written_through(&path)? {
            Place::Stream(stream(&path)?)
        } else {
            let target = followed(&path)?;
            // Not kept: a signal may end the program before there is anything to write.
            let (temporary, _file) = beside(&target)?;
            let _ = std::fs::remove_file(temporary);
            Place::Name(target)
        };
        Ok(Self { path, place })
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that will be made or replaced, after all links; `None` for what is written through.
    pub fn target(&self) -> Option<&Path> {
        match &self.place {
            Place::Name(target) => Some(target),
            Place::Stream(_) | Place::Stdout => None,
        }
    }

    /// Whether this is the standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self.place, Place::Stdout)
    }

    /// Writes what `fill` gives. A file is on disk before it has its name.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when writing fails; what was there before is still there then.
    pub fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let failed = |error| Error::io("write", &self.path, error);
        match &self.place {
            Place::Stdout => buffered(io::stdout().lock(), fill).map_err(failed),
            Place::Stream(file) => buffered(file, fill).map_err(failed),
            Place::Name(target) => {
                let (temporary, file) = beside(target)?;
                let named = buffered(&file, fill)
                    .map_err(failed)
                    .and_then(|()| put_in_place(&file, &temporary, target));
                if named.is_err() {
                    // Nobody else knows of it.
                    let _ = std::fs::remove_file(&temporary);
                }
                named
            }
        }
    }
}

/// Writes `bytes` to the file `path`, whole or not at all, as [`SingleFile`] says.
///
/// # Errors
/// Those of [`SingleFile::at`] and [`SingleFile::write`].
pub fn write_file(path: impl Into<PathBuf>, bytes: &[u8]) -> Result<()> {
    SingleFile::at(path)?.write(|file| file.write_all(bytes))
}

/// Whether the path is that of a pipe or a device. What lies in `/dev` and `/proc` stands for open
/// files: `/dev/stdout` is to be written to, whatever it leads to.
fn is_written_through(path: &Path) -> Result<bool> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            let what = "this is a folder, and a file is to be written";
            Err(Error::new(ErrorKind::InvalidArgument, what)
                .at(path)
                .help("name a file in it"))
        }
        Ok(found) => {
            let is_system =
                cfg!(unix) && (path.starts_with("/dev/fd") || path.starts_with("/proc"));
            let is_standard = ["/dev/stdout", "/dev/stderr"]
                .map(Path::new)
                .contains(&path);
            Ok(!found.is_file() || is_system || is_standard)
        }
        Err(_) => Ok(false),
    }
}

/// Opens a pipe or a device for writing.
fn stream(path: &Path) -> Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if path
            .metadata()
            .is_ok_and(|found| found.file_type().is_fifo())
        {
            return pipe(path);
        }
    }
    let file = OpenOptions::new().append(true).open(path);
    file.map_err(|error| Error::io("open", path, error))
}

/// Opens a named pipe, whose reader has a while to come: the system would wait for it without end,
/// and with no way out.
#[cfg(unix)]
fn pipe(path: &Path) -> Result<File> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::os::unix::fs::OpenOptionsExt as _;
    let failed = |error| Error::io("open", path, error);
    let begin = Instant::now();
    let mut options = OpenOptions::new();
    options
        .append(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = loop {
        match options.open(path) {
            Ok(file) => break file,
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                return Err(failed(error));
            }
            Err(_) if begin.elapsed() > PATIENCE => {
                let what = format!("nobody has read from this pipe in {PATIENCE:?}");
                return Err(Error::new(ErrorKind::Io, what)
                    .at(path)
                    .help("start its reader first"));
            }
            Err(_) => std::thread::sleep(PATIENCE / 100),
        }
    };
    // Writes do wait for the reader.
    fcntl_getfl(&file)
        .and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK))
        .map_err(|error| failed(error.into()))?;
    Ok(file)
}

/// Where links lead to, also where nothing is there yet.
fn followed(path: &Path) -> Result<PathBuf> {
    let way = way_from(path);
    if way.len() > MAX_LINKS {
        let what = format!("more than {MAX_LINKS} links lead from one to the next");
        return Err(Error::new(ErrorKind::InvalidArgument, what).at(path));
    }
    Ok(way.into_iter().next_back().unwrap_or_default())
}

/// An empty file in the same folder.
fn beside(target: &Path) -> Result<(PathBuf, File)> {
    let Some(name) = target.file_name() else {
        let what = "this path has no file name";
        return Err(Error::new(ErrorKind::InvalidArgument, what).at(target));
    };
    let folder = folder_of(target);
    if !folder.is_dir() {
        let what = "this folder is not there";
        return Err(Error::new(ErrorKind::NotFound, what)
            .at(folder)
            .help("make it first, or choose another one"));
    }
    create_temporary(folder, name)
}

fn buffered(
    file: impl Write,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    fill(&mut file)?;
    file.flush()
}

fn put_in_place(file: &File, temporary: &Path, target: &Path) -> Result<()> {
    if let Ok(before) = target.metadata() {
        file.set_permissions(before.permissions())
            .map_err(|error| Error::io("keep the permissions of", target, error))?;
    }
    file.sync_all()
        .map_err(|error| Error::io("flush to disk", target, error))?;
    std::fs::rename(temporary, target)
        .map_err(|error| Error::io("rename the finished file to", target, error))?;
    sync_folder(folder_of(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn writers_of_one_folder_do_not_wait_for_each_other() {
        let scratch = tempfile::tempdir().unwrap();
        let held = crate::converters::OutputFolder::claim(scratch.path()).unwrap();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let path = scratch.path().join(format!("{}.json", n % 2));
                scope.spawn(move || write_file(path, &[b'x'; 100_000]).unwrap());
            }
        });
        drop(held);
        assert_eq!(names(scratch.path()), 2);
    }

    #[test]
    fn a_failure_leaves_what_was_there() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a");
        std::fs::write(&path, b"before").unwrap();
        let broken = |_: &mut dyn Write| Err(io::Error::other("disk on fire"));
        let error = SingleFile::at(&path).unwrap().write(broken).unwrap_err();
        assert_eq!(error.path(), Some(&*path));
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        assert_eq!(names(scratch.path()), 1);
        for bad in [scratch.path().to_owned(), scratch.path().join("no/file")] {
            SingleFile::at(bad).unwrap_err();
        }
    }

    #[cfg(unix)]
    #[cfg(unix)]
    #[test]
    fn a_pipe_waits_for_its_reader_and_not_without_end() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let error = write_file(&path, b"for nobody").unwrap_err();
        assert!(error.to_string().contains("nobody has read"), "{error}");
        let reader = std::thread::spawn({
            let path = path.clone();
            move || std::fs::read(path).unwrap()
        });
        // More than a pipe holds.
        let bytes = vec![7; 1 << 20];
        write_file(&path, &bytes).unwrap();
        assert!(reader.join().unwrap() == bytes);
    }

    #[test]
    fn a_name_may_be_as_long_as_the_file_system_allows() {
        let scratch = tempfile::tempdir().unwrap();
        for long in ["a".repeat(255), "\u{e4}".repeat(127)] {
            let path = scratch.path().join(&long);
            write_file(&path, b"one").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"one");
            let error = write_file(scratch.path().join(long + "bc"), b"two").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        }
        assert_eq!(names(scratch.path()), 2);
    }

    #[test]
    fn links_stay_and_permissions_are_kept() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        std::fs::create_dir(at("b")).unwrap();
        symlink("b/real", at("link")).unwrap();
        write_file(at("link"), b"one").unwrap();
        let private = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(at("b/real"), private).unwrap();
        write_file(at("link"), b"two").unwrap();
        assert!(at("link").is_symlink());
        assert_eq!(std::fs::read(at("b/real")).unwrap(), b"two");
        let mode = at("b/real").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        symlink("loop", at("loop")).unwrap();
        SingleFile::at(at("loop")).unwrap_err();
        // A device is written to, and is no file afterwards.
        write_file("/dev/null", b"gone").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }
}
