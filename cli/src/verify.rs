//! `verify`: is a checkpoint what it should be? Its structure always; every byte with `--deep`; every
//! hash with a manifest.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use tensora::{Checkpoint, Layout, text};

use crate::args::Backend;
use crate::hash::digests;
use crate::model::{Named, summary};
use crate::{failure, manifest, output, size};

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

/// One thing that is wrong.
#[derive(Serialize)]
struct Problem {
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    problem: String,
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    tensors: u64,
    bytes: u64,
    /// Whether every byte was read and hashed.
    read: bool,
    /// Whether hashes were compared with a manifest.
    compared: bool,
    /// Weights in the folder that are not part of the checkpoint.
    unused: Vec<PathBuf>,
    problems: Vec<Problem>,
}

pub fn run(args: &Verify, out: &mut dyn Write) -> Result<()> {
    // Before the reading: a wrong file name is said at once.
    let manifest = args.manifest.as_deref().map(manifest::read).transpose()?;
    let mut report = Report {
        ok: false,
        tensors: 0,
        bytes: 0,
        read: false,
        compared: false,
        unused: Vec::new(),
        problems: Vec::new(),
    };
    let mut what = String::new();
    match args.named.open() {
        Ok((_, checkpoint)) => {
            report.tensors = checkpoint.tensors().len() as u64;
            report.bytes = checkpoint.total_bytes();
            what = summary(&checkpoint);
            report.unused = unused(&checkpoint);
            if args.deep || manifest.is_some() {
                let loader = checkpoint.loader().backend(args.backend.kind);
                let found = digests(loader.budget(args.budget), checkpoint.total_bytes())?;
                report.read = true;
                report.compared = manifest.is_some();
                if let Some(manifest) = &manifest {
                    report.problems = objections(manifest, &found);
                }
            }
        }
        Err(error) => report.problems = damaged(args.named.path(), &error)?,
    }
    report.ok = report.problems.is_empty();
    if args.json {
        output::json_line(out, &report)?;
    } else {
        for Problem { tensor, problem } in &report.problems {
            match tensor {
                Some(tensor) => writeln!(out, "bad: {}: {problem}", text::name(tensor))?,
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
    }
    match report.problems.len() as u64 {
        0 => Ok(()),
        count => {
            out.flush()?;
            bail!("{} found", output::counted(count, "problem"))
        }
    }
}

/// Files of weights beside those of the checkpoint, which an index may leave out on purpose.
fn unused(checkpoint: &Checkpoint) -> Vec<PathBuf> {
    let root = checkpoint.root();
    let used: Vec<&Path> = checkpoint.sources().iter().map(|s| s.path()).collect();
    let Ok(entries) = std::fs::read_dir(root) else {
        return Vec::new();
    };
    let is_weights = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("tensor.data_") || name.ends_with(".safetensors")
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut unused: Vec<PathBuf> = paths
        .filter(is_weights)
        .filter(|path| !used.contains(&&**path))
        .collect();
    unused.sort();
    unused
}

/// What a manifest has against what was found.
fn objections(manifest: &manifest::Manifest, found: &crate::digest::Digests) -> Vec<Problem> {
    let expected = manifest.tensors.iter().filter_map(|(name, expected)| {
        let problem = match found.get(&**name) {
            Some(entry) => expected.objection(entry)?,
            None => "it is missing".to_owned(),
        };
        Some((name.clone(), problem))
    });
    let unknown = found
        .keys()
        .filter(|name| !manifest.tensors.contains_key(&***name))
        .map(|name| (name.to_string(), "the manifest does not list it".to_owned()));
    expected
        .chain(unknown)
        .map(|(name, problem)| Problem {
            tensor: Some(name),
            problem,
        })
        .collect()
}

/// Everything that is wrong with a checkpoint that does not open: the error, and what each of its
/// SafeTensors files says by itself.
fn damaged(path: &Path, error: &anyhow::Error) -> Result<Vec<Problem>> {
    let tensor = |error: &tensora::Error| error.tensor_name().map(str::to_owned);
    let known = error.downcast_ref::<tensora::Error>();
    let mut problems = vec![Problem {
        tensor: known.and_then(tensor),
        problem: failure::chain(error),
    }];
    let Ok(entries) = std::fs::read_dir(path) else {
        return Ok(problems);
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "safetensors"));
    files.sort();
    for file in files {
        // The first error is about one of them.
        if known.and_then(tensora::Error::path) == Some(&*file) {
            continue;
        }
        let opened = Checkpoint::options().layout(Layout::SafeTensors).open(file);
        if let Err(error) = opened {
            // An interrupted conversion is a matter of the folder, and is said once.
            if error.path() == Some(path) {
                break;
            }
            problems.push(Problem {
                tensor: tensor(&error),
                problem: failure::chain(&error.into()),
            });
        }
    }
    Ok(problems)
}
