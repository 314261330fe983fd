//! From what a user names to a checkpoint: paths, ids, samples, converted copies.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use tensora::{Checkpoint, Layout, hf_model};

use crate::{cache, samples, size};

/// A checkpoint by path or id.
#[derive(Debug, Args)]
pub struct Named {
    /// Path of a folder, a file or an index; or the id of a model in the local Hub cache
    #[arg(value_name = "PATH|ID")]
    name: PathBuf,
    /// Branch, tag or commit of a model that is named by its id
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// safetensors or serverlessllm, where a folder holds both
    #[arg(long)]
    layout: Option<Layout>,
}

impl Named {
    /// Opens it.
    pub fn open(&self) -> Result<Checkpoint> {
        let path = hf_model::resolve(&self.name, self.revision.as_deref())?;
        Ok(open(&path, self.layout)?)
    }

    /// The path that the name stands for.
    pub fn path(&self) -> Result<PathBuf> {
        Ok(hf_model::resolve(&self.name, self.revision.as_deref())?)
    }
}

/// What to measure: a model, a path, or else a sample.
#[derive(Debug, Args)]
pub struct Choice {
    /// Id of a model in the local Hub cache (a path that exists wins)
    #[arg(long, value_name = "ID", conflicts_with = "path")]
    model_id: Option<String>,
    /// Branch, tag or commit of the model
    #[arg(long, value_name = "REVISION", requires = "model_id")]
    revision: Option<String>,
    /// Path of a folder, a file or an index
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,
}

/// A checkpoint that can be opened again and again.
#[derive(Debug, Clone)]
pub struct Subject {
    pub path: PathBuf,
    pub layout: Layout,
}

impl Subject {
    pub fn open(&self) -> tensora::Result<Checkpoint> {
        open(&self.path, Some(self.layout))
    }
}

impl Choice {
    /// Whether neither a model nor a path was named.
    pub fn is_open(&self) -> bool {
        self.model_id.is_none() && self.path.is_none()
    }

    /// The layout of what was chosen, as it is found.
    pub fn layout(&self) -> Result<Layout> {
        let path = match (&self.model_id, &self.path) {
            (Some(id), _) => hf_model::resolve(id, self.revision.as_deref())?,
            (None, path) => path.clone().unwrap_or_default(),
        };
        Ok(Checkpoint::open(path)?.layout())
    }

    /// The choice as words of a command line, each after a space.
    pub fn words(&self) -> String {
        let mut words = String::new();
        let id = self.model_id.as_ref().map(|id| ("--model-id", quoted(id)));
        let revision = self
            .revision
            .as_ref()
            .map(|name| ("--revision", quoted(name)));
        let path = self
            .path
            .as_ref()
            .map(|path| ("--path", quoted(&path.to_string_lossy())));
        for (option, value) in [id, revision, path].into_iter().flatten() {
            words.push_str(&format!(" {option} {value}"));
        }
        words
    }

    /// The chosen checkpoint in `layout`; where nothing was chosen, a sample of `sample_bytes`,
    /// which is made when it is not there yet.
    pub fn subject(&self, layout: Layout, sample_bytes: u64) -> Result<Subject> {
        let path = match (&self.model_id, &self.path) {
            (Some(id), _) => model(id, self.revision.as_deref(), layout)?,
            (None, Some(path)) => path.clone(),
            (None, None) => samples::cached(sample_bytes, layout)?,
        };
        Ok(Subject { path, layout })
    }
}

/// Opens a path in the given layout, or in the one that is found.
pub fn open(path: &Path, layout: Option<Layout>) -> tensora::Result<Checkpoint> {
    match layout {
        Some(layout) => Checkpoint::options().layout(layout).open(path),
        None => Checkpoint::open(path),
    }
}

/// The folder of model `id` in `layout`: its snapshot or, where that has another layout, the
/// converted copy in our cache.
fn model(id: &str, revision: Option<&str>, layout: Layout) -> Result<PathBuf> {
    let is_path = Path::new(id).symlink_metadata().is_ok();
    let snapshot = hf_model::resolve(id, revision)?;
    let index = "tensor_index.json";
    if is_path || layout != Layout::ServerlessLlm || snapshot.join(index).exists() {
        return Ok(snapshot);
    }
    let copy = cache::converted(id, &snapshot)?;
    if copy.join(index).exists() {
        return Ok(copy);
    }
    bail!(
        "{id} has no copy in the ServerlessLLM layout at {}; make one with: tensora convert {}{} {}",
        copy.display(),
        quoted(id),
        revision.map_or(String::new(), |revision| format!(
            " --revision {}",
            quoted(revision)
        )),
        quoted(&copy.to_string_lossy()),
    )
}

/// A word as a POSIX shell reads it.
pub fn quoted(word: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    if !word.is_empty() && word.chars().all(is_safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What a checkpoint comes to, in a few words.
pub fn summary(checkpoint: &Checkpoint) -> String {
    let files = checkpoint.sources().len() as u64;
    format!(
        "{}, {} of {} in {}",
        checkpoint.layout(),
        crate::output::counted(checkpoint.tensors().len() as u64, "tensor"),
        size::bytes(checkpoint.total_bytes()),
        crate::output::counted(files, "file"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_read_them_otherwise() {
        assert_eq!(quoted("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $x"), r"'it'\''s $x'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("~"), "'~'");
    }
}
