//! `profile capabilities`: what this machine offers to loads, and what they are decided with.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use tensora::facts::{HugePages, IoUringAvailability, MemoryFacts};
use tensora::{BackendKind, Facts, Machine, Preset, Profile, text};

use crate::model::quoted;
use crate::{config, date, output, size};

/// Show what this machine can do: backends with reasons, cores, memory, profile.
#[derive(Debug, Args)]
pub struct Capabilities {
    /// How to print it; `shell` gives lines for eval
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
    /// KEY=VALUE lines, quoted for a POSIX shell
    Shell,
}

#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    os: &'static str,
    arch: &'static str,
    cores: usize,
    memory: MemoryFacts,
    huge_pages: HugePages,
    io_uring: IoUringAvailability,
    backends: Vec<Backend>,
    profile: Constants<'a>,
}

#[derive(Serialize)]
struct Backend {
    name: BackendKind,
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

/// The profile that loads are decided with.
#[derive(Serialize)]
struct Constants<'a> {
    source: Source,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a Path>,
    /// When the file was written, which is when it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_at: Option<String>,
    /// Where it applies: to files on this storage, with this many cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<&'a Machine>,
    preset: &'a Preset,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Source {
    BuiltIn,
    Stored,
}

pub fn run(args: &Capabilities, out: &mut dyn Write) -> Result<()> {
    let engine = config::engine();
    let report = report(Facts::probe(&[], &[]), engine.profile());
    match args.format {
        Format::Json => output::json_line(out, &report),
        Format::Shell => print_shell(&report, out),
        Format::Text => print_text(&report, out),
    }
}

fn report(facts: Facts, profile: &Profile) -> Report<'_> {
    let backend = |name| {
        // The others need nothing that a system could lack.
        let refused = match (&facts.io_uring, name) {
            (IoUringAvailability::Unavailable(reason), BackendKind::IoUring) => Some(reason),
            _ => None,
        };
        Backend {
            name,
            available: refused.is_none(),
            reason: refused.map(ToString::to_string),
            remedy: refused.map(|reason| reason.remedy()),
        }
    };
    Report {
        version: env!("CARGO_PKG_VERSION"),
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        cores: facts.cores,
        memory: facts.memory,
        huge_pages: facts.huge_pages,
        backends: BackendKind::CONCRETE.map(backend).into(),
        io_uring: facts.io_uring,
        profile: constants(profile),
    }
}

fn constants(profile: &Profile) -> Constants<'_> {
    let machine = profile.machine();
    // Unknown for a file that has gone since it was read.
    let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    Constants {
        source: match machine {
            Some(_) => Source::Stored,
            None => Source::BuiltIn,
        },
        path: profile.path(),
        stored_at: profile.path().and_then(written).map(date::utc),
        machine,
        preset: profile.preset(),
    }
}

fn print_text(report: &Report<'_>, out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "tensora {} on {} {}",
        report.version, report.os, report.arch
    )?;
    writeln!(out)?;
    let mut table = output::table(&["backend", "", ""], &[]);
    for backend in &report.backends {
        let status = if backend.available {
            "available"
        } else {
            "unavailable"
        };
        let why = backend.reason.iter().zip(backend.remedy);
        let why = why
            .map(|(reason, remedy)| format!("{reason}; {remedy}"))
            .next();
        table.add_row([
            backend.name.to_string(),
            status.to_owned(),
            why.unwrap_or_default(),
        ]);
    }
    output::print_table(out, &table)?;
    writeln!(out)?;
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size::bytes);
    let memory = &report.memory;
    writeln!(out, "cores       {}", report.cores)?;
    writeln!(
        out,
        "memory      {}, {} available",
        known(memory.total_bytes),
        known(memory.available_bytes)
    )?;
    match memory.cgroup_limit_bytes {
        Some(limit) => writeln!(
            out,
            "cgroup      {} allowed, {} used",
            size::bytes(limit),
            known(memory.cgroup_used_bytes)
        )?,
        None => writeln!(out, "cgroup      no limit")?,
    }
    writeln!(out, "huge pages  {}", word(&report.huge_pages)?)?;
    print_profile(report, out)
}

fn print_profile(report: &Report<'_>, out: &mut dyn Write) -> Result<()> {
    let profile = &report.profile;
    let Some(machine) = profile.machine else {
        writeln!(
            out,
            "profile     {}; `tensora calibrate` measures one",
            Profile::BUILT_IN
        )?;
        return Ok(());
    };
    let path = profile.path.map(text::path);
    write!(out, "profile     {}", path.unwrap_or("measured".into()))?;
    if let Some(date) = &profile.stored_at {
        write!(out, ", stored {date}")?;
    }
    writeln!(out)?;
    write!(out, "applies to  {}", text::plain(&machine.filesystem))?;
    if let Some(device) = &machine.device {
        write!(out, " on {}", text::plain(device))?;
    }
    let cores = output::counted(machine.cores as u64, "core");
    write!(out, ", {cores}")?;
    if machine.cores != report.cores {
        write!(out, "; {} with {}", Profile::BUILT_IN, report.cores)?;
    }
    writeln!(out)?;
    Ok(())
}

/// Values are quoted: eval of this output defines variables and does nothing else.
fn print_shell(report: &Report<'_>, out: &mut dyn Write) -> Result<()> {
    let available = |name| {
        report
            .backends
            .iter()
            .any(|b| b.name == name && b.available)
    };
    let names: Vec<&str> = report
        .backends
        .iter()
        .filter(|backend| backend.available)
        .map(|backend| backend.name.name())
        .collect();
    let reason = report
        .backends
        .iter()
        .find_map(|backend| backend.reason.clone());
    let number = |bytes: Option<u64>| bytes.map_or(String::new(), |bytes| bytes.to_string());
    let memory = &report.memory;
    let flag = |name| u8::from(available(name)).to_string();
    let lines = [
        ("TENSORA_VERSION", report.version.to_owned()),
        ("TENSORA_BACKENDS", names.join(" ")),
        ("TENSORA_SYNC", flag(BackendKind::Sync)),
        ("TENSORA_ASYNC", flag(BackendKind::Async)),
        ("TENSORA_IO_URING", flag(BackendKind::IoUring)),
        ("TENSORA_IO_URING_REASON", reason.unwrap_or_default()),
        ("TENSORA_MMAP", flag(BackendKind::Mmap)),
        ("TENSORA_CORES", report.cores.to_string()),
        ("TENSORA_MEMORY_BYTES", number(memory.total_bytes)),
        ("TENSORA_AVAILABLE_BYTES", number(memory.available_bytes)),
        (
            "TENSORA_CGROUP_LIMIT_BYTES",
            number(memory.cgroup_limit_bytes),
        ),
        ("TENSORA_HUGE_PAGES", word(&report.huge_pages)?),
    ];
    for (key, value) in lines {
        writeln!(out, "{key}={}", quoted(&value))?;
    }
    Ok(())
}

/// The word that JSON has for it.
fn word(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_value(value)?;
    Ok(json.as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neutral facts have no io_uring.
    fn printed(profile: &Profile, format: fn(&Report<'_>, &mut dyn Write) -> Result<()>) -> String {
        let mut text = Vec::new();
        format(&report(Facts::neutral(0), profile), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn an_unavailable_backend_has_its_reason_in_every_format() {
        let profile = Profile::default();
        let shell = printed(&profile, print_shell);
        assert!(shell.contains("TENSORA_IO_URING=0\n"), "{shell}");
        assert!(
            shell.contains("TENSORA_IO_URING_REASON='left out of this build'\n"),
            "{shell}"
        );
        assert!(
            shell.contains("TENSORA_BACKENDS='sync async mmap'\n"),
            "{shell}"
        );
        assert!(shell.contains("TENSORA_CGROUP_LIMIT_BYTES=''\n"), "{shell}");
        let text = printed(&profile, print_text);
        assert!(
            text.contains("unavailable  left out of this build; build with"),
            "{text}"
        );
        let json = serde_json::to_value(report(Facts::neutral(0), &profile)).unwrap();
        assert_eq!(json["io_uring"]["reason"], "not-compiled");
        assert_eq!(json["backends"][2]["name"], "io-uring");
        assert_eq!(json["backends"][2]["available"], false);
    }

    #[test]
    fn the_profile_is_shown_with_what_it_applies_to() {
        let profile = Profile::default();
        let text = printed(&profile, print_text);
        assert!(text.contains("\nprofile     built-in; "), "{text}");
        let json = serde_json::to_value(report(Facts::neutral(0), &profile)).unwrap();
        assert_eq!(json["profile"]["source"], "built-in");
        assert_eq!(json["profile"]["preset"]["ring_depth"], 16);
        assert!(json["profile"].get("machine").is_none());

        let facts = Facts::neutral(1);
        let here = Machine {
            device: Some("disk\u{1b}[1m".to_owned()),
            ..Machine::of(&facts, &facts.sources[0])
        };
        let cores = here.cores;
        let there = Machine {
            cores: cores + 3,
            ..here.clone()
        };
        let of = |machine| Profile::measured(Preset::default(), machine).unwrap();
        let text = printed(&of(here), print_text);
        let (_, text) = text.split_once("\nprofile     measured\n").unwrap();
        assert!(text.starts_with("applies to  unknown on disk"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.ends_with(&format!(", {cores} cores\n")), "{text}");
        let text = printed(&of(there), print_text);
        let not_now = format!(", {} cores; built-in with {cores}\n", cores + 3);
        assert!(text.ends_with(&not_now), "{text}");
    }
}
