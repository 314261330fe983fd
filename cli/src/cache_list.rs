//! `cache`: what is in the Hub cache, and what of it is converted, with sizes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::hf_model::{CachedModel, HubCache};
use tensora::text;

use crate::copies::{self, Copied};
use crate::{output, size};

/// List the models in the Hub cache, and their converted copies, with sizes.
#[derive(Debug, Args)]
pub struct Cache {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    hub: PathBuf,
    bytes: u64,
    models: Vec<Model>,
    converted: Vec<Copied>,
}

#[derive(Serialize)]
struct Model {
    id: String,
    path: PathBuf,
    bytes: u64,
    unfinished_bytes: u64,
    snapshots: Vec<Snapshot>,
}

#[derive(Serialize)]
struct Snapshot {
    commit: String,
    refs: Vec<String>,
    path: PathBuf,
    files: u64,
    bytes: u64,
    complete: bool,
}

impl From<CachedModel> for Model {
    fn from(model: CachedModel) -> Self {
        Self {
            id: model.id,
            path: model.path,
            bytes: model.bytes,
            unfinished_bytes: model.unfinished_bytes,
            snapshots: model
                .snapshots
                .into_iter()
                .map(|snapshot| Snapshot {
                    commit: snapshot.commit,
                    refs: snapshot.refs,
                    path: snapshot.path,
                    files: snapshot.files,
                    bytes: snapshot.bytes,
                    complete: snapshot.complete,
                })
                .collect(),
        }
    }
}

pub fn run(args: &Cache, out: &mut dyn Write) -> Result<()> {
    let hub = HubCache::from_env()?;
    let models: Vec<Model> = hub.models()?.into_iter().map(Model::from).collect();
    let report = Report {
        hub: hub.root().to_owned(),
        bytes: models.iter().map(|model| model.bytes).sum(),
        models,
        converted: copies::list()?,
    };
    if args.json {
        return output::json_line(out, &report);
    }
    writeln!(
        out,
        "{}: {} of {}",
        text::path(&report.hub),
        output::counted(report.models.len() as u64, "model"),
        size::bytes(report.bytes),
    )?;
    if !report.models.is_empty() {
        writeln!(out)?;
        let headings = ["model", "revision", "commit", "files", "size", "weights"];
        let mut table = output::table(&headings, &[3, 4]);
        for model in &report.models {
            for snapshot in &model.snapshots {
                table.add_row([
                    text::name(&model.id).into_owned(),
                    text::name(&snapshot.refs.join(", ")).into_owned(),
                    text::name(short(&snapshot.commit)).into_owned(),
                    snapshot.files.to_string(),
                    size::bytes(snapshot.bytes),
                    match snapshot.complete {
                        true => "complete".to_owned(),
                        false => "not complete".to_owned(),
                    },
                ]);
            }
            if model.unfinished_bytes > 0 {
                let unfinished = size::bytes(model.unfinished_bytes);
                let id = text::name(&model.id).into_owned();
                table.add_row([id.as_str(), "", "", "", &unfinished, "unfinished download"]);
            }
        }
        output::print_table(out, &table)?;
    }
    if !report.converted.is_empty() {
        writeln!(out)?;
        let headings = [
            "converted",
            "commit",
            "dialect",
            "partitions",
            "size",
            "copy",
            "path",
        ];
        let mut table = output::table(&headings, &[3, 4]);
        for copy in &report.converted {
            table.add_row([
                text::name(&copy.id).into_owned(),
                text::name(short(&copy.commit)).into_owned(),
                text::name(copy.dialect.as_deref().unwrap_or_default()).into_owned(),
                copy.partitions
                    .map_or_else(String::new, |count| count.to_string()),
                size::bytes(copy.bytes),
                match copy.complete {
                    true => "complete".to_owned(),
                    false => "not complete".to_owned(),
                },
                text::path(&copy.path),
            ]);
        }
        output::print_table(out, &table)?;
    }
    Ok(())
}

/// The start of a commit, which tells it from the others.
fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}
