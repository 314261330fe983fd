//! `--trace FILE`: tried before the run, so that a bad path costs no load, and there afterwards only
//! if the run went well.

use std::path::PathBuf;

use clap::Args;
use tensora::converters::SingleFile;
use tensora::{Checkpoint, Result, Trace};

/// Where a trace goes.
#[derive(Debug, Clone, Default, Args)]
pub struct TraceTo {
    /// Write a trace of the load for ui.perfetto.dev or chrome://tracing; - is the standard output
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl TraceTo {
    pub fn is_given(&self) -> bool {
        self.trace.is_some()
    }

    /// Makes sure that the file can be written, if there is to be one.
    pub fn open(&self) -> Result<Option<TraceFile>> {
        let Some(path) = &self.trace else {
            return Ok(None);
        };
        Ok(Some(TraceFile {
            trace: Trace::new(),
            file: SingleFile::for_report(path, "trace", Trace::is_begun_by)?,
        }))
    }
}

/// A trace, and the file that it will be written to.
#[derive(Debug)]
pub struct TraceFile {
    trace: Trace,
    file: SingleFile,
}

impl TraceFile {
    /// To be given to the loader.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Refuses a file of the checkpoint that is about to be read.
    pub fn refuse_part_of(&self, checkpoint: &Checkpoint) -> Result<()> {
        self.file.refuse_part_of(checkpoint)
    }

    /// Writes what was recorded; a file takes its name when it is complete.
    pub fn finish(self) -> Result<()> {
        let Self { trace, file } = self;
        file.write(|mut file| trace.write_chrome(&mut file))
    }
}
