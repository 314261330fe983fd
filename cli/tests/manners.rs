//! Exit codes, messages, pipes and signals.

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use common::{Sandbox, send, wait};

#[test]
fn programs_say_their_version_and_usage() {
    let sandbox = Sandbox::new();
    for name in ["tensora", "profile", "demo", "convert"] {
        let version = sandbox.run(name, &["--version"]);
        assert_eq!(version, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
        let help = sandbox.run(name, &["--help"]);
        assert!(help.contains("Exit codes"), "{name}");
        // What every program has comes after its own options.
        let options: Vec<_> = help
            .lines()
            .filter(|line| line.trim_start().starts_with('-'))
            .collect();
        let last: Vec<_> = options.into_iter().rev().take(3).collect();
        let common = ["--version", "--help", "--verbose"];
        let is_common = last
            .iter()
            .zip(common)
            .all(|(line, option)| line.contains(option));
        assert!(is_common, "{name}: {last:?}");
    }
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let sandbox = Sandbox::new();
    for (name, args) in [
        ("profile", &["safetensors", "fast"][..]),
        ("profile", &["gguf", "sync"]),
        ("profile", &["safetensors", "sync", "-i", "0"]),
        ("profile", &["safetensors", "sync", "--workers", "0"]),
        ("profile", &["safetensors", "sync", "--chunk", "1KiB"]),
        ("profile", &["safetensors", "native", "--workers", "2"]),
        ("profile", &["safetensors", "mmap", "--access", "direct"]),
        ("profile", &["safetensors", "sync", "--queue-depth", "4"]),
        ("profile", &["safetensors", "sync", "--sample", "0"]),
        ("tensora", &["plan", ".", "--budget", "0"]),
        ("tensora", &["hash", ".", "--budget", "0B"]),
        ("tensora", &["sample", "s", "--size", "0"]),
        (
            "profile",
            &["safetensors", "sync", "--path", "a", "--model-id", "b"],
        ),
        (
            "profile",
            &["safetensors", "sync", "--path", "a", "--sample", "1MiB"],
        ),
        ("demo", &["safetensors", "fast"]),
        ("demo", &["gguf"]),
        ("convert", &["only-one"]),
        ("tensora", &["hash", "a", "--backend", "uring"]),
        ("tensora", &["unknown"]),
    ] {
        sandbox.fail(2, name, args);
    }
    sandbox.program("tensora").assert().code(2);
}

#[test]
fn failures_are_one_plain_line() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("short.safetensors"), b"\x40\0\0\0\0\0\0\0{}").unwrap();
    for path in ["./missing", "short.safetensors"] {
        let error = sandbox.fail(1, "tensora", &["hash", path]);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(path), "{error}");
        assert!(
            !error.contains('{') && !error.contains("Error"),
            "no debug form: {error}"
        );
        assert!(!error.contains('\u{1b}'), "{error}");
    }
    let output = sandbox
        .program("tensora")
        .env("NO_COLOR", "1")
        .args(["hash", "./x"])
        .output();
    assert!(!output.unwrap().stderr.contains(&0x1b));
}

#[test]
fn the_log_goes_to_stderr_when_it_is_asked_for() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let quiet = sandbox
        .program("tensora")
        .args(["hash", "a"])
        .output()
        .unwrap();
    assert!(quiet.stderr.is_empty());
    let loud = sandbox
        .program("tensora")
        .args(["hash", "a", "-v"])
        .output()
        .unwrap();
    assert_eq!(loud.stdout, quiet.stdout);
    let log = String::from_utf8(loud.stderr).unwrap();
    assert!(log.contains("backend"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
}

#[test]
fn a_broken_pipe_is_silent() {
    let sandbox = Sandbox::new();
    // More lines than a pipe and a buffer hold.
    sandbox.run(
        "tensora",
        &["sample", "a", "--size", "2MiB", "--tensors", "4000"],
    );
    for args in [
        &["hash", "a"][..],
        &["hash", "a", "--json"],
        &["inspect", "a", "--json"],
        &["inspect", "a", "--all"],
        &[
            "profile",
            "safetensors",
            "sync",
            "--path",
            "a",
            "-i",
            "100000",
            "--json",
        ],
    ] {
        let mut child = sandbox
            .std_program("tensora")
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 1];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        // The reader has gone with the end of the statement.
        let code = wait(&mut child);
        let mut error = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut error)
            .unwrap();
        assert_eq!((code, error.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_under_the_output_is_a_failure() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = sandbox
        .std_program("tensora")
        .args(["hash", "a"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("standard output"), "{error}");
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_a_load_at_once() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let mut child = sandbox
        .std_program("profile")
        .args([
            "safetensors",
            "async",
            "--path",
            "a",
            "-i",
            "1000000",
            "--json",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Kept open, so that it is not the pipe that ends it.
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut String::new()).unwrap();
    send("INT", &child);
    let drain = std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    assert_eq!(wait(&mut child), Some(130));
    drain.join().unwrap().unwrap();
}
