//! `--trace FILE`: tried before the run, so that a bad path costs no load, and there afterwards only
//! if the run went well.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use tensora::{Error, ErrorKind, Result, Trace};

/// Where a trace goes.
#[derive(Debug, Clone, Default, Args)]
pub struct TraceTo {
    /// Write a trace of the load for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl TraceTo {
    pub fn is_given(&self) -> bool {
        self.trace.is_some()
    }

    /// Makes sure that the file can be written, if there is to be one.
    pub fn open(&self) -> Result<Option<TraceFile>> {
        self.trace.as_deref().map(TraceFile::new).transpose()
    }
}

/// A trace, and the file that it will be written to.
#[derive(Debug)]
pub struct TraceFile {
    trace: Trace,
    path: PathBuf,
    /// A pipe or a device, open: renaming would replace it by a file.
    stream: Option<File>,
}

impl TraceFile {
    fn new(path: &Path) -> Result<Self> {
        // A link stays, and what it points to is replaced.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut stream = None;
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                let what = "a trace is a file, and this is a folder";
                return Err(Error::new(ErrorKind::InvalidArgument, what)
                    .at(path)
                    .help("name a file in it"));
            }
            Ok(meta) if !meta.is_file() => {
                let file = OpenOptions::new().write(true).open(&path);
                stream = Some(file.map_err(|error| Error::io("open", &path, error))?);
            }
            // Not kept during the run, which a signal may end at any time.
            _ => drop(Temporary::beside(&path)?),
        }
        Ok(Self {
            trace: Trace::new(),
            path,
            stream,
        })
    }

    /// To be given to the loader.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Writes what was recorded; a file takes its name when it is complete.
    pub fn finish(self) -> Result<()> {
        let failed = |error| Error::io("write", &self.path, error);
        if let Some(file) = &self.stream {
            return write(&self.trace, file).map_err(failed);
        }
        let temporary = Temporary::beside(&self.path)?;
        write(&self.trace, &temporary.file).map_err(failed)?;
        std::fs::rename(&temporary.path, &self.path)
            .map_err(|error| Error::io("rename the finished file to", &self.path, error))
    }
}

/// A file that is gone when it is dropped, unless it was renamed.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn beside(target: &Path) -> Result<Self> {
        let name = target.file_name().ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "this path has no file name").at(target)
        })?;
        let mut number = 0;
        loop {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".tmp-{}-{number}", std::process::id()));
            let path = target.with_file_name(hidden);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { path, file }),
                // Of a process with our number on another machine, or before us.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(Error::io("create", &path, error)),
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing is there after a rename.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn write(trace: &Trace, file: &File) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    trace.write_chrome(&mut file)?;
    file.flush()
}
