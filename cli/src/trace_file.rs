//! `--trace FILE`: opened before the run, so that a bad path costs no load, and there afterwards
//! only if the run went well.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use tensora::converters::AtomicFile;
use tensora::{Error, Result, Trace};

use crate::cleanup::Unfinished;

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

    /// Opens the file, if there is to be one.
    pub fn open(&self) -> Result<Option<TraceFile>> {
        self.trace.as_deref().map(TraceFile::create).transpose()
    }
}

/// A trace, and the file that it will be written to.
#[derive(Debug)]
pub struct TraceFile {
    trace: Trace,
    path: PathBuf,
    output: Output,
}

#[derive(Debug)]
enum Output {
    /// Takes its name when it is complete.
    Atomic(AtomicFile, Unfinished),
    /// A pipe or a device, which renaming would replace by a file.
    Stream(File),
}

impl TraceFile {
    fn create(path: &Path) -> Result<Self> {
        let is_stream = std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
        let output = if is_stream {
            let file = OpenOptions::new().write(true).open(path);
            Output::Stream(file.map_err(|error| Error::io("open", path, error))?)
        } else {
            if path.is_dir() {
                let error = std::io::ErrorKind::IsADirectory.into();
                return Err(Error::io("write a trace to", path, error).help("name a file"));
            }
            let folder = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            let unfinished = Unfinished::new(folder, |_| false)
                .map_err(|error| Error::io("look into", folder, error))?;
            Output::Atomic(AtomicFile::create(path)?, unfinished)
        };
        Ok(Self {
            trace: Trace::new(),
            path: path.to_owned(),
            output,
        })
    }

    /// To be given to the loader.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Writes what was recorded.
    pub fn finish(self) -> Result<()> {
        let path = self.path;
        let failed = |error| Error::io("write", &path, error);
        match self.output {
            Output::Atomic(mut file, unfinished) => {
                write(&self.trace, &mut file).map_err(failed)?;
                file.commit()?;
                unfinished.keep();
                Ok(())
            }
            Output::Stream(mut file) => write(&self.trace, &mut file).map_err(failed),
        }
    }
}

fn write(trace: &Trace, file: &mut impl Write) -> std::io::Result<()> {
    let mut file = BufWriter::new(file);
    trace.write_chrome(&mut file)?;
    file.flush()
}
