//! Converting, verifying, hashing, comparing, downloading, and what this machine can do.
//!
//! Reports cross as JSON text, which the Python files read.

use std::path::PathBuf;

use pyo3::prelude::*;
use serde::Serialize;
use tensora::converters::{Conversion, ConvertOptions, SingleFile};
use tensora::formats::serverlessllm::Dialect;
use tensora::hf_model::{Client, Pull};
use tensora::integrity::{self, CompareOptions, HashOptions, Manifest, VerifyOptions};
use tensora::{CancelToken, Checkpoint, Settings};

use crate::checkpoint::{find, layout};
use crate::errors::{checked, refused};
use crate::request::backend;
use crate::wait::interruptible;

/// A function of Python that is told bytes as they are done.
type Progress = Option<Py<PyAny>>;

/// Tells it from any thread. What it raises is its own matter: the work goes on.
fn tell(progress: &Progress, bytes: u64) {
    if let Some(progress) = progress {
        Python::attach(|py| {
            if let Err(error) = progress.call1(py, (bytes,)) {
                error.write_unraisable(py, Some(progress.bind(py)));
            }
        });
    }
}

fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("reports have string keys and finite numbers")
}

/// How to convert, with the names that Python gives it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Wanted {
    to: Option<String>,
    partitions: Option<u32>,
    max_shard_size: Option<u64>,
    dialect: String,
    packed: bool,
    backend: String,
    memory_budget: Option<u64>,
    resume: bool,
    force: bool,
    verify: bool,
}

impl Wanted {
    fn options(&self) -> PyResult<ConvertOptions> {
        let defaults = ConvertOptions::default();
        Ok(ConvertOptions {
            to: self.to.as_deref().map(layout).transpose()?,
            partitions: self.partitions,
            max_shard_bytes: self.max_shard_size,
            dialect: match &*self.dialect {
                "tensora" => Dialect::Local,
                "store" => Dialect::Global,
                other => {
                    let message = format!("unknown dialect {other:?}; known are tensora, store");
                    return Err(refused(message));
                }
            },
            packed: self.packed,
            backend: backend(&self.backend)?,
            budget: self.memory_budget.unwrap_or(defaults.budget),
            resume: self.resume,
            force: self.force,
            verify: self.verify,
            ..defaults
        })
    }
}

/// Converts a checkpoint, and gives the report.
#[pyfunction]
pub fn convert(
    py: Python<'_>,
    name: PathBuf,
    revision: Option<&str>,
    out: PathBuf,
    wanted: Wanted,
    progress: Progress,
) -> PyResult<String> {
    let options = wanted.options()?;
    let token = CancelToken::default();
    let report = interruptible(py, &token, || {
        let path = find(&name, revision, &token, |pull| pull.side_files(true))?;
        let options = ConvertOptions {
            // What lies beside a single file may belong to anything.
            companions: path.is_dir(),
            ..options
        };
        let checkpoint = Checkpoint::open(path)?;
        let conversion = Conversion::plan(&checkpoint, &options)?.cancel_with(token.clone());
        let folder = conversion.claim(&out)?;
        let report = conversion.run(&folder, &|bytes| tell(&progress, bytes))?;
        folder.release(|_| Ok(()))?;
        Ok(report)
    })?;
    Ok(json(&report))
}

/// Checks a checkpoint, and gives the report.
#[pyfunction]
#[pyo3(signature = (name, revision, layout, manifest, deep, backend, memory_budget, progress))]
#[allow(clippy::too_many_arguments)] // One for each of Python's.
pub fn verify(
    py: Python<'_>,
    name: PathBuf,
    revision: Option<&str>,
    layout: Option<&str>,
    manifest: Option<PathBuf>,
    deep: bool,
    backend: &str,
    memory_budget: Option<u64>,
    progress: Progress,
) -> PyResult<String> {
    let layout = layout.map(self::layout).transpose()?;
    let hash = hashing(backend, memory_budget)?;
    let token = hash.cancel.clone();
    let report = interruptible(py, &token, || {
        let path = find(&name, revision, &token, |pull| pull.layout(layout))?;
        let manifest = manifest.map(Manifest::read).transpose()?;
        let options = VerifyOptions {
            deep,
            manifest,
            layout,
            hash,
        };
        integrity::verify(path, &options, &|bytes| tell(&progress, bytes))
    })?;
    Ok(json(&report))
}

/// Digests of every tensor by name; written to a manifest, too, where a path for one is given.
#[pyfunction]
#[pyo3(signature = (name, revision, layout, manifest, backend, memory_budget, progress))]
#[allow(clippy::too_many_arguments)] // One for each of Python's.
pub fn hash(
    py: Python<'_>,
    name: PathBuf,
    revision: Option<&str>,
    layout: Option<&str>,
    manifest: Option<PathBuf>,
    backend: &str,
    memory_budget: Option<u64>,
    progress: Progress,
) -> PyResult<String> {
    let layout = layout.map(self::layout).transpose()?;
    let options = hashing(backend, memory_budget)?;
    let token = options.cancel.clone();
    let entries = interruptible(py, &token, || {
        let is_ours = Manifest::is_begun_by;
        let place = manifest.map(|path| SingleFile::for_report(path, "manifest", is_ours));
        let place = place.transpose()?;
        let path = find(&name, revision, &token, |pull| pull.layout(layout))?;
        let opened = crate::checkpoint::open(path, layout)?;
        if let Some(place) = &place {
            place.refuse_part_of(&opened)?;
        }
        let entries = integrity::hash(&opened, &options, &|bytes| tell(&progress, bytes))?;
        let manifest = Manifest::new(entries);
        if let Some(place) = place {
            manifest.write_to(place)?;
        }
        Ok(manifest.tensors)
    })?;
    Ok(json(&entries))
}

fn hashing(backend: &str, memory_budget: Option<u64>) -> PyResult<HashOptions> {
    Ok(HashOptions {
        settings: Settings {
            backend: self::backend(backend)?,
            budget: memory_budget,
            ..Settings::default()
        },
        ..HashOptions::default()
    })
}

/// What differs between two checkpoints.
#[pyfunction]
pub fn diff(
    py: Python<'_>,
    a: PathBuf,
    b: PathBuf,
    backend: &str,
    memory_budget: Option<u64>,
    progress: Progress,
) -> PyResult<String> {
    let defaults = CompareOptions::default();
    let options = CompareOptions {
        backend: self::backend(backend)?,
        budget: memory_budget.unwrap_or(defaults.budget),
        ..defaults
    };
    let token = options.cancel.clone();
    let found = interruptible(py, &token, || {
        let open = |name| Checkpoint::open(find(name, None, &token, |pull| pull)?);
        let (a, b) = (open(&a)?, open(&b)?);
        integrity::compare(&a, &b, &options, &|bytes| tell(&progress, bytes))
    })?;
    Ok(json(&found))
}

/// Makes a model complete in the cache of the Hub, and gives its folder.
#[pyfunction]
pub fn pull(
    py: Python<'_>,
    id: &str,
    revision: Option<&str>,
    layout: Option<&str>,
    side_files: bool,
) -> PyResult<PathBuf> {
    let layout = layout.map(self::layout).transpose()?;
    let token = CancelToken::default();
    interruptible(py, &token, || {
        let client = Client::from_env()?.cancel(token.clone());
        let wanted = Pull::new(id).revision(revision).layout(layout);
        let snapshot = client.pull(&wanted.side_files(side_files))?;
        Ok(snapshot.path().to_owned())
    })
}

/// What this machine offers to loads.
#[pyfunction]
pub fn capabilities(py: Python<'_>) -> PyResult<String> {
    let facts = py.detach(|| tensora::Facts::probe(&[], &[]));
    checked(py, Ok(json(&facts)))
}
