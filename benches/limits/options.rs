//! What the command line says of sizes, repetitions and the place of the samples.

use std::path::{Path, PathBuf};

pub struct Options {
    /// MiB of a checkpoint.
    pub mib: u64,
    /// Fewer repetitions, and fewer sizes.
    pub quick: bool,
    /// Where samples are made.
    pub folder: PathBuf,
    /// Only the measures with this word in their name.
    pub only: Option<String>,
}

impl Options {
    pub fn from_args() -> Self {
        let mut options = Self {
            mib: 2048,
            quick: false,
            folder: Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned(),
            only: None,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{arg} wants a value"));
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--size" => options.mib = value().parse().expect("a size in MiB"),
                "--dir" => options.folder = value().into(),
                "--only" => options.only = Some(value()),
                // Cargo adds it.
                "--bench" => {}
                other => panic!("unknown argument {other}"),
            }
        }
        options
    }

    pub fn repetitions(&self) -> usize {
        if self.quick { 3 } else { 7 }
    }
}
