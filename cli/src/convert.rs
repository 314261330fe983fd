//! `convert`: from SafeTensors to ServerlessLLM, and back.
//!
//! The chosen backend reads a stream under a budget, and each tensor goes to its place as it
//! arrives: memory is bounded, whatever the checkpoint's size.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::converters::{
    CheckpointWriter, OutputFolder, OutputPlan, OutputTensor, RECOMMENDED_PARTITION_BYTES,
    SafetensorsOptions, ServerlessLlmOptions, Sharding, WriteOptions, plan_safetensors,
    plan_serverlessllm,
};
use tensora::hf_model::is_side_file;
use tensora::{BackendKind, Checkpoint, Error, Layout};

use crate::cleanup::Unfinished;
use crate::model::Named;
use crate::progress::Progress;
use crate::{args, digest, output};

/// Bytes that are read ahead of the writing.
const BUDGET_BYTES: u64 = 512 << 20;

/// Bytes of configuration files that are in memory at a time.
const COPY_BYTES: usize = 1 << 20;

/// Size of a SafeTensors file at most, as the Hub's tools have it.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Convert a checkpoint from one layout to the other.
#[derive(Debug, Args)]
pub struct Convert {
    #[command(flatten)]
    named: Named,
    /// Folder to write into; it must be empty or not there
    out: PathBuf,
    /// Partitions (or SafeTensors files) to write [default: one for each 512 MiB]
    #[arg(short, long, value_name = "N", value_parser = args::count(100_000))]
    partitions: Option<u64>,
    /// Who reads: default, sync, async, io-uring, mmap
    #[arg(short, long, default_value_t)]
    backend: BackendKind,
    /// One JSON object that says what was written
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    from: Layout,
    to: Layout,
    folder: PathBuf,
    backend: BackendKind,
    tensors: u64,
    tensor_bytes: u64,
    data_files: u64,
    files: Vec<PathBuf>,
    file_bytes: u64,
    copied: Vec<PathBuf>,
}

pub fn run(args: &Convert, out: &mut dyn Write) -> Result<()> {
    let (path, checkpoint) = args.named.open_with_side_files()?;
    let side_files = side_files(&path, &checkpoint)?;
    let unfinished = Unfinished::claim_empty(&args.out)?;
    let report = convert(args, &checkpoint, &side_files, &unfinished)?;
    unfinished.keep()?;
    if let Some(asked) = args.partitions
        && report.data_files < asked
    {
        let what = match report.to {
            Layout::ServerlessLlm => "partition",
            Layout::SafeTensors => "SafeTensors file",
        };
        // On stderr: it is about the arguments, and the report stays what it is.
        eprintln!(
            "note: {} written, not {asked}: none is empty, and no tensor is cut",
            output::counted(report.data_files, what),
        );
    }
    if args.json {
        return output::json_line(out, &report);
    }
    let written = output::written(
        &report.folder,
        report.to,
        report.tensors,
        report.tensor_bytes,
        report.files.len() as u64,
    );
    writeln!(
        out,
        "{written}, read by {}; {} copied along",
        report.backend,
        output::counted(report.copied.len() as u64, "other file"),
    )?;
    Ok(())
}

fn convert(
    args: &Convert,
    checkpoint: &Checkpoint,
    side_files: &[SideFile],
    folder: &OutputFolder,
) -> Result<Report> {
    let (to, plan) = output_plan(checkpoint, args.partitions)?;
    let (tensors, data_files) = (plan.tensors.len() as u64, plan.files.len() as u64);
    let places: HashMap<Box<str>, usize> = plan
        .tensors
        .iter()
        .enumerate()
        .map(|(index, tensor)| (tensor.name.clone(), index))
        .collect();
    let loader = checkpoint
        .loader()
        .backend(args.backend)
        .budget(BUDGET_BYTES);
    // Before anything is written: an unavailable backend writes nothing.
    let backend = loader.schedule()?.decision().backend;
    let beside: u64 = side_files.iter().map(|file| file.len).sum();
    folder.require_space(plan.total_file_bytes().saturating_add(beside))?;
    let writer = CheckpointWriter::create_in(folder, plan, WriteOptions::default())?;
    let progress = Progress::bytes("converting", checkpoint.total_bytes());
    digest::for_each(loader.stream()?, |tensor| {
        let mut sink = writer.tensor(places[tensor.name()])?;
        sink.write(tensor.bytes())?;
        progress.add(tensor.nbytes() as u64);
        sink.finish()
    })?;
    drop(progress);
    let mut copied = Vec::with_capacity(side_files.len());
    for file in side_files {
        copied.push(copy(&file.path, folder)?);
    }
    // The index comes last: only now is it a checkpoint.
    let written = writer.finish()?;
    Ok(Report {
        from: checkpoint.layout(),
        to,
        folder: args.out.clone(),
        backend,
        tensors,
        tensor_bytes: written.tensor_bytes,
        data_files,
        files: written.files,
        file_bytes: written.file_bytes,
        copied,
    })
}

/// The same tensors in the other layout.
fn output_plan(checkpoint: &Checkpoint, parts: Option<u64>) -> Result<(Layout, OutputPlan)> {
    let tensors: Vec<OutputTensor> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| OutputTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        })
        .collect();
    match checkpoint.layout() {
        Layout::SafeTensors => {
            let bytes = checkpoint.total_bytes();
            let standard = bytes.div_ceil(RECOMMENDED_PARTITION_BYTES).max(1);
            let partitions = u32::try_from(parts.unwrap_or(standard)).unwrap_or(u32::MAX);
            let options = ServerlessLlmOptions {
                partitions: Some(partitions),
            };
            Ok((
                Layout::ServerlessLlm,
                plan_serverlessllm(tensors, &options)?,
            ))
        }
        Layout::ServerlessLlm => {
            let sharding = match parts {
                Some(count) => Sharding::Count(count as u32),
                None => Sharding::MaxBytes(SHARD_BYTES),
            };
            let options = SafetensorsOptions {
                sharding,
                ..SafetensorsOptions::default()
            };
            Ok((Layout::SafeTensors, plan_safetensors(tensors, &options)?))
        }
    }
}

/// A configuration or tokenizer file, and its length in bytes when it was found.
struct SideFile {
    path: PathBuf,
    len: u64,
}

/// Copies a file into the folder, in chunks: nothing says that it is small.
fn copy(file: &Path, folder: &OutputFolder) -> tensora::Result<PathBuf> {
    let failed = |error| Error::io("read", file, error);
    let mut from = File::open(file).map_err(failed)?;
    let mut to = folder.file(file.file_name().unwrap_or_default())?;
    let mut chunk = vec![0; COPY_BYTES];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        to.write_all(&chunk[..count])
            .map_err(|error| Error::io("write", to.target(), error))?;
    }
    let target = to.target().to_owned();
    to.commit()?;
    Ok(target)
}

/// Configuration and tokenizer beside the weights. Only of a folder: what lies beside a single file
/// may belong to anything.
fn side_files(named: &Path, checkpoint: &Checkpoint) -> Result<Vec<SideFile>> {
    if !named.is_dir() {
        return Ok(Vec::new());
    }
    let root = checkpoint.root();
    let failed = |error: io::Error| Error::io("list", root, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Links of the Hub cache are followed.
        let path = entry.path();
        let is_side_file = entry.file_name().to_str().is_some_and(is_side_file);
        if is_side_file
            && let Ok(metadata) = path.metadata()
            && metadata.is_file()
        {
            let len = metadata.len();
            files.push(SideFile { path, len });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
