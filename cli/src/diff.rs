//! `diff`: what differs between two checkpoints, tensor by tensor, in whatever layouts they are.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::integrity::{CompareOptions, Comparison, Difference, What, compare};
use tensora::text;

use crate::args::Backend;
use crate::failure::Reported;
use crate::hub::Hub;
use crate::model;
use crate::progress::Progress;
use crate::{output, size};

/// Show what differs between two checkpoints: tensors that only one has, types, shapes, bytes. Exit
/// code 1 when something does.
#[derive(Debug, Args)]
pub struct Diff {
    /// A path, or the id of a model on the Hub
    #[arg(value_name = "PATH|ID")]
    a: PathBuf,
    /// Another one
    #[arg(value_name = "PATH|ID")]
    b: PathBuf,
    #[command(flatten)]
    hub: Hub,
    #[command(flatten)]
    backend: Backend,
    /// Bytes that may be read or wait at once, of both together
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512MiB")]
    budget: u64,
    /// One JSON object with everything that differs
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    same: bool,
    same_tensors: u64,
    compared_bytes: u64,
    only_in_a: &'a [Box<str>],
    only_in_b: &'a [Box<str>],
    differing: &'a [Difference],
}

pub fn run(args: &Diff, out: &mut dyn Write) -> Result<()> {
    let open = |name: &PathBuf| -> Result<_> {
        Ok(model::open(&args.hub.find(name, |pull| pull)?, None)?)
    };
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let options = CompareOptions {
        backend: args.backend.kind,
        budget: args.budget,
        ..CompareOptions::default()
    };
    let progress = Progress::bytes("comparing", a.total_bytes() + b.total_bytes());
    let found = compare(&a, &b, &options, &|bytes| progress.add(bytes))?;
    drop(progress);
    if args.json {
        let report = Report {
            same: found.is_same(),
            same_tensors: found.same,
            compared_bytes: found.compared_bytes,
            only_in_a: &found.only_in_a,
            only_in_b: &found.only_in_b,
            differing: &found.differing,
        };
        output::json_line(out, &report)?;
    } else {
        print(&found, out)?;
    }
    if found.is_same() {
        return Ok(());
    }
    out.flush()?;
    let count = found.only_in_a.len() + found.only_in_b.len() + found.differing.len();
    let what = format!("{} differ", output::counted(count as u64, "tensor"));
    Err(Reported(what).into())
}

fn print(found: &Comparison, out: &mut dyn Write) -> Result<()> {
    for name in &found.only_in_a {
        writeln!(out, "only in A: {}", text::quoted(name))?;
    }
    for name in &found.only_in_b {
        writeln!(out, "only in B: {}", text::quoted(name))?;
    }
    for difference in &found.differing {
        let name = text::quoted(&difference.name);
        match &difference.what {
            What::Dtype { a, b } => writeln!(out, "dtype: {name}: {a} in A, {b} in B")?,
            What::Shape { a, b } => writeln!(
                out,
                "shape: {name}: {} in A, {} in B",
                output::shape(a),
                output::shape(b)
            )?,
            What::Bytes { first } => writeln!(out, "bytes: {name}: from byte {first}")?,
        }
    }
    if found.is_same() {
        let tensors = output::counted(found.same, "tensor");
        writeln!(
            out,
            "same: {tensors}, {}",
            size::bytes(found.compared_bytes)
        )?;
    }
    Ok(())
}
