//! `completions`: scripts for shells, from the same table as the help.

use std::io::Write;

use anyhow::Result;
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

/// Print a script that completes this program's arguments in a shell.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
    /// Whose arguments: convert, profile and demo are programs of their own, too. A convert of another
    /// package may be there, and so each has its own script
    #[arg(value_enum, default_value_t = Program::Tensora)]
    program: Program,
}

/// The programs.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Program {
    Tensora,
    Convert,
    Profile,
    Demo,
}

pub fn run(
    args: &Completions,
    command: impl FnOnce(Program) -> Command,
    out: &mut dyn Write,
) -> Result<()> {
    let mut command = command(args.program);
    let name = command.get_name().to_owned();
    // It writes to memory first: it takes failing writes for impossible.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    Ok(out.write_all(&script)?)
}
