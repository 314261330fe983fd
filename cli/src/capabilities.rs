//! `profile capabilities`: what this machine offers to loads.

use std::io::Write;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use tensora::facts::{HugePages, IoUringAvailability, MemoryFacts};
use tensora::{BackendKind, Facts};

use crate::model::quoted;
use crate::{output, size};

/// Show what this machine can do: backends with reasons, cores, memory.
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
struct Report {
    version: &'static str,
    os: &'static str,
    arch: &'static str,
    cores: usize,
    memory: MemoryFacts,
    huge_pages: HugePages,
    io_uring: IoUringAvailability,
    backends: Vec<Backend>,
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

pub fn run(args: &Capabilities, out: &mut dyn Write) -> Result<()> {
    let report = report(Facts::probe(&[], &[]));
    match args.format {
        Format::Json => output::json_line(out, &report),
        Format::Shell => shell(&report, out),
        Format::Text => text(&report, out),
    }
}

fn report(facts: Facts) -> Report {
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
    }
}

fn text(report: &Report, out: &mut dyn Write) -> Result<()> {
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
    Ok(())
}

/// Values are quoted: eval of this output defines variables and does nothing else.
fn shell(report: &Report, out: &mut dyn Write) -> Result<()> {
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
    fn printed(format: fn(&Report, &mut dyn Write) -> Result<()>) -> String {
        let mut text = Vec::new();
        format(&report(Facts::neutral(0)), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn an_unavailable_backend_has_its_reason_in_every_format() {
        let shell = printed(shell);
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
        let text = printed(text);
        assert!(
            text.contains("unavailable  left out of this build; build with"),
            "{text}"
        );
        let json = serde_json::to_value(report(Facts::neutral(0))).unwrap();
        assert_eq!(json["io_uring"]["reason"], "not-compiled");
        assert_eq!(json["backends"][2]["name"], "io-uring");
        assert_eq!(json["backends"][2]["available"], false);
    }
}
