//! `pull`: a model into the Hub cache, without loading it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tensora::{Layout, Selection, hf_model, text};

use crate::hub::Hub;
use crate::{args, output, size};

/// Download a model into the Hub cache, without loading it.
///
/// What is there is not downloaded again, and an interrupted download goes on where it stopped.
#[derive(Debug, Args)]
pub struct Pull {
    /// Id of the model, such as Qwen/Qwen3-0.6B
    id: String,
    #[command(flatten)]
    hub: Hub,
    /// Only the files that hold a tensor whose name matches; may be given several times
    #[arg(long, value_name = "GLOB")]
    select: Vec<String>,
    /// Also the files for tokenizer and configuration
    #[arg(long)]
    with_tokenizer: bool,
    /// safetensors or serverlessllm, where a repository holds both
    #[arg(long, value_parser = args::layout(), ignore_case = true, hide_possible_values = true)]
    layout: Option<Layout>,
    /// Show no progress, and print nothing
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// One JSON object that says what is there, and what was downloaded
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    id: String,
    commit: String,
    path: PathBuf,
    bytes: u64,
    downloaded_bytes: u64,
    files: Vec<File>,
}

#[derive(Serialize)]
struct File {
    path: String,
    bytes: u64,
    downloaded_bytes: u64,
}

pub fn run(args: &Pull, out: &mut dyn Write) -> Result<()> {
    let mut pull = hf_model::Pull::new(&*args.id)
        .revision(args.hub.revision())
        .layout(args.layout)
        .side_files(args.with_tokenizer);
    if let Some(selection) = selection(&args.select)? {
        pull = pull.select(selection);
    }
    let snapshot = args.hub.client(args.quiet)?.pull(&pull)?;
    if args.quiet {
        return Ok(());
    }
    let files: Vec<File> = snapshot
        .files()
        .iter()
        .map(|file| File {
            path: file.path.clone(),
            bytes: file.size,
            downloaded_bytes: file.downloaded,
        })
        .collect();
    let report = Report {
        id: args.id.clone(),
        commit: snapshot.commit().to_owned(),
        path: snapshot.path().to_owned(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        downloaded_bytes: files.iter().map(|file| file.downloaded_bytes).sum(),
        files,
    };
    if args.json {
        return output::json_line(out, &report);
    }
    writeln!(
        out,
        "{}: {} of {}, {}",
        text::path(&report.path),
        output::counted(report.files.len() as u64, "file"),
        size::bytes(report.bytes),
        match report.downloaded_bytes {
            0 => "all there before".to_owned(),
            bytes => format!("{} downloaded", size::bytes(bytes)),
        },
    )?;
    Ok(())
}

fn selection(globs: &[String]) -> Result<Option<Selection>> {
    let mut selection: Option<Selection> = None;
    for glob in globs {
        let more = Selection::glob(glob)?;
        selection = Some(match selection {
            Some(selection) => selection.or(more),
            None => more,
        });
    }
    Ok(selection)
}
