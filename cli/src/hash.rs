//! `hash`: loads a checkpoint with one backend and prints a digest for each tensor.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::converters::SingleFile;
use tensora::integrity::{Entry, HashOptions, Manifest};
use tensora::text::plain;
use tensora::{Settings, integrity};

use crate::args::{Backend, Tuning};
use crate::model::Named;
use crate::output;
use crate::progress::Progress;
use crate::size;
use crate::trace_file::TraceTo;

/// Load a checkpoint and print a SHA-256 digest for each tensor, sorted by name.
#[derive(Debug, Args)]
pub struct Hash {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    backend: Backend,
    /// Bytes that may be read or wait at once, those that are being hashed included
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512MiB")]
    budget: u64,
    #[command(flatten)]
    tuning: Tuning,
    /// One JSON object per line: name, dtype, shape, nbytes, sha256
    #[arg(long)]
    json: bool,
    /// Write a manifest to this file, for tensora verify, and print only how many tensors it
    /// lists; - is the standard output
    #[arg(long, value_name = "OUT", conflicts_with = "json")]
    manifest: Option<PathBuf>,
    #[command(flatten)]
    trace: TraceTo,
}

/// One line of the JSON output.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    #[serde(flatten)]
    entry: &'a Entry,
}

pub fn run(args: &Hash, out: &mut dyn Write) -> Result<()> {
    let trace = args.trace.open()?;
    let manifest = args.manifest.as_ref();
    let manifest =
        manifest.map(|path| SingleFile::for_report(path, "manifest", Manifest::is_begun_by));
    let manifest = manifest.transpose()?;
    let (_, checkpoint) = args.named.open()?;
    if let Some(file) = &manifest {
        file.refuse_part_of(&checkpoint)?;
    }
    if let Some(file) = &trace {
        file.refuse_part_of(&checkpoint)?;
    }
    let options = HashOptions {
        settings: Settings {
            budget: Some(args.budget),
            ..args.tuning.settings(args.backend.kind)?
        },
        trace: trace.as_ref().map(|file| file.trace().clone()),
        ..HashOptions::default()
    };
    let progress = Progress::bytes("hashing", checkpoint.total_bytes());
    let entries = integrity::hash(&checkpoint, &options, &|bytes| progress.add(bytes))?;
    drop(progress);
    trace.map_or(Ok(()), |file| file.finish())?;
    if let Some(file) = manifest {
        let count = output::counted(entries.len() as u64, "tensor");
        let (path, is_stdout) = (file.path().to_owned(), file.is_stdout());
        Manifest::new(entries).write_to(file)?;
        if !is_stdout {
            writeln!(out, "{}: {count}", tensora::text::path(&path))?;
        }
        return Ok(());
    }
    for (name, entry) in &entries {
        if args.json {
            serde_json::to_writer(&mut *out, &Line { name, entry })?;
            writeln!(out)?;
        } else {
            let (sha, dtype, shape) = (entry.sha256, entry.dtype, &entry.shape);
            writeln!(
                out,
                "{sha}  {}  {dtype} {}",
                plain(name),
                output::shape(shape)
            )?;
        }
    }
    Ok(())
}
