//! `hash`: loads a checkpoint with one backend and prints a digest for each tensor.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::text::plain;

use crate::args::{Backend, Tuning};
use crate::digest::{Digests, Entry};
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
    let progress = Progress::bytes("hashing", checkpoint.total_bytes());
    let mut loader = checkpoint
        .loader()
        .settings(args.tuning.settings(args.backend.kind)?)
        .budget(args.budget)
        .digests(tensora::Digests::Sha256);
    if let Some(file) = &trace {
        loader = loader.trace(file.trace());
    }
    let mut digests = Digests::new();
    for tensor in loader.stream()? {
        let tensor = tensor?;
        digests.insert(tensor.name().into(), Entry::of(&tensor));
        progress.add(tensor.nbytes() as u64);
    }
    drop(progress);
    trace.map_or(Ok(()), |file| file.finish())?;
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
