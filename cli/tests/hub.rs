//! The programs and a Hub on loopback: first run online, later runs offline, killed and at once.
#![cfg(unix)]
#![allow(missing_docs)]

mod common;
#[path = "../../tests/support/fake_hub.rs"]
mod fake_hub;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use common::{Sandbox, names, send, wait};
use fake_hub::{COMMIT, FakeHub, Fault, ID, TOKEN};
use serde_json::Value;
use sha2::Digest as _;

const ONE: &str = "model-00001-of-00002.safetensors";

/// A program that may ask this Hub.
fn online(sandbox: &Sandbox, hub: &FakeHub, name: &str) -> Command {
    let mut command = sandbox.std_program(name);
    command
        .env("HF_ENDPOINT", hub.endpoint())
        .env_remove("HF_HUB_OFFLINE")
        .env_remove("CARGO");
    for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
    command
}

fn success(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn failure(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code));
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(error.contains("error: "), "{error}");
    error
}

/// All blobs that have their names, and nothing else under such a name.
fn check_blobs(sandbox: &Sandbox) -> usize {
    let blobs = sandbox.path("hub/models--org--name/blobs");
    let Ok(entries) = std::fs::read_dir(blobs) else {
        return 0;
    };
    let mut whole = 0;
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        if name.len() == 64 {
            let digest = sha2::Sha256::digest(&bytes);
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, name);
            whole += 1;
        } else {
            assert!(name.len() == 40 || name.ends_with(".incomplete"), "{name}");
        }
    }
    whole
}

#[test]
fn the_commands_of_the_readme_work_online_and_then_without_a_hub() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let commands: Vec<Vec<&str>> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("cargo run --release --bin "))
        .filter(|line| line.contains("Qwen/Qwen3-0.6B"))
        .map(|line| {
            line.split_whitespace()
                .filter(|word| *word != "--")
                .map(|word| word.trim_matches('\''))
                .collect()
        })
        .collect();
    let has = |words: &[&str]| commands.iter().any(|command| command[..] == *words);
    let wanted = "profile safetensors default --model-id Qwen/Qwen3-0.6B --iterations 1";
    assert!(has(&wanted.split(' ').collect::<Vec<_>>()), "{commands:?}");
    let wanted = "demo safetensors all --model-id Qwen/Qwen3-0.6B";
    assert!(has(&wanted.split(' ').collect::<Vec<_>>()), "{commands:?}");
    assert!(commands.len() >= 3, "{commands:?}");
    let sandbox = Sandbox::new();
    let hub = FakeHub::with_model(100_000);
    hub.state().id = "Qwen/Qwen3-0.6B".to_owned();
    for command in &commands {
        let mut program = online(&sandbox, &hub, command[0]);
        success(&program.args(&command[1..]).output().unwrap());
    }
    let requests = hub.requests().len();
    assert!(requests > 0);
    drop(hub);
    for command in &commands {
        // There is no network: the cache is enough. Then it is known that there is none.
        let mut program = sandbox.std_program(command[0]);
        program
            .env_remove("HF_HUB_OFFLINE")
            .env("HF_ENDPOINT", "http://127.0.0.1:1");
        success(&program.args(&command[1..]).output().unwrap());
        sandbox.run(command[0], &command[1..]);
    }
}

#[test]
fn pull_reports_and_cache_lists_what_is_there() {
    let sandbox = Sandbox::new();
    let hub = FakeHub::with_model(50_000);
    let empty = sandbox.run("tensora", &["cache"]);
    assert!(empty.contains("0 models"), "{empty}");
    let mut pull = online(&sandbox, &hub, "tensora");
    pull.args(["pull", ID, "--json", "--with-tokenizer"]);
    let report: Value = serde_json::from_str(&success(&pull.output().unwrap())).unwrap();
    assert_eq!(report["commit"], COMMIT);
    assert_eq!(report["bytes"], report["downloaded_bytes"]);
    assert_eq!(report["files"].as_array().unwrap().len(), 5);
    let text = success(&pull.output().unwrap());
    let again: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(again["downloaded_bytes"], 0);
    let mut quiet = online(&sandbox, &hub, "tensora");
    let output = quiet.args(["pull", ID, "-q"]).output().unwrap();
    assert_eq!((success(&output).len(), output.stderr.len()), (0, 0));

    let json = sandbox.json_lines("tensora", &["cache", "--json"]);
    let model = &json[0]["models"][0];
    assert_eq!(
        (&model["id"], &model["unfinished_bytes"]),
        (&ID.into(), &0.into())
    );
    assert_eq!(model["bytes"], report["bytes"]);
    let snapshot = &model["snapshots"][0];
    assert_eq!(snapshot["refs"], serde_json::json!(["main"]));
    assert_eq!(
        (&snapshot["complete"], &snapshot["files"]),
        (&true.into(), &5.into())
    );

    let copy = sandbox.path(&format!("cache/org--name@{COMMIT}/serverlessllm"));
    sandbox.run("convert", &[ID, copy.to_str().unwrap()]);
    assert!(copy.join("config.json").exists() && copy.join("tokenizer.json").exists());
    let table = sandbox.run("tensora", &["cache"]);
    for words in [
        "org/name",
        "main",
        &COMMIT[..12],
        "complete",
        "converted",
        copy.to_str().unwrap(),
    ] {
        assert!(table.contains(words), "{words} in {table}");
    }
}

#[test]
fn offline_and_refusals_are_one_clear_line() {
    let sandbox = Sandbox::new();
    let hub = FakeHub::with_model(1000);
    hub.state().gated = true;
    let error = sandbox.fail(1, "tensora", &["pull", ID]);
    assert!(error.contains("no request is made offline"), "{error}");
    let mut offline = online(&sandbox, &hub, "tensora");
    let output = offline.args(["inspect", ID, "--offline"]).output().unwrap();
    assert!(failure(&output, 1).contains("option offline"));
    assert_eq!(hub.requests().len(), 0);
    let mut wrong = online(&sandbox, &hub, "profile");
    wrong.env("HF_TOKEN", "hf_wrong_secret").args([
        "safetensors",
        "default",
        "-v",
        "--model-id",
        ID,
    ]);
    let error = failure(&wrong.output().unwrap(), 1);
    assert!(
        error.contains("is gated") && !error.contains("hf_wrong"),
        "{error}"
    );
    let mut right = online(&sandbox, &hub, "profile");
    right
        .env("HF_TOKEN", TOKEN)
        .args(["safetensors", "default", "-vv", "--model-id", ID]);
    let output = right.output().unwrap();
    success(&output);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(
        !log.contains(TOKEN) && !log.contains("X-Signature"),
        "{log}"
    );
    assert_eq!(hub.state().leaked, 0);
    let args = ["safetensors", "sync", "--revision", "v1"];
    assert!(sandbox.fail(2, "profile", &args).contains("--model-id"));
}

/// Who runs this test.
fn user() -> u32 {
    std::fs::metadata("/proc/self").map_or(1, |found| found.uid())
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![folder.to_owned()];
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => all.extend(below(&entry.path())),
            false => all.push(entry.path()),
        }
    }
    all.sort();
    all
}

#[test]
fn a_cache_that_may_not_be_written_to_is_enough() {
    let sandbox = Sandbox::new();
    let hub = FakeHub::with_model(10_000);
    let mut pull = online(&sandbox, &hub, "tensora");
    success(&pull.args(["pull", ID]).output().unwrap());
    let cache = sandbox.path("hub");
    let before = below(&cache);
    let mode = |bits| {
        for path in before
            .iter()
            .rev()
            .filter(|path| path.is_dir() && !path.is_symlink())
        {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits)).unwrap();
        }
    };
    // Root may write anywhere: then it is nobody who runs the program, a copy of it that nobody
    // may reach.
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(cache.parent().unwrap());
    let program = sandbox.path("tensora");
    std::fs::copy(online(&sandbox, &hub, "tensora").get_program(), &program).unwrap();
    open(&program);
    mode(0o555);
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(args)
            .env("HF_HUB_CACHE", &cache)
            .env("HF_HOME", "/nonexistent")
            .env("TENSORA_CONFIG_DIR", "/nonexistent")
            .env("HF_ENDPOINT", hub.endpoint())
            .env_remove("HF_HUB_OFFLINE")
            .env_remove("HF_TOKEN");
        if user() == 0 {
            command.uid(65534).gid(65534);
        }
        // A process that another test starts holds the copy open for writing until it has become
        // another program.
        loop {
            match command.output() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                output => break output.unwrap(),
            }
        }
    };
    let requests = hub.requests().len();
    let by_commit = run(&["hash", ID, "--revision", COMMIT]);
    let offline = run(&["hash", ID, "--offline"]);
    let none = hub.requests().len() - requests;
    let by_branch = run(&["hash", ID]);
    let refused = run(&["pull", ID, "--revision", "v1", "--with-tokenizer"]);
    mode(0o755);
    assert_eq!(success(&by_commit).lines().count(), 2);
    assert_eq!(success(&offline), success(&by_commit));
    assert_eq!(success(&by_branch), success(&by_commit));
    assert_eq!(none, 0);
    let error = failure(&refused, 1);
    assert!(error.contains("HF_HUB_CACHE"), "{error}");
    assert_eq!(below(&cache), before);
}

#[test]
fn killed_at_any_moment_the_next_run_completes_what_is_right() {
    let sandbox = Sandbox::new();
    let hub = FakeHub::with_model(1_500_000);
    hub.state().pause = Some(Duration::from_millis(2));
    let seed = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut x = seed;
    for _ in 0..30 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let mut pull = online(&sandbox, &hub, "tensora");
        pull.args(["pull", ID])
            .stderr(Stdio::null())
            .stdout(Stdio::null());
        let mut child = pull.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(x % 120));
        send("KILL", &child);
        child.wait().unwrap();
        check_blobs(&sandbox);
    }
    hub.state().pause = None;
    let mut pull = online(&sandbox, &hub, "tensora");
    success(&pull.args(["pull", ID]).output().unwrap());
    assert_eq!(check_blobs(&sandbox), 2);
    let json = sandbox.json_lines("tensora", &["cache", "--json"]);
    assert_eq!(json[0]["models"][0]["unfinished_bytes"], 0);
    assert_eq!(sandbox.run("tensora", &["hash", ID]).lines().count(), 2);
}

#[test]
fn ctrl_c_keeps_what_came_and_the_next_run_goes_on() {
    let sandbox = Sandbox::new();
    let hub = FakeHub::with_model(1_000_000);
    hub.fault(&format!("/storage/{ONE}"), Fault::Stall(400_000));
    let mut pull = online(&sandbox, &hub, "tensora");
    let mut child = pull
        .args(["pull", ID])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let etag = hub.state().files[ONE].etag();
    let blobs = sandbox.path("hub/models--org--name/blobs");
    let partial = blobs.join(format!("{etag}.incomplete"));
    let start = std::time::Instant::now();
    while partial.metadata().map_or(0, |found| found.len()) < 400_000 {
        assert!(start.elapsed() < common::WATCHDOG);
        std::thread::sleep(Duration::from_millis(5));
    }
    send("INT", &child);
    assert_eq!(wait(&mut child), Some(130));
    assert_eq!(partial.metadata().unwrap().len(), 400_000);
    let mut pull = online(&sandbox, &hub, "tensora");
    let text = success(&pull.args(["pull", ID, "--json"]).output().unwrap());
    let report: Value = serde_json::from_str(&text).unwrap();
    let files = report["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == ONE).unwrap();
    let (size, came) = (&file["bytes"], &file["downloaded_bytes"]);
    assert_eq!(size.as_u64().unwrap() - came.as_u64().unwrap(), 400_000);
    assert_eq!(check_blobs(&sandbox), 2);
}

#[test]
fn processes_that_start_together_share_one_download() {
    let sandbox = Sandbox::new();
    let hub = FakeHub::with_model(1_000_000);
    hub.state().pause = Some(Duration::from_millis(1));
    let children: Vec<_> = (0..3)
        .map(|_| {
            let mut pull = online(&sandbox, &hub, "tensora");
            let pull = pull.args(["hash", ID]).stdout(Stdio::piped());
            pull.stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let outputs: Vec<_> = children
        .into_iter()
        .map(|child| success(&child.wait_with_output().unwrap()))
        .collect();
    assert!(outputs.iter().all(|output| *output == outputs[0]));
    assert_eq!(check_blobs(&sandbox), 2);
    let sent = hub.state().sent;
    assert!(sent < 2_010_000, "{sent}");
    let blobs = names(&sandbox.path("hub/models--org--name/blobs"));
    assert_eq!(blobs.len(), 3, "{blobs:?}");
}
