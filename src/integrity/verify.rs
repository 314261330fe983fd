//! Is a checkpoint what it should be? Its structure always; every byte when asked for; every hash
//! with a manifest.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Layout;
use crate::integrity::digest::Entries;
use crate::integrity::hash::hash;
use crate::integrity::manifest::Manifest;
use crate::integrity::options::HashOptions;
use crate::text;

/// What to look at, and how.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// Read and hash every byte, also without a manifest.
    pub deep: bool,
    /// What the tensors should be.
    pub manifest: Option<Manifest>,
    /// The layout, where a folder holds both.
    pub layout: Option<Layout>,
    /// How to read what is hashed.
    pub hash: HashOptions,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The tensor concerned, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<Box<str>>,
    /// What is wrong, as a sentence.
    pub problem: String,
}

/// What was looked at, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct VerifyReport {
    /// Whether nothing is wrong.
    pub ok: bool,
    /// Tensors of the checkpoint; 0 where it does not open.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether every byte was read and hashed.
    pub read: bool,
    /// Whether hashes were compared with a manifest.
    pub compared: bool,
    /// Weights in the folder that are not part of the checkpoint.
    pub unused: Vec<PathBuf>,
    /// What is wrong: with a manifest, one for each tensor that is not as it says.
    pub problems: Vec<Problem>,
}

impl VerifyReport {
    /// The report on a checkpoint that does not open: the error, and what each of its SafeTensors
    /// files says by itself.
    pub fn of_damage(path: &Path, error: &Error) -> Self {
        let mut problems = vec![Problem::of(error)];
        problems.extend(damaged_files(path, error));
        Self {
            problems,
            ..Self::default()
        }
    }
}

impl Problem {
    fn of(error: &Error) -> Self {
        Self {
            tensor: error.tensor_name().map(Into::into),
            problem: text::chain(error),
        }
    }
}

/// Opens and checks a checkpoint. That it does not open, or that a part of it cannot be read, is a
/// problem in the report, and no error. `progress` is told bytes as they are hashed.
///
/// # Errors
/// As [`hash`], where bytes are read; not those that say that the checkpoint is damaged.
pub fn verify(
    path: impl AsRef<Path>,
    options: &VerifyOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<VerifyReport> {
    let path = path.as_ref();
    let open = Checkpoint::options();
    let opened = match options.layout {
        Some(layout) => open.layout(layout).open(path),
        None => open.open(path),
    };
    match opened {
        Ok(checkpoint) => verify_checkpoint(&checkpoint, options, progress),
        Err(error) => Ok(VerifyReport::of_damage(path, &error)),
    }
}

/// Checks a checkpoint that is open, and whose headers, indexes and sizes therefore fit.
///
/// # Errors
/// As [`verify`].
pub fn verify_checkpoint(
    checkpoint: &Checkpoint,
    options: &VerifyOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<VerifyReport> {
    let mut report = VerifyReport {
        tensors: checkpoint.tensors().len() as u64,
        bytes: checkpoint.total_bytes(),
        unused: unused(checkpoint),
        ..VerifyReport::default()
    };
    if options.deep || options.manifest.is_some() {
        match hash(checkpoint, &options.hash, progress) {
            Ok(found) => {
                report.read = true;
                if let Some(manifest) = &options.manifest {
                    report.compared = true;
                    report.problems = objections(&manifest.tensors, &found);
                }
            }
            // What this is to find.
            Err(error) if is_damage(&error) => report.problems.push(Problem::of(&error)),
            Err(error) => return Err(error),
        }
    }
    report.ok = report.problems.is_empty();
    Ok(report)
}

/// Whether reading failed because of what was read, and not of how or by whom.
fn is_damage(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Io | ErrorKind::Truncated | ErrorKind::SourceChanged | ErrorKind::NotFound
    )
}

/// Files of weights beside those of the checkpoint, which an index may leave out on purpose. Whoever
/// opened a single file has nothing to do with those beside it.
fn unused(checkpoint: &Checkpoint) -> Vec<PathBuf> {
    let used: Vec<&Path> = checkpoint.sources().iter().map(|s| s.path()).collect();
    if used.contains(&checkpoint.path()) {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir(checkpoint.root()) else {
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

/// What is expected, and not found so.
fn objections(expected: &Entries, found: &Entries) -> Vec<Problem> {
    let listed = expected.iter().filter_map(|(name, expected)| {
        let problem = match found.get(name) {
            Some(entry) => expected.objection(entry)?,
            None => "it is missing".to_owned(),
        };
        Some((&**name, problem))
    });
    let unlisted = found
        .keys()
        .filter(|name| !expected.contains_key(*name))
        .map(|name| (&**name, "the manifest does not list it".to_owned()));
    let problem = |(name, problem): (&str, String)| Problem {
        tensor: Some(name.into()),
        problem,
    };
    listed.chain(unlisted).map(problem).collect()
}

/// What is wrong with the SafeTensors files of a folder, beside what `known` says.
fn damaged_files(folder: &Path, known: &Error) -> Vec<Problem> {
    let mut problems = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return problems;
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "safetensors"));
    files.sort();
    for file in files {
        // The first error is about one of them.
        if known.path() == Some(&*file) {
            continue;
        }
        if let Err(error) = Checkpoint::options().layout(Layout::SafeTensors).open(file) {
            // An interrupted conversion is a matter of the folder, and is said once.
            if error.path() == Some(folder) {
                break;
            }
            problems.push(Problem::of(&error));
        }
    }
    problems
}
