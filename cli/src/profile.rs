//! `profile`: measured loads, iteration by iteration.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use tensora::facts::process;
use tensora::{BackendKind, Layout, text};

use crate::args::{self, Tuning, Unknown};
use crate::capabilities::{self, Capabilities};
use crate::failure::Usage;
use crate::measure::{Bench, Figures, Reader};
use crate::model::Choice;
use crate::spread::Spread;
use crate::trace_file::{TraceFile, TraceTo};
use crate::{model, output, size};

/// Measure loads, or show what this machine can do.
#[derive(Debug, Args)]
pub struct Profile {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measure loads of a SafeTensors checkpoint
    Safetensors(Loads),
    /// Measure loads of a ServerlessLLM checkpoint; of a model of the Hub a copy is made once
    Serverlessllm(Loads),
    /// Show what this machine can do
    Capabilities(Capabilities),
}

/// What is measured, and how.
#[derive(Debug, Args)]
struct Loads {
    /// default, sync, async, io-uring, mmap; native (std::fs::read of file after file),
    /// native-parallel (a thread for each file). A file that is truncated while mmap has it mapped
    /// ends the program with SIGBUS; the others report an error
    #[arg(value_parser = args::one_of::<Case>(&CASES), hide_possible_values = true)]
    case: Case,
    #[command(flatten)]
    choice: Choice,
    /// How many loads
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = args::count(1_000_000))]
    iterations: u64,
    /// Before each load, drop the files of the plan from the page cache
    #[arg(long, alias = "evict-page-cache")]
    cold: bool,
    /// Before each load, drop the page cache of the whole machine; needs root
    #[arg(long)]
    drop_caches: bool,
    /// One JSON object per line, for each load
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    trace: TraceTo,
}

/// Names of cases, with their other spellings.
const CASES: [&str; 7] = [
    "default",
    "sync",
    "async|tokio",
    "io-uring|io_uring",
    "mmap",
    "native|hf-native",
    "native-parallel",
];

/// Who reads: a backend, or a plain read to compare with.
#[derive(Debug, Clone, Copy)]
enum Case {
    Backend(BackendKind),
    Native,
    NativeParallel,
}

impl FromStr for Case {
    type Err = Unknown;

    fn from_str(name: &str) -> Result<Self, Unknown> {
        match (name, name.parse()) {
            ("native" | "hf-native", _) => Ok(Self::Native),
            ("native-parallel", _) => Ok(Self::NativeParallel),
            (_, Ok(backend)) => Ok(Self::Backend(backend)),
            _ => Err(Unknown {
                name: name.to_owned(),
                known: "default, sync, async, io-uring, mmap, native, native-parallel",
            }),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backend(backend) => backend.fmt(f),
            Self::Native => f.write_str("native"),
            Self::NativeParallel => f.write_str("native-parallel"),
        }
    }
}

/// One line of the JSON output.
#[derive(Serialize)]
struct Record<'a> {
    iteration: u64,
    /// What was asked for; `backend` is who read.
    case: String,
    layout: Layout,
    path: PathBuf,
    cold: bool,
    /// Bytes of the files that stayed in the page cache when they were evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_after_evict_bytes: Option<u64>,
    #[serde(flatten)]
    figures: &'a Figures,
}

pub fn run(args: &Profile, out: &mut dyn Write) -> Result<()> {
    match &args.what {
        What::Safetensors(loads) => measure(loads, Layout::SafeTensors, out),
        What::Serverlessllm(loads) => measure(loads, Layout::ServerlessLlm, out),
        What::Capabilities(args) => capabilities::run(args, out),
    }
}

fn measure(args: &Loads, layout: Layout, out: &mut dyn Write) -> Result<()> {
    let reader = args.reader()?;
    let trace = args.trace.open()?;
    let bench = Bench::new(args.choice.subject(layout)?)?;
    if let Some(file) = &trace {
        file.refuse_part_of(bench.checkpoint())?;
    }
    let path =
        std::path::absolute(&bench.subject().path).unwrap_or_else(|_| bench.subject().path.clone());
    if !args.json {
        writeln!(
            out,
            "{}: {}",
            text::path(&path),
            model::summary(bench.checkpoint())
        )?;
        out.flush()?;
    }
    let mapped = matches!(args.case, Case::Backend(BackendKind::Mmap));
    let mut all = Vec::new();
    for iteration in 1..=args.iterations {
        // Maps nothing that stays: eviction and residency are looked at afterwards.
        let map_ms = mapped.then(|| bench.map()).transpose()?;
        if args.drop_caches {
            process::drop_caches()
                .context("--drop-caches needs root; --cold evicts the plan's own files without")?;
        }
        let left_after_evict_bytes = args.cold.then(|| bench.evict()).transpose()?;
        // Once everything is in its stride.
        let last = iteration == args.iterations;
        let trace = trace.as_ref().filter(|_| last).map(TraceFile::trace);
        let (figures, tensors) = bench.run_traced(&reader, trace)?;
        drop(tensors);
        let figures = Figures { map_ms, ..figures };
        let record = Record {
            iteration,
            case: args.case.to_string(),
            layout,
            path: path.clone(),
            cold: args.cold || args.drop_caches,
            left_after_evict_bytes,
            figures: &figures,
        };
        if args.json {
            output::json_line(out, &record)?;
        } else {
            print_iteration(out, &record, bench.span_bytes())?;
        }
        all.push(figures);
    }
    trace.map_or(Ok(()), TraceFile::finish)?;
    if !args.json {
        print_summary(out, args, &all)?;
    }
    Ok(())
}

impl Loads {
    fn reader(&self) -> Result<Reader> {
        let plain = match self.case {
            Case::Backend(backend) => {
                return Ok(Reader::Library(self.tuning.settings(backend)?));
            }
            Case::Native => Reader::Native,
            Case::NativeParallel => Reader::NativeParallel,
        };
        match self.tuning.given() {
            Some(option) => Err(Usage(format!("{} reads take no {option}", self.case)).into()),
            None if self.trace.is_given() => {
                Err(Usage(format!("{} reads take no --trace", self.case)).into())
            }
            None => Ok(plain),
        }
    }
}

fn print_iteration(out: &mut dyn Write, record: &Record<'_>, span_bytes: u64) -> Result<()> {
    let figures = record.figures;
    write!(
        out,
        "iteration {}: {} {}, {}, {:.2} ms, {:.2} GiB/s",
        record.iteration,
        figures.backend,
        output::counted(figures.tensors, "tensor"),
        output::counted(figures.bytes, "byte"),
        figures.ms,
        figures.gib_per_s,
    )?;
    if let Some(first) = figures.first_tensor_ms {
        write!(out, ", first tensor {first:.2} ms")?;
    }
    if let Some(map) = figures.map_ms {
        write!(out, ", mapped after {map:.2} ms")?;
    }
    if let Some(cpu) = figures.cpu_s {
        write!(out, ", CPU {cpu:.3} s")?;
    }
    if let Some(peak) = figures.peak_rss_bytes {
        write!(out, ", peak {}", size::bytes(peak))?;
    }
    let resident = figures.resident_before_bytes;
    write!(
        out,
        ", in the page cache before {}",
        share(resident, span_bytes)
    )?;
    if let Some(disk) = figures.disk_read_bytes {
        write!(out, ", from disk {}", size::bytes(disk))?;
    }
    if let Some(left) = record.left_after_evict_bytes {
        write!(out, ", {} stayed after evicting", size::bytes(left))?;
    }
    writeln!(out)?;
    Ok(out.flush()?)
}

fn print_summary(out: &mut dyn Write, args: &Loads, all: &[Figures]) -> Result<()> {
    let Some(last) = all.last() else {
        return Ok(());
    };
    let of = |figure: fn(&Figures) -> Option<f64>| Spread::of(all.iter().filter_map(figure));
    let ms = of(|figures| Some(figures.ms));
    let count = output::counted(all.len() as u64, "iteration");
    writeln!(out)?;
    if let Some(Spread { median, min, max }) = ms {
        writeln!(
            out,
            "{count}: median {median:.2} ms | min {min:.2} ms | max {max:.2} ms"
        )?;
        writeln!(
            out,
            "throughput      {:.2} GiB/s",
            size::gib_per_s(last.bytes, median)
        )?;
    }
    let rows: [(&str, &str, Option<Spread>); 5] = [
        ("first tensor", "ms", of(|figures| figures.first_tensor_ms)),
        ("time to map", "ms", of(|figures| figures.map_ms)),
        ("opening", "ms", of(|figures| Some(figures.open_ms))),
        ("CPU", "s", of(|figures| figures.cpu_s)),
        (
            "peak RSS",
            "MiB",
            of(|figures| figures.peak_rss_bytes.map(mib)),
        ),
    ];
    for (name, unit, spread) in rows {
        // Every load opens in little time; only plain reads do not at all.
        if let Some(Spread { median, min, max }) = spread.filter(|spread| spread.max > 0.0) {
            writeln!(
                out,
                "{name:<14}  {median:.2} {unit} (min {min:.2}, max {max:.2})"
            )?;
        }
    }
    writeln!(out, "backend         {} ({})", last.backend, last.reason)?;
    let workers = output::counted(last.workers, "worker");
    writeln!(
        out,
        "workers         {workers}, {}",
        output::counted(last.files, "file")
    )?;
    if let Some(profile) = &last.profile {
        writeln!(out, "profile         {profile}")?;
    }
    if let Some(trace) = &last.trace {
        // Of the last iteration only.
        writeln!(out, "where time went {trace}")?;
    }
    if !args.cold && !args.drop_caches {
        let warm = "files may come from the page cache; --cold evicts them before each load";
        writeln!(out, "page cache      {warm}")?;
    }
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "nothing".to_owned();
    }
    format!("{:.0} %", 100.0 * part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_the_names_that_they_print() {
        for name in [
            "default",
            "sync",
            "async",
            "io-uring",
            "mmap",
            "native",
            "native-parallel",
        ] {
            assert_eq!(name.parse::<Case>().unwrap().to_string(), name);
        }
        assert_eq!("hf-native".parse::<Case>().unwrap().to_string(), "native");
        assert_eq!("tokio".parse::<Case>().unwrap().to_string(), "async");
        let error = "fast".parse::<Case>().unwrap_err().to_string();
        assert!(error.contains("native-parallel"), "{error}");
    }
}
