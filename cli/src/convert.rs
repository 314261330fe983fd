//! `convert`: from one layout to the other, or to other files of the same.
//!
//! The library decides and does it; this is its arguments and its report.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tensora::converters::{Conversion, ConvertOptions};
use tensora::formats::serverlessllm::Dialect;
use tensora::{BackendKind, Layout, text};

use crate::args::DialectName;
use crate::cleanup::Unfinished;
use crate::failure::Usage;
use crate::model::Named;
use crate::progress::Progress;
use crate::{args, output, size};

/// Convert a checkpoint from one layout to the other, or to other files of the same.
#[derive(Debug, Args)]
pub struct Convert {
    #[command(flatten)]
    named: Named,
    /// Folder to write into; without --force it must be empty or not there
    out: PathBuf,
    /// Layout to write, safetensors or serverlessllm [default: the other one]
    #[arg(long, value_name = "LAYOUT", value_parser = args::layout(), ignore_case = true, hide_possible_values = true)]
    to: Option<Layout>,
    /// Partitions (or SafeTensors files) to write [default: a partition for each 512 MiB]
    #[arg(short, long, value_name = "N", value_parser = args::count(100_000))]
    partitions: Option<u64>,
    /// Bytes of tensors in a SafeTensors file at most, such as 2GiB [default: 5GB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "partitions")]
    max_shard_size: Option<u64>,
    /// ServerlessLLM entries as this project has them (tensora: 6 elements, balanced partitions), or
    /// as the store of ServerlessLLM reads them (store: 5 elements) [default: tensora]
    #[arg(long, value_name = "DIALECT", value_parser = args::dialect(), hide_possible_values = true)]
    dialect: Option<DialectName>,
    /// No bytes between tensors, which otherwise begin at multiples of 64
    #[arg(long)]
    packed: bool,
    /// Who reads: default, sync, async, io-uring, mmap
    #[arg(short, long, default_value_t, value_parser = args::backend(), hide_possible_values = true)]
    backend: BackendKind,
    /// Bytes in memory at most
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512MiB")]
    budget: u64,
    /// Go on where the same conversion was interrupted, and keep what this one leaves if it fails
    #[arg(long)]
    resume: bool,
    /// Read back what was written, and compare every tensor's hash
    #[arg(long)]
    verify: bool,
    /// Write into a folder that is not empty; an earlier checkpoint in it is replaced at the end, and
    /// with --resume nothing is done again that need not be
    #[arg(long)]
    force: bool,
    /// One JSON object that says what was written
    #[arg(long)]
    json: bool,
}

/// Refuses what contradicts itself whatever the input is, before that is looked for.
fn check(args: &Convert) -> Result<(), Usage> {
    let safetensors = args.to == Some(Layout::SafeTensors);
    let serverlessllm = args.to == Some(Layout::ServerlessLlm);
    let store = matches!(args.dialect, Some(DialectName(Dialect::Global)));
    let refused = [
        (
            safetensors && args.packed,
            "SafeTensors files have no bytes between tensors; leave --packed out",
        ),
        (
            safetensors && args.dialect.is_some(),
            "--dialect is for --to serverlessllm; leave one of them out",
        ),
        (
            serverlessllm && args.max_shard_size.is_some(),
            "--max-shard-size is for --to safetensors; give a number of partitions with -p",
        ),
        (
            store && args.packed,
            "the store dialect always pads tensors to 8 bytes; leave --packed out",
        ),
    ];
    match refused.into_iter().find(|(refused, _)| *refused) {
        Some((_, why)) => Err(Usage(why.to_owned())),
        None => Ok(()),
    }
}

pub fn run(args: &Convert, out: &mut dyn Write) -> Result<()> {
    check(args)?;
    let (path, checkpoint) = args.named.open_with_side_files()?;
    // An index stands for its folder.
    let is_index = path.extension().is_some_and(|end| end == "json");
    let options = ConvertOptions {
        to: args.to,
        partitions: args.partitions.map(|count| count as u32),
        max_shard_bytes: args.max_shard_size,
        dialect: args.dialect.map_or(Dialect::Local, |name| name.0),
        packed: args.packed,
        backend: args.backend,
        budget: args.budget,
        // What lies beside a single file may belong to anything.
        companions: path.is_dir() || is_index,
        resume: args.resume,
        force: args.force,
        verify: args.verify,
    };
    let conversion = Conversion::plan(&checkpoint, &options)?;
    let unfinished = Unfinished::claim(|| conversion.claim(&args.out))?;
    let passes = if args.verify { 2 } else { 1 };
    let progress = Progress::bytes("converting", conversion.total_bytes() * passes);
    let report = conversion.run(&unfinished, &|bytes| progress.add(bytes))?;
    drop(progress);
    unfinished.keep()?;
    // Notes go to stderr: they are about the arguments or the input, and the report stays what it is.
    if let Some(asked) = args.partitions
        && report.data_files < asked
    {
        let what = match report.to {
            Layout::ServerlessLlm => "partition",
            Layout::SafeTensors => "SafeTensors file",
        };
        eprintln!(
            "note: {} written, not {asked}: none is empty, and no tensor is cut",
            output::counted(report.data_files, what),
        );
    }
    if !report.untied.is_empty() {
        let names: Vec<_> = report
            .untied
            .iter()
            .map(|name| text::quoted(name))
            .collect();
        eprintln!(
            "note: SafeTensors cannot share bytes, so that these have their own now ({} more): {}{}",
            size::bytes(report.doubled_bytes),
            names[..names.len().min(8)].join(", "),
            if names.len() > 8 { ", ..." } else { "" },
        );
    }
    say("replaced, as they had other contents", &report.replaced);
    say("removed, as the earlier checkpoint", &report.removed);
    say("left as they were, as the input has none", &report.kept);
    say(
        "not copied along, as no regular files of UTF-8 names",
        &report.skipped,
    );
    for conflict in &report.metadata_conflicts {
        eprintln!(
            "note: the files have different metadata {}; kept is {}",
            text::quoted(&conflict.key),
            text::quoted(&conflict.kept),
        );
    }
    if args.json {
        return output::json_line(out, &report);
    }
    let written = format!(
        "{}: {}, {} of {} in {}",
        text::path(&report.folder),
        report.to,
        output::counted(report.tensors, "tensor"),
        size::bytes(report.tensor_bytes),
        output::parts(report.to, report.data_files, report.files.len() as u64),
    );
    let resumed = match report.resumed_bytes {
        0 => String::new(),
        bytes => format!("; {} were there already", size::bytes(bytes)),
    };
    writeln!(
        out,
        "{written}, read by {}; {} copied along{resumed}{}",
        report.backend,
        output::counted(report.copied.len() as u64, "other file"),
        if report.verified { "; verified" } else { "" },
    )?;
    Ok(())
}

/// A note about files, by name.
fn say(what: &str, files: &[PathBuf]) {
    if files.is_empty() {
        return;
    }
    let names: Vec<_> = files
        .iter()
        .map(|file| file.file_name().unwrap_or_default().to_string_lossy())
        .map(|name| tensora::text::name(&name).into_owned())
        .collect();
    eprintln!(
        "note: these files were {what}: {}{}",
        names[..names.len().min(8)].join(", "),
        if names.len() > 8 { ", ..." } else { "" },
    );
}
