//! Arguments that several commands share, and names that are parsed.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tensora::formats::serverlessllm::Dialect;
use tensora::{AccessMode, BackendKind, Layout, Settings};

use crate::failure::Usage;
use crate::size;

/// How to read: everything has a default that is chosen for the machine and the plan.
#[derive(Debug, Clone, Default, Args)]
pub struct Tuning {
    /// Threads (sync, async) or rings (io-uring)
    #[arg(long, value_name = "N", value_parser = count(1024))]
    pub workers: Option<u64>,
    /// Reads in flight for each ring (io-uring)
    #[arg(long, value_name = "N", value_parser = count(4096))]
    pub queue_depth: Option<u64>,
    /// Largest single read, such as 8MiB
    #[arg(long, value_name = "SIZE", value_parser = chunk)]
    pub chunk: Option<u64>,
    /// Through the page cache (buffered), around it (direct), or each where it pays (auto)
    #[arg(long, value_name = "MODE", value_parser = access(), hide_possible_values = true)]
    pub access: Option<Access>,
}

impl Tuning {
    /// These settings for `backend`, if it takes those that were given: what would be ignored is a
    /// mistake of the caller. `default` takes all, as hints for whichever it chooses.
    pub fn settings(&self, backend: BackendKind) -> Result<Settings, Usage> {
        let direct = matches!(self.access, Some(Access(AccessMode::Direct)));
        let ring = matches!(backend, BackendKind::IoUring | BackendKind::Default);
        let ignored = [
            ("--queue-depth", self.queue_depth.is_some() && !ring),
            ("--access direct", direct && backend == BackendKind::Mmap),
        ];
        if let Some((option, _)) = ignored.into_iter().find(|(_, given)| *given) {
            return Err(Usage(format!("the {backend} backend takes no {option}")));
        }
        Ok(Settings {
            backend,
            workers: self.workers.map(|count| count as usize),
            queue_depth: self.queue_depth.map(|count| count as usize),
            chunk_bytes: self.chunk,
            access: self.access.unwrap_or_default().0,
            ..Settings::default()
        })
    }

    /// The first of these options that was given.
    pub fn given(&self) -> Option<&'static str> {
        [
            ("--workers", self.workers.is_some()),
            ("--queue-depth", self.queue_depth.is_some()),
            ("--chunk", self.chunk.is_some()),
            ("--access", self.access.is_some()),
        ]
        .into_iter()
        .find_map(|(name, given)| given.then_some(name))
    }
}

/// Who reads.
#[derive(Debug, Clone, Copy, Args)]
pub struct Backend {
    /// Who reads: default, sync, async, io-uring, mmap. A file that is truncated while mmap has it
    /// mapped ends the program with SIGBUS; the others report an error
    #[arg(id = "backend", short, long, value_name = "BACKEND", default_value_t, value_parser = backend(), hide_possible_values = true)]
    pub kind: BackendKind,
}

/// [`AccessMode`] by name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Access(pub AccessMode);

impl FromStr for Access {
    type Err = Unknown;

    fn from_str(name: &str) -> Result<Self, Unknown> {
        match name {
            "auto" => Ok(Self(AccessMode::Auto)),
            "buffered" => Ok(Self(AccessMode::Buffered)),
            "direct" => Ok(Self(AccessMode::Direct)),
            _ => Err(Unknown {
                name: name.to_owned(),
                known: "auto, buffered, direct",
            }),
        }
    }
}

/// [`Dialect`] by name.
#[derive(Debug, Clone, Copy)]
pub struct DialectName(pub Dialect);

impl fmt::Display for DialectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Dialect::Local => "tensora",
            Dialect::Global => "store",
        })
    }
}

impl FromStr for DialectName {
    type Err = Unknown;

    fn from_str(name: &str) -> Result<Self, Unknown> {
        let known = [Dialect::Local, Dialect::Global].map(Self);
        let found = known.into_iter().find(|known| known.to_string() == name);
        found.ok_or_else(|| Unknown {
            name: name.to_owned(),
            known: "tensora, store",
        })
    }
}

/// A name that is not among those that are known.
#[derive(Debug)]
pub struct Unknown {
    /// What was given.
    pub name: String,
    /// What could have been.
    pub known: &'static str,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown name {:?}; use one of {}", self.name, self.known)
    }
}

impl std::error::Error for Unknown {}

/// Parses a whole number from 1 to `most`.
pub fn count(most: u64) -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(1..=most)
}

/// Parses one of these names, which completions know then; those after a bar are other spellings.
pub fn one_of<T>(names: &[&'static str]) -> impl TypedValueParser<Value = T> + use<T>
where
    T: FromStr<Err: Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    let values = names.iter().map(|names| {
        let mut names = names.split('|');
        let value = PossibleValue::new(names.next().unwrap_or_default());
        value.aliases(names)
    });
    PossibleValuesParser::new(values).try_map(|name| name.parse())
}

/// Parses the name of a layout.
pub fn layout() -> impl TypedValueParser<Value = Layout> {
    one_of(&Layout::ALL.map(Layout::name))
}

/// Parses the name of a backend.
pub fn backend() -> impl TypedValueParser<Value = BackendKind> {
    one_of(&BACKENDS)
}

/// Backends, with their other spellings.
pub const BACKENDS: [&str; 5] = [
    "default",
    "sync",
    "async|tokio",
    "io-uring|io_uring",
    "mmap",
];

/// Parses the name of a dialect.
pub fn dialect() -> impl TypedValueParser<Value = DialectName> {
    one_of(&["tensora", "store"])
}

fn access() -> impl TypedValueParser<Value = Access> {
    one_of(&["auto", "buffered", "direct"])
}

fn chunk(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    let range = Settings::CHUNK_RANGE;
    if range.contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!(
            "a chunk has between {} and {}",
            size::bytes(*range.start()),
            size::bytes(*range.end())
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_backend_would_ignore_is_refused() {
        let tuning = Tuning {
            queue_depth: Some(4),
            access: Some(Access(AccessMode::Direct)),
            ..Tuning::default()
        };
        for (backend, taken) in [
            (BackendKind::Default, true),
            (BackendKind::IoUring, true),
            (BackendKind::Sync, false),
            (BackendKind::Async, false),
            (BackendKind::Mmap, false),
        ] {
            assert_eq!(tuning.settings(backend).is_ok(), taken, "{backend}");
        }
        let buffered = Tuning {
            access: Some(Access(AccessMode::Buffered)),
            ..Tuning::default()
        };
        assert!(buffered.settings(BackendKind::Mmap).is_ok());
    }
}
