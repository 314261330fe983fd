//! Conversions that are killed, run out of space or may not write; and the commands that prove that
//! nothing changed: verify, diff, hash --manifest.

#![cfg(unix)]

mod common;
#[path = "common/disks.rs"]
mod disks;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Sandbox, names, send, wait};
use disks::{ReadOnly, SmallDisk};

/// A number from 0 to `below`, from a sequence that is the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

fn same_files(a: &Path, b: &Path) {
    assert_eq!(names(a), names(b));
    for name in names(a) {
        let (left, right) = (std::fs::read(a.join(&name)), std::fs::read(b.join(&name)));
        assert!(left.unwrap() == right.unwrap(), "{name}");
    }
}

/// 50 kills at random moments. After each the folder holds nothing that a reader takes for whole,
/// or a whole checkpoint; and from time to time a run is let through, and must end with the right
/// bytes.
#[test]
fn fifty_kills_leave_what_is_refused_and_continued_or_is_whole() {
    let sandbox = Sandbox::new();
    let args = [
        "sample",
        "a",
        "--size",
        "24MiB",
        "--tensors",
        "300",
        "--shards",
        "2",
    ];
    sandbox.run("tensora", &args);
    let expected = sandbox.run("tensora", &["hash", "a"]);
    for (round, dialect) in ["tensora", "store"].into_iter().enumerate() {
        let wanted = format!("wanted-{dialect}");
        let flags = ["-p", "150", "--dialect", dialect];
        sandbox.run("convert", &[&["a", &wanted], &flags[..]].concat());
        let (wanted, out) = (sandbox.path(&wanted), sandbox.path("out"));
        let mut dice = Dice(round as u64 + 1);
        let (mut killed, mut whole, mut refused) = (0, 0, 0);
        let mut longest = Duration::from_millis(200);
        while killed < 25 {
            let started = std::time::Instant::now();
            let mut child = sandbox
                .std_program("convert")
                .args(["a", "out", "--resume"])
                .args(flags)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(longest.mul_f64(dice.roll(1000) as f64 / 1000.0));
            let ended = child.try_wait().unwrap();
            child.kill().unwrap();
            let status = child.wait().unwrap();
            match ended {
                Some(_) => {
                    assert!(status.success());
                    longest = started.elapsed();
                }
                None => killed += 1,
            }
            let output = sandbox
                .program("tensora")
                .args(["hash", "out"])
                .output()
                .unwrap();
            if output.status.success() {
                assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
                whole += 1;
                std::fs::remove_dir_all(&out).unwrap();
            } else {
                let error = String::from_utf8(output.stderr).unwrap();
                assert!(error.contains("out"), "{error}");
                refused += 1;
            }
        }
        sandbox.run("convert", &[&["a", "out", "--resume"], &flags[..]].concat());
        same_files(&out, &wanted);
        println!("{dialect}: {killed} kills, {whole} whole, {refused} refused");
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_kill_while_a_checkpoint_is_replaced_leaves_the_old_or_the_new_or_neither() {
    let sandbox = Sandbox::new();
    for (name, tensors) in [("a", "200"), ("b", "100")] {
        let args = ["sample", name, "--size", "8MiB", "--tensors", tensors];
        sandbox.run("tensora", &args);
    }
    let old = sandbox.run("tensora", &["hash", "a"]);
    let new = sandbox.run("tensora", &["hash", "b"]);
    let mut dice = Dice(7);
    for _ in 0..8 {
        sandbox.run("convert", &["a", "out", "-p", "200", "--force"]);
        let mut child = sandbox
            .std_program("convert")
            .args(["b", "out", "-p", "100", "--force"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(dice.roll(300)));
        child.kill().unwrap();
        child.wait().unwrap();
        let output = sandbox
            .program("tensora")
            .args(["hash", "out"])
            .output()
            .unwrap();
        if output.status.success() {
            let found = String::from_utf8(output.stdout).unwrap();
            assert!(found == old || found == new);
        } else {
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(error.contains("interrupted"), "{error}");
        }
        sandbox.run("convert", &["b", "out", "-p", "100", "--force"]);
        assert_eq!(sandbox.run("tensora", &["hash", "out"]), new);
        assert_eq!(names(&sandbox.path("out")).len(), 102);
    }
}

#[test]
fn a_full_disk_leaves_no_junk() {
    let sandbox = Sandbox::new();
    // Partitions of a page and a byte take two pages each: more than their lengths say.
    let args = ["sample", "a", "--size", "400KiB", "--tensors", "90"];
    sandbox.run("tensora", &args);
    let Some(_disk) = SmallDisk::mount(&sandbox.path("disk"), 512 << 10) else {
        println!("skipped: a tmpfs cannot be mounted here");
        return;
    };
    let error = sandbox.fail(1, "convert", &["a", "disk/out", "-p", "90"]);
    assert!(
        error.contains("disk/out") && error.contains("pace"),
        "{error}"
    );
    assert!(names(&sandbox.path("disk")).is_empty());
    // What is far too large is refused before a byte is written.
    sandbox.run("tensora", &["sample", "big", "--size", "1MiB"]);
    let error = sandbox.fail(1, "convert", &["big", "disk/out"]);
    assert!(error.contains("are free here"), "{error}");
    assert!(names(&sandbox.path("disk")).is_empty());
    // Under --resume the part stays, is refused, and does not stand in the way of a better place.
    sandbox.fail(1, "convert", &["a", "disk/out", "-p", "90", "--resume"]);
    let error = sandbox.fail(1, "tensora", &["hash", "disk/out"]);
    assert!(error.contains("interrupted"), "{error}");
    sandbox.run("convert", &["a", "disk/out", "-p", "1", "--force"]);
    let files = names(&sandbox.path("disk/out"));
    assert_eq!(files, ["config.json", "tensor.data_0", "tensor_index.json"]);
}

#[test]
fn a_file_size_limit_stops_the_writing_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let program = assert_cmd::cargo::cargo_bin("convert");
    // The signal is ignored, so that the write fails instead.
    let script = format!(
        "trap '' XFSZ; ulimit -f 64; exec {} a out",
        program.display()
    );
    let output = sandbox
        .std_program("convert")
        .get_envs()
        .fold(
            &mut Command::new("sh"),
            |command, (name, value)| match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            },
        )
        .args(["-c", &script])
        .current_dir(sandbox.path(""))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("tensor.data_0"), "{error}");
    assert!(!sandbox.path("out").exists());
}

#[test]
fn a_folder_that_may_not_be_written_to_is_named_and_left() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let locked = sandbox.path("locked");
    std::fs::create_dir(&locked).unwrap();
    let Some(_locked) = ReadOnly::make(&locked) else {
        println!("skipped: permissions do not bind this user, and nothing can be mounted");
        return;
    };
    let error = sandbox.fail(1, "convert", &["a", "locked/out"]);
    assert!(error.contains("locked"), "{error}");
    assert!(names(&locked).is_empty());
}

#[test]
fn a_manifest_finds_each_bad_tensor_and_structure_is_checked_without_one() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    sandbox.run("tensora", &["hash", "a", "--manifest", "a.json"]);
    sandbox.run("tensora", &["convert", "a", "b", "--verify", "-p", "3"]);
    for folder in ["a", "b"] {
        let ok = sandbox.run("tensora", &["verify", folder, "--manifest", "a.json"]);
        assert!(ok.starts_with("ok: "), "{ok}");
        assert!(
            sandbox
                .run("tensora", &["verify", folder, "--deep"])
                .contains("every byte")
        );
        sandbox.run("tensora", &["verify", folder]);
    }
    // A bit in the last byte of two files.
    for file in ["b/tensor.data_0", "b/tensor.data_2"] {
        let mut bytes = std::fs::read(sandbox.path(file)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(sandbox.path(file), bytes).unwrap();
    }
    let bad = |args: &[&str]| {
        let output = sandbox.program("tensora").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let found = bad(&["verify", "b", "--manifest", "a.json"]);
    assert_eq!(found.matches("its bytes hash to").count(), 2, "{found}");
    let json: serde_json::Value =
        serde_json::from_str(&bad(&["verify", "b", "--manifest", "a.json", "--json"])).unwrap();
    assert_eq!(json["ok"], false);
    assert_eq!(json["problems"].as_array().unwrap().len(), 2);
    sandbox.run("tensora", &["verify", "b"]);
    let found = bad(&["diff", "a", "b"]);
    assert_eq!(found.matches("bytes: ").count(), 2, "{found}");
    let json: serde_json::Value =
        serde_json::from_str(&bad(&["diff", "a", "b", "--json"])).unwrap();
    assert_eq!(json["same"], false);
    assert_eq!(json["differing"][0]["what"], "bytes");
    assert!(
        sandbox
            .run("tensora", &["diff", "a", "a"])
            .starts_with("same: ")
    );

    // Every damaged shard is named.
    for name in names(&sandbox.path("a")) {
        if name.ends_with(".safetensors") {
            let file = std::fs::File::options()
                .write(true)
                .open(sandbox.path("a").join(name));
            let file = file.unwrap();
            file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        }
    }
    let found = bad(&["verify", "a"]);
    assert_eq!(found.matches("bad: ").count(), 3, "{found}");
    assert!(found.contains("00003-of-00003"), "{found}");
    sandbox.fail(
        1,
        "tensora",
        &["verify", "b", "--manifest", "a/config.json"],
    );
}

#[test]
fn what_a_signal_interrupts_stays_only_under_resume() {
    let sandbox = Sandbox::new();
    let args = ["sample", "a", "--size", "1MiB", "--tensors", "20000"];
    sandbox.run("tensora", &args);
    let args = ["a", "out", "-p", "20000"];
    let mut child = sandbox
        .std_program("convert")
        .args(args)
        .arg("--resume")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let journal = sandbox.path("out/.tensora-convert");
    while !journal.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::sleep(Duration::from_millis(1));
    }
    send("INT", &child);
    assert_eq!(wait(&mut child), Some(130));
    assert!(journal.exists());
    let error = sandbox.fail(1, "tensora", &["inspect", "out"]);
    assert!(error.contains("interrupted"), "{error}");
    // Another conversion neither goes on with it nor takes it away unasked.
    for flags in [&[][..], &["--resume"]] {
        let args = [&["a", "out", "-p", "2"], flags].concat();
        let error = sandbox.fail(1, "convert", &args);
        assert!(
            error.contains("interrupted") && error.contains("option force"),
            "{error}"
        );
        assert!(journal.exists());
    }
    sandbox.run("convert", &["a", "out", "-p", "2", "--resume", "--force"]);
    assert_eq!(
        names(&sandbox.path("out")),
        [
            "config.json",
            "tensor.data_0",
            "tensor.data_1",
            "tensor_index.json"
        ]
    );
    sandbox.run("tensora", &["diff", "a", "out"]);
}

/// The most memory that a program has had in use, in bytes, as far as looking at it often tells.
#[cfg(target_os = "linux")]
fn peak(mut command: Command) -> u64 {
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        peak = kib.and_then(|kib| kib.parse().ok()).unwrap_or(peak);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(child.wait().unwrap().success());
    peak << 10
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded_by_the_budget_and_not_by_the_largest_tensor() {
    let sandbox = Sandbox::new();
    let args = ["sample", "a", "--size", "512MiB", "--tensors", "2"];
    sandbox.run("tensora", &args);
    for backend in ["sync", "async", "mmap"] {
        let mut command = sandbox.std_program("convert");
        command.args(["a", "out", "--budget", "32MiB", "-b", backend]);
        let bytes = peak(command);
        // The budget, a piece of 4 MiB, and what the program takes by itself.
        assert!(bytes < (32 + 4 + 64) << 20, "{backend}: {bytes}");
        assert!(bytes > 1 << 20, "{backend}: it was not seen");
        let mut command = sandbox.std_program("tensora");
        command.args(["diff", "a", "out", "--budget", "96MiB", "-b", backend]);
        let bytes = peak(command);
        assert!(bytes < (96 + 32 + 64) << 20, "diff, {backend}: {bytes}");
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn hashing_is_bounded_by_the_budget_and_finds_the_last_byte_of_a_large_tensor() {
    let sandbox = Sandbox::new();
    let args = ["sample", "a", "--size", "160MiB", "--tensors", "1"];
    sandbox.run("tensora", &args);
    sandbox.run("tensora", &["hash", "a", "--manifest", "a.json"]);
    for backend in ["sync", "async", "mmap"] {
        for words in [&["hash"][..], &["verify", "--manifest", "a.json"]] {
            let mut command = sandbox.std_program("tensora");
            command.args(words);
            command.args(["a", "--budget", "16MiB", "-b", backend]);
            let bytes = peak(command);
            // The budget, a chunk, and what the program takes by itself.
            assert!(bytes < (16 + 8 + 64) << 20, "{words:?}, {backend}: {bytes}");
            assert!(bytes > 1 << 20, "{words:?}, {backend}: it was not seen");
        }
    }
    let all = sandbox.json_lines("tensora", &["hash", "a", "--json", "--budget", "16MiB"]);
    assert_eq!(
        all.len(),
        1,
        "one tensor, and larger than what it was hashed with"
    );
    assert!(all[0]["nbytes"].as_u64().unwrap() > 150 << 20);

    let files = names(&sandbox.path("a"));
    let file = files.iter().find(|name| name.ends_with(".safetensors"));
    let path = sandbox.path("a").join(file.unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let args = [
        "verify",
        "a",
        "--manifest",
        "a.json",
        "--budget",
        "16MiB",
        "--json",
    ];
    let output = sandbox.program("tensora").args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["problems"].as_array().unwrap().len(), 1);
    assert_eq!(json["problems"][0]["tensor"], all[0]["name"]);
    let problem = json["problems"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("its bytes hash to"), "{problem}");
}

#[test]
fn completions_know_every_command() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.run("tensora", &["completions", shell]);
        for word in ["convert", "verify", "manifest", "max-shard-size"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    sandbox.fail(2, "tensora", &["completions", "sh"]);
}

#[test]
fn flags_reach_the_conversion_and_ties_are_said() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    sandbox.run("convert", &["a", "store", "--dialect", "store", "-p", "2"]);
    let index = std::fs::read(sandbox.path("store/tensor_index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let entries = index.as_object().unwrap();
    assert!(
        entries
            .values()
            .all(|entry| entry.as_array().unwrap().len() == 5)
    );
    let args = [
        "a",
        "sharded",
        "--to",
        "safetensors",
        "--max-shard-size",
        "1MiB",
    ];
    sandbox.run("convert", &args);
    let json = sandbox.json_lines(
        "convert",
        &["sharded", "one", "--to", "safetensors", "-p", "1", "--json"],
    );
    assert_eq!(json[0]["data_files"], 1);
    assert_eq!(json[0]["verified"], false);
    // As many files as were asked for, and with an index come the files beside it.
    let args = [
        "a/model.safetensors.index.json",
        "seven",
        "--to",
        "safetensors",
        "-p",
        "7",
    ];
    let json = sandbox.json_lines("convert", &[&args[..], &["--json"]].concat());
    assert_eq!(json[0]["data_files"], 7);
    assert!(sandbox.path("seven/config.json").is_file());
    for (a, b) in [
        ("a", "store"),
        ("a", "sharded"),
        ("sharded", "one"),
        ("a", "seven"),
    ] {
        sandbox.run("tensora", &["diff", a, b]);
    }
    for wrong in [
        &["a", "x", "--dialect", "other"][..],
        &[
            "a",
            "x",
            "--to",
            "safetensors",
            "--max-shard-size",
            "1MiB",
            "-p",
            "2",
        ],
    ] {
        sandbox.fail(2, "convert", wrong);
    }
    let folder = sandbox.path("tied");
    std::fs::create_dir(&folder).unwrap();
    let index =
        r#"{"a": [0, 4, [4], [1], "torch.uint8", 0], "b": [0, 4, [4], [1], "torch.uint8", 0]}"#;
    std::fs::write(folder.join("tensor_index.json"), index).unwrap();
    std::fs::write(folder.join("tensor.data_0"), b"1234").unwrap();
    let output = sandbox
        .program("convert")
        .args(["tied", "untied"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("\"a\", \"b\""), "{note}");
}
