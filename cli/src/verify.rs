//! `verify`: is a checkpoint what it should be? Its structure always; every byte with `--deep`; every
//! hash with a manifest.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tensora::integrity::{
    HashOptions, Manifest, Problem, VerifyOptions, VerifyReport, verify_checkpoint,
};
use tensora::{Settings, text};

use crate::args::Backend;
use crate::failure::Reported;
use crate::model::{Named, summary};
use crate::progress::Progress;
use crate::{failure, output, size};

/// Check a checkpoint: headers, indexes and sizes of every file; with --deep that every byte can be
/// read; with a manifest that every tensor is what the manifest says.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    named: Named,
    /// What tensora hash --manifest has written of the checkpoint that this one should be
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Read and hash every byte, also without a manifest
    #[arg(long)]
    deep: bool,
    #[command(flatten)]
    backend: Backend,
    /// Bytes that may be read or wait at once
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512MiB")]
    budget: u64,
    /// One JSON object: what was checked, and what is wrong
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Verify, out: &mut dyn Write) -> Result<()> {
    // Before the reading: a wrong file name is said at once.
    let manifest = args.manifest.as_ref().map(Manifest::read).transpose()?;
    let settings = Settings {
        backend: args.backend.kind,
        budget: Some(args.budget),
        ..Settings::default()
    };
    let options = VerifyOptions {
        deep: args.deep,
        manifest,
        hash: HashOptions {
            settings,
            ..HashOptions::default()
        },
        ..VerifyOptions::default()
    };
    let (report, what) = match args.named.open() {
        Ok((_, checkpoint)) => {
            let progress = Progress::bytes("hashing", checkpoint.total_bytes());
            let add = |bytes| progress.add(bytes);
            let report = verify_checkpoint(&checkpoint, &options, &add)?;
            (report, summary(&checkpoint))
        }
        Err(error) => (damaged(args, &error), String::new()),
    };
    if args.json {
        output::json_line(out, &report)?;
    } else {
        print(&report, &what, out)?;
    }
    match report.problems.len() as u64 {
        0 => Ok(()),
        count => {
            out.flush()?;
            let what = format!("{} found", output::counted(count, "problem"));
            Err(Reported(what).into())
        }
    }
}

fn print(report: &VerifyReport, what: &str, out: &mut dyn Write) -> Result<()> {
    for Problem { tensor, problem } in &report.problems {
        match tensor {
            Some(tensor) => writeln!(out, "bad: {}: {problem}", text::quoted(tensor))?,
            None => writeln!(out, "bad: {problem}")?,
        }
    }
    for file in &report.unused {
        writeln!(out, "note: {} is no part of it", text::path(file))?;
    }
    if report.ok {
        let how = match (report.compared, report.read) {
            (true, _) => "every tensor is what the manifest says",
            (false, true) => "every byte can be read",
            (false, false) => "headers, indexes and sizes fit",
        };
        writeln!(out, "ok: {what}; {how}")?;
    }
    Ok(())
}

/// The report on what does not open, or is not even found.
fn damaged(args: &Verify, error: &anyhow::Error) -> VerifyReport {
    match error.downcast_ref() {
        Some(error) => VerifyReport::of_damage(args.named.path(), error),
        None => VerifyReport {
            problems: vec![Problem {
                tensor: None,
                problem: failure::chain(error),
            }],
            ..VerifyReport::default()
        },
    }
}
