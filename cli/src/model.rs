//! From what a user names to a checkpoint: paths, ids, samples, converted copies.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use tensora::formats::serverlessllm::{Dialect, INDEX_FILE};
use tensora::{Checkpoint, Layout, text};

use crate::failure::Usage;
use crate::hub::{self, Hub};
use crate::{args, config, copies, output, samples, size};

/// Size of the sample that is taken where nothing else is chosen.
const SAMPLE_BYTES: u64 = 256 << 20;

/// A checkpoint by path or id.
#[derive(Debug, Args)]
pub struct Named {
    /// Path of a folder, a file or an index; or the id of a model on the Hub
    #[arg(value_name = "PATH|ID")]
    name: PathBuf,
    #[command(flatten)]
    hub: Hub,
    /// safetensors or serverlessllm, where a folder holds both
    #[arg(long, value_parser = args::layout(), ignore_case = true, hide_possible_values = true)]
    layout: Option<Layout>,
}

impl Named {
    /// The name as it was given.
    pub fn path(&self) -> &Path {
        &self.name
    }

    /// Opens it, and gives the path that the name stands for.
    pub fn open(&self) -> Result<(PathBuf, Checkpoint)> {
        self.open_with(false)
    }

    /// As [`open`](Self::open); of a model of the Hub, the files for tokenizer and configuration
    /// are there, too.
    pub fn open_with_side_files(&self) -> Result<(PathBuf, Checkpoint)> {
        self.open_with(true)
    }

    fn open_with(&self, side_files: bool) -> Result<(PathBuf, Checkpoint)> {
        let path = self.hub.find(&self.name, |pull| {
            pull.layout(self.layout).side_files(side_files)
        })?;
        let checkpoint = open(&path, self.layout)?;
        Ok((path, checkpoint))
    }
}

/// What to measure: a model, a path, or else a sample.
#[derive(Debug, Args)]
pub struct Choice {
    /// Id of a model on the Hub (a path that exists wins)
    #[arg(long, value_name = "ID", conflicts_with = "path")]
    model_id: Option<String>,
    #[command(flatten)]
    hub: Hub,
    /// Path of a folder, a file or an index
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,
    /// A sample of this size, made once and kept in the cache folder [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["model_id", "path"])]
    sample: Option<u64>,
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
            (Some(id), _) => self.hub.find(Path::new(id), |pull| pull)?,
            (None, path) => path.clone().unwrap_or_default(),
        };
        Ok(Checkpoint::open(path)?.layout())
    }

    /// The choice as words of a command line.
    pub fn words(&self) -> Vec<String> {
        let path = self
            .path
            .as_ref()
            .map(|path| path.to_string_lossy().into_owned());
        [
            ("--model-id", self.model_id.clone()),
            ("--revision", self.hub.revision().map(str::to_owned)),
            ("--path", path),
            ("--sample", self.sample.map(|bytes| bytes.to_string())),
        ]
        .into_iter()
        .filter_map(|(option, value)| Some([option.to_owned(), value?]))
        .flatten()
        .chain(self.hub.is_offline().then(|| "--offline".to_owned()))
        .collect()
    }

    /// The chosen checkpoint in `layout`; where neither a model nor a path was chosen,
    /// a sample, which is made when it is not there yet.
    pub fn subject(&self, layout: Layout) -> Result<Subject> {
        if self.model_id.is_none() && self.hub.revision().is_some() {
            let message = "--revision is that of a model, which --model-id names";
            return Err(Usage(message.to_owned()).into());
        }
        let path = match (&self.model_id, &self.path) {
            (Some(id), _) => model(id, &self.hub, layout)?,
            (None, Some(path)) => in_layout(path, layout)?,
            (None, None) => samples::cached(self.sample.unwrap_or(SAMPLE_BYTES), layout)?,
        };
        Ok(Subject { path, layout })
    }
}

/// Opens a path in the given layout, or in the one that is found, for loads with the stored profile.
pub fn open(path: &Path, layout: Option<Layout>) -> tensora::Result<Checkpoint> {
    let options = Checkpoint::options().engine(config::engine());
    match layout {
        Some(layout) => options.layout(layout).open(path),
        None => options.open(path),
    }
}

/// The folder of model `id` in `layout`: its snapshot or, where that has another layout, the
/// converted copy in our cache, which is made when it is not there yet.
fn model(id: &str, hub: &Hub, layout: Layout) -> Result<PathBuf> {
    let is_path = hub::is_path(Path::new(id));
    let snapshot = hub.find(Path::new(id), |pull| pull)?;
    if is_path {
        return in_layout(&snapshot, layout);
    }
    if layout != Layout::ServerlessLlm || snapshot.join(INDEX_FILE).exists() {
        return Ok(snapshot);
    }
    let original = open(&snapshot, Some(Layout::SafeTensors))?;
    copies::cached(id, &snapshot, Dialect::Local, &original)
}

/// The path, unless it is that of a SafeTensors folder where ServerlessLLM is wanted: that is a
/// matter of converting it, and not of a missing file.
fn in_layout(path: &Path, layout: Layout) -> Result<PathBuf> {
    if layout == Layout::ServerlessLlm
        && path.is_dir()
        && Checkpoint::open(path).is_ok_and(|found| found.layout() == Layout::SafeTensors)
    {
        let words = [path.to_string_lossy().into_owned(), "OUT".to_owned()];
        bail!(
            "{}: this folder is in the SafeTensors layout; make a copy in the other one with: {}",
            text::path(path),
            invocation("convert", &words),
        );
    }
    Ok(path.to_owned())
}

/// A command line for one of the programs, in the way in which this one was started.
pub fn invocation(program: &str, words: &[String]) -> String {
    // Cargo names itself to what it runs.
    let mut line = match std::env::var_os("CARGO") {
        Some(_) => format!("cargo run --release --bin {program} --"),
        None => format!("tensora {program}"),
    };
    for word in words {
        line.push(' ');
        line.push_str(&quoted(word));
    }
    line
}

/// A word as a POSIX shell reads it. What a terminal would obey is spelled in octal, inside of `$'...'`.
pub fn quoted(word: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    if !word.is_empty() && word.chars().all(is_safe) {
        word.to_owned()
    } else if text::plain(word) != word {
        let mut line = "$'".to_owned();
        for c in word.chars() {
            let mut bytes = [0; 4];
            let spelled = c.encode_utf8(&mut bytes);
            if text::plain(spelled) != *spelled || matches!(c, '\\' | '\'') {
                line.extend(spelled.bytes().map(|byte| format!("\\{byte:03o}")));
            } else {
                line.push(c);
            }
        }
        line.push('\'');
        line
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What a checkpoint comes to, in a few words.
pub fn summary(checkpoint: &Checkpoint) -> String {
    output::checkpoint(
        checkpoint.layout(),
        checkpoint.tensors().len() as u64,
        checkpoint.total_bytes(),
        checkpoint.sources().len() as u64,
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
        assert_eq!(
            quoted("a\u{1b}[1m \u{202e}'\\é\n"),
            r"$'a\033[1m \342\200\256\047\134é\012'"
        );
    }
}
