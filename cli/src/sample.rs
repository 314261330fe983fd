//! `sample`: writes a checkpoint whose bytes are a function of names and offsets.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tensora::sample::{SampleSpec, write_sample_in};
use tensora::{Dtype, Layout};

use crate::cleanup::Unfinished;
use crate::progress::Progress;
use crate::{args, output, size};

/// Write a sample checkpoint, which needs no network: the same bytes everywhere.
#[derive(Debug, Args)]
pub struct Sample {
    /// Folder to write into; it must be empty or not there
    out: PathBuf,
    /// Size of all tensors together, such as 4GiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: u64,
    /// SafeTensors files [default: 4]
    #[arg(long, value_name = "N", value_parser = args::count(100_000))]
    shards: Option<u64>,
    /// ServerlessLLM partitions [default: 4]
    #[arg(long, value_name = "N", value_parser = args::count(100_000))]
    partitions: Option<u64>,
    /// Exactly so many tensors, as of a mixture of experts; else those of a dense model
    #[arg(long, value_name = "N", value_parser = args::count(10_000_000))]
    tensors: Option<u64>,
    /// Element type of all tensors
    #[arg(long, default_value = "bf16", value_parser = dtype)]
    dtype: Dtype,
    /// safetensors or serverlessllm
    #[arg(long, default_value_t = Layout::SafeTensors, value_parser = args::layout(), ignore_case = true, hide_possible_values = true)]
    layout: Layout,
    /// One JSON object that says what was written
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Sample, out: &mut dyn Write) -> Result<()> {
    let standard = SampleSpec::default();
    let number = |asked: Option<u64>, standard| asked.map_or(standard, |count| count as u32);
    let spec = SampleSpec {
        total_bytes: args.size,
        shards: number(args.shards, standard.shards),
        partitions: number(args.partitions, standard.partitions),
        tensors: args.tensors.map(|count| count as u32),
        dtype: args.dtype,
        layout: args.layout,
    };
    let unfinished = Unfinished::claim_empty(&args.out)?;
    let progress = Progress::waiting(format!("writing {}", size::bytes(args.size)));
    let report = write_sample_in(&unfinished, &spec)?;
    drop(progress);
    unfinished.keep()?;
    if args.json {
        return output::json_line(out, &report);
    }
    let written = output::written(
        &report.folder,
        report.layout,
        report.tensors,
        report.tensor_bytes,
        report.files.len() as u64,
    );
    writeln!(out, "{written}")?;
    Ok(())
}

fn dtype(name: &str) -> Result<Dtype, String> {
    Dtype::from_torch(name).ok_or_else(|| {
        let known: Vec<&str> = Dtype::ALL.iter().map(|dtype| dtype.name()).collect();
        format!("unknown type {name:?}; use one of {}", known.join(", "))
    })
}
