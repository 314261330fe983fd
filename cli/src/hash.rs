//! `hash`: loads a checkpoint with one backend and prints a digest for each tensor.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::Loader;
use tensora::text::plain;

use crate::args::{Backend, Tuning};
use crate::digest::{Digests, Entry};
use crate::manifest;
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
    /// Write a manifest to this file, for tensora verify, and print only how many tensors it lists
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
    let (_, checkpoint) = args.named.open()?;
    let mut loader = checkpoint
        .loader()
        .settings(args.tuning.settings(args.backend.kind)?)
        .budget(args.budget);
    if let Some(file) = &trace {
        loader = loader.trace(file.trace());
    }
    let digests = digests(loader, checkpoint.total_bytes())?;
    trace.map_or(Ok(()), |file| file.finish())?;
    if let Some(path) = &args.manifest {
        manifest::write(path, &digests)?;
        let count = output::counted(digests.len() as u64, "tensor");
        writeln!(out, "{}: {count}", tensora::text::path(path))?;
        return Ok(());
    }
    for (name, entry) in &digests {
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

/// The digests of everything that `loader` selects, hashed on every core while the rest is read.
pub fn digests(loader: Loader, total_bytes: u64) -> tensora::Result<Digests> {
    let progress = Progress::bytes("hashing", total_bytes);
    let mut digests = Digests::new();
    for tensor in loader.digests(tensora::Digests::Sha256).stream()? {
        let tensor = tensor?;
        digests.insert(tensor.name().into(), Entry::of(&tensor));
        progress.add(tensor.nbytes() as u64);
    }
    Ok(digests)
}
