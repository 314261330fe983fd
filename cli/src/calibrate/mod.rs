//! `calibrate`: measures the storage, and stores what is fastest on it.
//!
//! Reads go to memory that is touched before and used again, so that settings are compared by how
//! they read and not by what fresh memory costs on this machine at this moment. Repetitions are
//! interleaved, medians count, and the smallest setting within a few percent of the best is taken:
//! what more threads or larger reads gain beyond that is noise, and they are not free.

mod choose;
mod grid;
mod subject;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use tensora::{Error, Machine, Preset, Profile, text};

use self::choose::{Chosen, Found, choose};
use self::grid::{Measured, Setting, Way};
use self::subject::Subject;
use crate::progress::Progress;
use crate::{config, output, size};

/// Rounds over the grid. Odd, so that a median is a measurement.
const ROUNDS: usize = 3;

/// Copies are short and vary more.
const COPY_ROUNDS: usize = 7;

/// Time for all reads from the disk; the writing before and the copies after come on top, and all
/// together stay below 30 s. A round that has begun ends early, but each way is measured once.
const DISK_TIME: Duration = Duration::from_secs(14);
const COPY_TIME: Duration = Duration::from_secs(4);

/// Measure the storage under a folder, and store what loads from there should use.
///
/// Writes one temporary file, reads it in many ways, and removes it. Takes less than 30 s.
#[derive(Debug, Args)]
pub struct Calibrate {
    /// A folder on the storage that checkpoints are loaded from
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Size of the temporary file, at most; less where disk or memory are short
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = file_size)]
    size: u64,
    /// Measure and print, but store nothing
    #[arg(long)]
    dry_run: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    folder: &'a Path,
    machine: &'a Machine,
    file_bytes: u64,
    /// Bytes of each reading.
    window_bytes: u64,
    seconds: f64,
    measurements: &'a [Measured],
    preset: &'a Preset,
    /// What differs from the built-in constants.
    changes: Vec<String>,
    notes: &'a [String],
    /// Where the profile was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<PathBuf>,
}

pub fn run(args: &Calibrate, out: &mut dyn Write) -> Result<()> {
    let start = Instant::now();
    let path = match args.dry_run {
        true => None,
        false => Some(config::profile_path().context(
            "the home folder is unknown; set TENSORA_CONFIG_DIR to a folder for the profile",
        )?),
    };
    let progress = Progress::waiting("calibrating".to_owned());
    let mut subject = Subject::create(&args.folder, args.size)?;
    let mut notes = Vec::new();
    let measurements = measure(&mut subject, &mut notes)?;
    let chosen = choose(&measurements, subject.cores());
    notes.extend(Way::ALL.into_iter().filter_map(|way| noise(&chosen, way)));
    let profile = Profile::measured(chosen.preset, subject.machine())?;
    let (file_bytes, window_bytes) = (subject.file_bytes(), subject.window_bytes());
    drop(subject);
    drop(progress);
    if let Some(path) = &path {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| Error::io("make", folder, error))?;
        profile.store(path)?;
    }
    let report = Report {
        folder: &args.folder,
        machine: profile.machine().expect("it was just measured on one"),
        file_bytes,
        window_bytes,
        seconds: start.elapsed().as_secs_f64(),
        measurements: &measurements,
        preset: profile.preset(),
        changes: profile.preset().changes_from(&Preset::default()),
        notes: &notes,
        stored: path,
    };
    if args.json {
        return output::json_line(out, &report);
    }
    print(out, &report, &chosen)
}

/// Measures everything that there is to measure here; `notes` says what there is not.
fn measure(subject: &mut Subject, notes: &mut Vec<String>) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    let filesystem = subject.machine().filesystem;
    let mut disk = Vec::new();
    let left_bytes = subject.evict()?;
    if subject.is_direct() {
        disk.extend(grid::direct_threads());
        match subject.ring_refusal() {
            None => disk.extend(grid::direct_ring()),
            Some(reason) => notes.push(format!("no ring was measured: {reason}")),
        }
    } else {
        notes.push(format!(
            "{filesystem} allows no reads around the page cache, so none were measured"
        ));
        match left_bytes {
            0 => disk.extend(grid::read_ahead()),
            _ => notes.push(format!(
                "{filesystem} keeps files in memory: nothing was read from a disk"
            )),
        }
    }
    if !disk.is_empty() {
        subject.fit_window(disk[0], disk.len() * ROUNDS, DISK_TIME)?;
        measured.extend(rounds(subject, &disk, ROUNDS, DISK_TIME)?);
    }
    let copies: Vec<Setting> = grid::copies(subject.cores());
    subject.warm()?;
    measured.extend(rounds(subject, &copies, COPY_ROUNDS, COPY_TIME)?);
    Ok(measured)
}

/// Measures every setting once a round, in alternating order, until the time is up.
fn rounds(
    subject: &mut Subject,
    settings: &[Setting],
    rounds: usize,
    time: Duration,
) -> Result<Vec<Measured>> {
    let start = Instant::now();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); settings.len()];
    for round in 0..rounds {
        for at in 0..settings.len() {
            let at = if round % 2 == 0 {
                at
            } else {
                settings.len() - 1 - at
            };
            let first_of_its_way = settings[..at]
                .iter()
                .all(|other| other.way != settings[at].way);
            if start.elapsed() > time && !(first_of_its_way && rates[at].is_empty()) {
                continue;
            }
            rates[at].push(subject.read(settings[at])?);
        }
    }
    let measured = settings.iter().zip(rates);
    Ok(measured
        .filter_map(|(&setting, rates)| Measured::new(setting, &rates))
        .collect())
}

/// What to say of measurements that the machine disturbed.
fn noise(chosen: &Chosen, way: Way) -> Option<String> {
    let found = chosen.of(way).filter(Found::is_noisy)?;
    Some(format!(
        "{way}: repetitions differ by {:.0} %, so the built-in setting stays unless another is \
         always faster; calibrate again when the machine is quiet",
        100.0 * found.noise
    ))
}

fn print(out: &mut dyn Write, report: &Report<'_>, chosen: &Chosen) -> Result<()> {
    let machine = report.machine;
    let device = machine.device.as_ref();
    let device = device.map_or(String::new(), |device| {
        format!(" on {}", text::plain(device))
    });
    writeln!(
        out,
        "{}: {}{device}, {}; a file of {} in {:.1} s",
        text::path(report.folder),
        machine.filesystem,
        output::counted(machine.cores as u64, "core"),
        size::bytes(report.file_bytes),
        report.seconds,
    )?;
    writeln!(out)?;
    let mut table = output::table(
        &[
            "GiB/s, median (range)",
            "built-in",
            "",
            "chosen",
            "",
            "best",
            "",
        ],
        &[2, 4, 6],
    );
    for way in Way::ALL {
        let Some(found) = chosen.of(way) else {
            continue;
        };
        let cells = [found.built_in, Some(found.chosen), Some(found.best)].map(|one| match one {
            Some(at) => {
                let Measured {
                    setting, gib_per_s, ..
                } = &report.measurements[at];
                let (median, min, max) = (gib_per_s.median, gib_per_s.min, gib_per_s.max);
                (
                    setting.to_string(),
                    format!("{median:.2} ({min:.2}-{max:.2})"),
                )
            }
            None => ("-".to_owned(), String::new()),
        });
        let mut row = vec![way.to_string()];
        row.extend(
            cells
                .into_iter()
                .flat_map(|(setting, rate)| [setting, rate]),
        );
        table.add_row(row);
    }
    output::print_table(out, &table)?;
    writeln!(out)?;
    for note in report.notes {
        writeln!(out, "note: {note}")?;
    }
    if report.changes.is_empty() {
        writeln!(out, "nothing differs from the built-in constants")?;
    }
    for change in &report.changes {
        writeln!(out, "{change}")?;
    }
    match &report.stored {
        Some(path) => writeln!(out, "stored in {}", text::path(path))?,
        None => writeln!(out, "not stored (--dry-run)")?,
    }
    Ok(())
}

fn file_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    let (least, most) = (subject::SMALLEST_FILE, 16 << 30);
    if (least..=most).contains(&bytes) {
        return Ok(bytes);
    }
    let (least, most) = (size::bytes(least), size::bytes(most));
    Err(format!("the file has between {least} and {most}"))
}
