//! `convert`: from SafeTensors to ServerlessLLM, and back.
//!
//! The chosen backend reads a stream under a budget, and each tensor goes to its place as it
//! arrives: memory is bounded, whatever the checkpoint's size.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use tensora::converters::{
    AtomicFile, CheckpointWriter, OutputPlan, OutputTensor, RECOMMENDED_PARTITION_BYTES,
    SafetensorsOptions, ServerlessLlmOptions, Sharding, WriteOptions, plan_safetensors,
    plan_serverlessllm,
};
use tensora::{BackendKind, Checkpoint, Error, Layout};

use crate::cleanup::Unfinished;
use crate::model::Named;
use crate::progress::Progress;
use crate::{args, digest, output, samples, size};

/// Bytes that are read ahead of the writing.
const BUDGET_BYTES: u64 = 512 << 20;

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
    /// Who reads: default, sync, async, io-uring
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
    files: Vec<PathBuf>,
    file_bytes: u64,
    copied: Vec<PathBuf>,
}

pub fn run(args: &Convert, out: &mut dyn Write) -> Result<()> {
    let (path, checkpoint) = args.named.open()?;
    let side_files = side_files(&path, &checkpoint)?;
    refuse_occupied(&args.out)?;
    let unfinished = Unfinished::new(&args.out, is_written)
        .map_err(|error| Error::io("look into the folder", &args.out, error))?;
    let report = convert(args, &checkpoint, &side_files)?;
    unfinished.keep();
    if args.json {
        return output::json_line(out, &report);
    }
    writeln!(
        out,
        "{}: {}, {} of {} in {}, read by {}; {} copied along",
        report.folder.display(),
        report.to,
        output::counted(report.tensors, "tensor"),
        size::bytes(report.tensor_bytes),
        output::counted(report.files.len() as u64, "file"),
        report.backend,
        output::counted(report.copied.len() as u64, "other file"),
    )?;
    Ok(())
}

fn convert(args: &Convert, checkpoint: &Checkpoint, side_files: &[PathBuf]) -> Result<Report> {
    let (to, plan) = output_plan(checkpoint, args.partitions)?;
    let tensors = plan.tensors.len() as u64;
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
    let writer = CheckpointWriter::create(&args.out, plan, WriteOptions::default())?;
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
        let bytes = std::fs::read(file).map_err(|error| Error::io("read", file, error))?;
        let target = args.out.join(file.file_name().unwrap_or_default());
        AtomicFile::replace(&target, &bytes)?;
        copied.push(target);
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

/// Configuration and tokenizer beside the weights. Only of a folder: what lies beside a single file
/// may belong to anything.
fn side_files(named: &Path, checkpoint: &Checkpoint) -> Result<Vec<PathBuf>> {
    if !named.is_dir() {
        return Ok(Vec::new());
    }
    let root = checkpoint.root();
    let failed = |error: io::Error| Error::io("list", root, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Links of the Hub cache are followed.
        if is_side_file(&entry.file_name()) && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a name is that of a configuration or tokenizer file, and not of weights or an index.
fn is_side_file(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    let endings = [
        ".json",
        ".txt",
        ".model",
        ".jinja",
        ".tiktoken",
        ".vocab",
        ".bpe",
        ".py",
    ];
    !name.starts_with('.')
        && endings.iter().any(|ending| name.ends_with(ending))
        && !name.ends_with(".index.json")
        && name != "tensor_index.json"
}

/// Whether a conversion writes files of this name.
fn is_written(name: &OsStr) -> bool {
    samples::is_written(name) || is_side_file(name)
}

fn refuse_occupied(folder: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| Error::io("list", folder, error))?,
    };
    for entry in entries {
        let name = entry
            .map_err(|error| Error::io("list", folder, error))?
            .file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            bail!(
                "{}: the folder is not empty: it holds {}; choose another one, or remove it first",
                folder.display(),
                name.display(),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_copied_and_weights_and_indexes_are_not() {
        for name in [
            "config.json",
            "tokenizer.model",
            "merges.txt",
            "chat_template.jinja",
        ] {
            assert!(is_side_file(OsStr::new(name)), "{name}");
        }
        for name in [
            "model.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin.index.json",
            "tensor_index.json",
            "tensor.data_0",
            "pytorch_model.bin",
            ".gitattributes",
            ".x.json",
        ] {
            assert!(!is_side_file(OsStr::new(name)), "{name}");
        }
    }
}
