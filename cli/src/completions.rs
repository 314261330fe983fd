//! `completions`: scripts for shells, from the same table as the help.

use std::io::Write;

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

/// Print a script that completes this program's arguments in a shell.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

pub fn run(args: &Completions, command: &mut Command, out: &mut dyn Write) -> Result<()> {
    // It writes to memory first: it takes failing writes for impossible.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "tensora", &mut script);
    Ok(out.write_all(&script)?)
}
