//! The programs of Tensora share this crate: one file for each command, and the rooms that they
//! have in common (arguments, output, exit codes, signals, measuring).
//!
//! `tensora` has every command; `profile`, `demo` and `convert` are the same commands under the
//! names that older instructions use. This crate is no library for others: use `tensora`.

mod args;
mod cache;
mod cleanup;
mod config;
mod copies;
mod date;
mod digest;
mod failure;
mod folders;
mod hub;
mod measure;
mod model;
mod output;
mod program;
mod progress;
mod reference;
mod samples;
mod size;
mod spread;
mod stdout;
mod trace_file;

mod cache_list;
mod calibrate;
mod capabilities;
mod completions;
mod convert;
mod demo;
mod diff;
mod hash;
mod inspect;
mod plan;
mod profile;
mod pull;
mod sample;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use completions::Program;

const ABOUT: &str = "Loads checkpoints of large language models, and shows how";
const ABOUT_PROFILE: &str = "Measures loads of checkpoints, and shows what this machine can do";
const ABOUT_DEMO: &str =
    "Loads a checkpoint with every backend, and proves that all bytes are equal";
const ABOUT_CONVERT: &str = "Converts a checkpoint from SafeTensors to ServerlessLLM, or back";

/// All commands in one program.
#[derive(Debug, Args)]
struct Tensora {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Download a model into the Hub cache, without loading it
    Pull(pull::Pull),
    /// List the models in the Hub cache, and their converted copies
    Cache(cache_list::Cache),
    /// Show what a checkpoint holds: tensors, types, files, layers
    Inspect(inspect::Inspect),
    /// Load a checkpoint and print a SHA-256 digest for each tensor
    Hash(hash::Hash),
    /// Check a checkpoint: its structure and, with a manifest, every hash
    Verify(verify::Verify),
    /// Show what differs between two checkpoints, in whatever layouts
    Diff(diff::Diff),
    /// Explain what would be read and how, without reading it
    Plan(plan::Plan),
    /// Write a sample checkpoint, which needs no network
    Sample(sample::Sample),
    /// Convert a checkpoint from one layout to the other
    Convert(convert::Convert),
    /// Measure loads, or show what this machine can do
    Profile(profile::Profile),
    /// Measure the storage, so that loads choose what is fastest on it
    Calibrate(calibrate::Calibrate),
    /// Load a checkpoint with every backend, and prove that all bytes are equal
    Demo(demo::Demo),
    /// Print a script that completes this program's arguments in a shell
    Completions(completions::Completions),
}

/// The program `tensora`.
pub fn tensora() -> ExitCode {
    program::run(
        "tensora",
        ABOUT,
        |args: Tensora, out: &mut dyn Write| match args.command {
            Command::Pull(args) => pull::run(&args, out),
            Command::Cache(args) => cache_list::run(&args, out),
            Command::Inspect(args) => inspect::run(&args, out),
            Command::Hash(args) => hash::run(&args, out),
            Command::Verify(args) => verify::run(&args, out),
            Command::Diff(args) => diff::run(&args, out),
            Command::Plan(args) => plan::run(&args, out),
            Command::Sample(args) => sample::run(&args, out),
            Command::Convert(args) => convert::run(&args, out),
            Command::Profile(args) => profile::run(&args, out),
            Command::Calibrate(args) => calibrate::run(&args, out),
            Command::Demo(args) => demo::run(&args, out),
            Command::Completions(args) => completions::run(&args, arguments, out),
        },
    )
}

/// The arguments of one of the programs.
fn arguments(program: Program) -> clap::Command {
    match program {
        Program::Tensora => program::arguments::<Tensora>("tensora", ABOUT),
        Program::Convert => program::arguments::<convert::Convert>("convert", ABOUT_CONVERT),
        Program::Profile => program::arguments::<profile::Profile>("profile", ABOUT_PROFILE),
        Program::Demo => program::arguments::<demo::Demo>("demo", ABOUT_DEMO),
    }
}

/// The program `profile`.
pub fn profile() -> ExitCode {
    program::run("profile", ABOUT_PROFILE, |args, out| {
        profile::run(&args, out)
    })
}

/// The program `demo`.
pub fn demo() -> ExitCode {
    program::run("demo", ABOUT_DEMO, |args, out| demo::run(&args, out))
}

/// The program `convert`.
pub fn convert() -> ExitCode {
    program::run("convert", ABOUT_CONVERT, |args, out| {
        convert::run(&args, out)
    })
}
