//! `demo`: a checkpoint through every backend, with the proof that all bytes are equal.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use tensora::facts::{IoUringAvailability, process};
use tensora::integrity::Entries;
use tensora::{BackendKind, ErrorKind, Layout, Settings, text};

use crate::args::{self, Unknown};
use crate::digest;
use crate::measure::{Bench, Figures, Reader};
use crate::model::{self, Choice, Subject};
use crate::output;
use crate::progress::Progress;
use crate::{reference, size};

/// Load a checkpoint with every backend, and prove that all bytes are equal.
///
/// Without arguments a sample is made, once, and loaded in both layouts. Of a model of the Hub a copy in
/// the ServerlessLLM layout is made once, where that is asked for.
#[derive(Debug, Args)]
pub struct Demo {
    /// safetensors or serverlessllm; both when it is left out
    #[arg(value_parser = args::layout(), ignore_case = true, hide_possible_values = true)]
    layout: Option<Layout>,
    /// async, sync (one worker), parallel-sync (all cores), io-uring, mmap, default, metadata, all
    #[arg(default_value = "all", value_parser = args::one_of::<Scenario>(&SCENARIOS), hide_possible_values = true)]
    scenario: Scenario,
    #[command(flatten)]
    choice: Choice,
}

/// Names of scenarios, with their other spellings.
const SCENARIOS: [&str; 8] = [
    "async|tokio",
    "sync",
    "parallel-sync",
    "io-uring|io_uring",
    "mmap",
    "default",
    "metadata",
    "all",
];

/// What to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Headers and index only.
    Metadata,
    /// A load with one backend.
    Load(BackendKind),
    /// The `sync` backend with as many workers as there are cores.
    ParallelSync,
    /// Everything.
    All,
}

impl Scenario {
    const ONE_BY_ONE: [Scenario; 7] = [
        Scenario::Metadata,
        Scenario::Load(BackendKind::Sync),
        Scenario::ParallelSync,
        Scenario::Load(BackendKind::Async),
        Scenario::Load(BackendKind::IoUring),
        Scenario::Load(BackendKind::Mmap),
        Scenario::Load(BackendKind::Default),
    ];

    /// How it loads; `None` where nothing is loaded.
    fn settings(self) -> Option<Settings> {
        let (backend, workers) = match self {
            Self::Metadata | Self::All => return None,
            Self::ParallelSync => (BackendKind::Sync, Some(digest::cores())),
            Self::Load(BackendKind::Sync) => (BackendKind::Sync, Some(1)),
            Self::Load(other) => (other, None),
        };
        Some(Settings {
            backend,
            workers,
            ..Settings::default()
        })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata => f.write_str("metadata"),
            Self::ParallelSync => f.write_str("parallel-sync"),
            Self::All => f.write_str("all"),
            Self::Load(backend) => backend.fmt(f),
        }
    }
}

impl FromStr for Scenario {
    type Err = Unknown;

    fn from_str(name: &str) -> Result<Self, Unknown> {
        match (name, name.parse()) {
            ("metadata", _) => Ok(Self::Metadata),
            ("parallel-sync", _) => Ok(Self::ParallelSync),
            ("all", _) => Ok(Self::All),
            (_, Ok(backend)) => Ok(Self::Load(backend)),
            _ => Err(Unknown {
                name: name.to_owned(),
                known: "async, sync, parallel-sync, io-uring, mmap, default, metadata, all",
            }),
        }
    }
}

/// A line of the table.
enum Row {
    Described { ms: f64, tensors: u64 },
    Loaded(Figures),
    Unavailable(String),
}

/// What has been shown so far.
#[derive(Default)]
struct Shown {
    rows: Vec<(Layout, Scenario, Row)>,
    /// The digests that every load must have, and how many had them.
    reference: Option<Entries>,
    equal: usize,
}

pub fn run(args: &Demo, out: &mut dyn Write) -> Result<()> {
    let layouts = match args.layout {
        Some(layout) => vec![layout],
        None if args.choice.is_open() => vec![Layout::SafeTensors, Layout::ServerlessLlm],
        // A path has one layout: the one that is found.
        None => vec![args.choice.layout()?],
    };
    let scenarios = match args.scenario {
        Scenario::All => Scenario::ONE_BY_ONE.to_vec(),
        one => vec![one],
    };
    let mut shown = Shown::default();
    for layout in layouts {
        let bench = Bench::new(args.choice.subject(layout)?)?;
        let summary = model::summary(bench.checkpoint());
        writeln!(out, "{}: {summary}", text::path(&bench.subject().path))?;
        out.flush()?;
        shown.check_reference(&bench, &scenarios)?;
        if args.scenario == Scenario::All {
            // The first load of a process pays for memory that the later ones find ready.
            bench.run(&Reader::Library(Settings::default()))?;
        }
        for &scenario in &scenarios {
            let row = shown.show(&bench, scenario, args.scenario == Scenario::All)?;
            shown.rows.push((layout, scenario, row));
        }
    }
    writeln!(out)?;
    shown.print(out)?;
    print_next(out, args)
}

impl Shown {
    /// Reads the files plainly, and compares them with those of the layout before.
    fn check_reference(&mut self, bench: &Bench, scenarios: &[Scenario]) -> Result<()> {
        if scenarios
            .iter()
            .all(|scenario| scenario.settings().is_none())
        {
            return Ok(());
        }
        let _progress = Progress::waiting("reading the files plainly, to compare with".to_owned());
        let digests = reference::digests(bench.checkpoint())?;
        if let Some(reference) = &self.reference {
            expect_equal(reference, &digests, bench.subject(), "std::fs::read")?;
        }
        self.reference = Some(digests);
        Ok(())
    }

    fn show(&mut self, bench: &Bench, scenario: Scenario, one_of_many: bool) -> Result<Row> {
        let _progress = Progress::waiting(format!("{} {scenario}", bench.subject().layout));
        let Some(settings) = scenario.settings() else {
            let start = Instant::now();
            let tensors = bench.subject().open()?.tensors().len() as u64;
            let ms = size::millis(start.elapsed());
            return Ok(Row::Described { ms, tensors });
        };
        let mapped = settings.backend == BackendKind::Mmap;
        let map_ms = mapped.then(|| bench.map()).transpose()?;
        let (figures, tensors) = match bench.run(&Reader::Library(settings)) {
            Ok(loaded) => loaded,
            Err(error) if one_of_many && error.kind() == ErrorKind::Unavailable => {
                let reason = error.unavailable_reason();
                let reason = reason.map_or(error.to_string(), |(_, reason)| reason.to_string());
                return Ok(Row::Unavailable(reason));
            }
            Err(error) => return Err(error.into()),
        };
        if let (Some(reference), Some(tensors)) = (&self.reference, &tensors) {
            let digests = digest::of_all(tensors);
            expect_equal(reference, &digests, bench.subject(), &scenario.to_string())?;
            self.equal += 1;
        }
        Ok(Row::Loaded(Figures { map_ms, ..figures }))
    }

    fn print(&self, out: &mut dyn Write) -> Result<()> {
        let headings = [
            "layout",
            "backend",
            "first tensor",
            "all bytes",
            "GiB/s",
            "peak RSS",
            "",
        ];
        let mut table = output::table(&headings, &[2, 3, 4, 5]);
        for (layout, scenario, row) in &self.rows {
            let start = [layout.to_string(), scenario.to_string()];
            table.add_row(start.into_iter().chain(row.cells(*scenario)));
        }
        output::print_table(out, &table)?;
        writeln!(out)?;
        for (layout, scenario, row) in &self.rows {
            if let (Scenario::Load(BackendKind::Default), Row::Loaded(figures)) = (scenario, row) {
                writeln!(
                    out,
                    "default for {layout} chose {}: {}",
                    figures.backend, figures.reason
                )?;
            }
        }
        if let Some(reference) = &self.reference {
            let digest = digest::of_entries(reference).to_string();
            writeln!(
                out,
                "All bytes are equal: {} of {} with the SHA-256 digests of a plain read of the \
                 files (all together {}).",
                output::counted(self.equal as u64, "load"),
                output::counted(reference.len() as u64, "tensor"),
                &digest[..16],
            )?;
        }
        if !process::reset_peak_rss() {
            writeln!(
                out,
                "Peaks count from the start of the program: this system cannot reset them."
            )?;
        }
        Ok(())
    }
}

impl Row {
    /// First tensor, all bytes, GiB/s, peak, note.
    fn cells(&self, scenario: Scenario) -> [String; 5] {
        let none = || "-".to_owned();
        match self {
            Self::Described { ms, tensors } => {
                let tensors = output::counted(*tensors, "tensor");
                let note = format!(
                    "{tensors} described in {}, no data read",
                    size::milliseconds(*ms)
                );
                [none(), none(), none(), none(), note]
            }
            Self::Unavailable(reason) => [
                none(),
                none(),
                none(),
                none(),
                format!("unavailable: {reason}"),
            ],
            Self::Loaded(figures) => {
                let note = match (figures.map_ms, scenario) {
                    (Some(map), _) => {
                        let (map, ms) = (size::milliseconds(map), size::milliseconds(figures.ms));
                        format!("mapped after {map}, bytes in hand after {ms}")
                    }
                    (None, Scenario::Load(BackendKind::Default)) => {
                        format!("chose {}", figures.backend)
                    }
                    _ => output::counted(figures.workers, "worker"),
                };
                [
                    figures
                        .first_tensor_ms
                        .map_or_else(none, size::milliseconds),
                    size::milliseconds(figures.ms),
                    format!("{:.2}", figures.gib_per_s),
                    figures.peak_rss_bytes.map_or_else(none, size::bytes),
                    note,
                ]
            }
        }
    }
}

/// Fails with the first tensor that differs.
fn expect_equal(expected: &Entries, found: &Entries, subject: &Subject, who: &str) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let (path, layout) = (text::path(&subject.path), subject.layout);
    for (name, entry) in expected {
        match found.get(name) {
            Some(other) if other == entry => {}
            Some(other) => bail!(
                "{path}: tensor {} differs: {who} gave {} {:?} with SHA-256 {}, expected are \
                 {} {:?} and {}",
                text::quoted(name),
                other.dtype,
                other.shape,
                other.sha256,
                entry.dtype,
                entry.shape,
                entry.sha256,
            ),
            None => bail!(
                "{path}: tensor {} is missing in what {who} loaded ({layout})",
                text::quoted(name)
            ),
        }
    }
    bail!(
        "{path}: {who} loaded {} tensors, expected are {}",
        found.len(),
        expected.len()
    )
}

fn print_next(out: &mut dyn Write, args: &Demo) -> Result<()> {
    let line = |program: &str, start: &[&str], chosen: &[String], end: &[&str]| {
        let own = |words: &[&str]| {
            words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>()
        };
        model::invocation(program, &[&own(start), chosen, &own(end)].concat())
    };
    let layout = args.layout.unwrap_or(Layout::SafeTensors).name();
    let chosen = args.choice.words();
    let is_sample = args.choice.is_open();
    let cold = ["--cold", "-i", "5"];
    let mut lines = vec![
        (
            line("profile", &[layout, "default"], &chosen, &cold),
            "the same from the disk, measured",
        ),
        (
            line("profile", &[layout, "native"], &chosen, &cold),
            "plain reads, to compare with",
        ),
    ];
    if is_sample {
        let model = ["safetensors", "all", "--model-id", "Qwen/Qwen3-0.6B"];
        lines.push((line("demo", &model, &[], &[]), "a model of the Hub cache"));
    }
    let io_uring = tensora::Engine::shared().io_uring();
    if matches!(io_uring, IoUringAvailability::Unavailable(_)) {
        let why = "why io-uring is unavailable";
        lines.push((line("profile", &["capabilities"], &[], &[]), why));
    }
    writeln!(out, "\nNext:")?;
    let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or(0);
    for (line, why) in lines {
        writeln!(out, "  {line:width$}  # {why}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensora::integrity::{Entry, Sha256};

    #[test]
    fn scenarios_have_the_names_that_they_print() {
        for scenario in Scenario::ONE_BY_ONE.into_iter().chain([Scenario::All]) {
            assert_eq!(scenario.to_string().parse::<Scenario>().unwrap(), scenario);
        }
        assert_eq!(
            "tokio".parse::<Scenario>().unwrap(),
            Scenario::Load(BackendKind::Async)
        );
        assert!(
            "fast"
                .parse::<Scenario>()
                .unwrap_err()
                .to_string()
                .contains("parallel-sync")
        );
    }

    #[test]
    fn a_load_that_differs_is_named() {
        let entry = |bytes: &[u8]| Entry {
            dtype: tensora::Dtype::U8,
            shape: [2].into(),
            nbytes: 2,
            sha256: Sha256::of(bytes),
        };
        let digests = |tensors: &[(&str, &[u8])]| -> Entries {
            let entries = tensors.iter();
            entries
                .map(|&(name, bytes)| (name.into(), entry(bytes)))
                .collect()
        };
        let subject = Subject {
            path: "m".into(),
            layout: Layout::SafeTensors,
        };
        let expected = digests(&[("a", b"12"), ("b", b"34")]);
        let check = |found: &Entries| expect_equal(&expected, found, &subject, "mmap");
        assert!(check(&expected.clone()).is_ok());
        for (found, what) in [
            (
                digests(&[("a", b"12"), ("b", b"35")]),
                "\"b\" differs: mmap",
            ),
            (digests(&[("b", b"34")]), "\"a\" is missing"),
            (
                digests(&[("a", b"12"), ("b", b"34"), ("c", b"")]),
                "3 tensors, expected are 2",
            ),
        ] {
            let error = check(&found).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn sync_has_one_worker_and_parallel_sync_all() {
        let workers = |scenario: Scenario| scenario.settings().unwrap().workers;
        assert_eq!(workers(Scenario::Load(BackendKind::Sync)), Some(1));
        assert_eq!(workers(Scenario::ParallelSync), Some(digest::cores()));
        assert_eq!(workers(Scenario::Load(BackendKind::Async)), None);
        assert!(Scenario::Metadata.settings().is_none());
    }
}
