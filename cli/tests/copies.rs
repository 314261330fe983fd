//! Copies of models of the Hub in the ServerlessLLM layout, which `profile` and `demo` make by
//! themselves: once, whatever happens meanwhile.

#![cfg(unix)]

mod common;
#[path = "common/disks.rs"]
mod disks;

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use common::{COMMIT, Sandbox, WATCHDOG, names, send, wait};
use disks::{ReadOnly, SmallDisk};
use serde_json::Value;
use tensora::converters::OutputFolder;

const ID: &str = "org/name";
const PROFILE: [&str; 4] = ["serverlessllm", "sync", "--model-id", ID];
const WHOLE: [&str; 2] = ["tensor.data_0", "tensor_index.json"];

/// Where the copy of a commit of the model lies.
fn copy_of(sandbox: &Sandbox, commit: &str) -> PathBuf {
    let name = format!("org--name@{commit}+tensora-1");
    sandbox.path("cache").join(name).join("serverlessllm")
}

/// Runs `profile` on the model with further arguments; it must succeed. Gives its notes.
fn notes(sandbox: &Sandbox, more: &[&str]) -> String {
    let mut program = sandbox.program("profile");
    let output = program.args(PROFILE).args(more).output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("serverlessllm,"), "{text}");
    notes
}

/// The model's bytes are those of its copy.
fn expect_equal(sandbox: &Sandbox, copy: &Path) {
    assert_eq!(names(copy), WHOLE);
    sandbox.run("tensora", &["diff", ID, copy.to_str().unwrap()]);
}

fn converted(sandbox: &Sandbox) -> Vec<Value> {
    let json = sandbox.json_lines("tensora", &["cache", "--json"]);
    json[0]["converted"].as_array().unwrap().clone()
}

#[test]
fn the_first_run_converts_and_the_next_ones_use_it() {
    let sandbox = Sandbox::new();
    sandbox.cached_model(ID);
    assert!(converted(&sandbox).is_empty());
    let copy = copy_of(&sandbox, COMMIT);
    let said = notes(&sandbox, &[]);
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in [
        "note: converting org/name",
        ": 3 MiB into",
        copy.to_str().unwrap(),
    ] {
        assert!(said.contains(word), "{said}");
    }
    expect_equal(&sandbox, &copy);
    let files = || {
        let files = names(&copy).into_iter();
        let metadata = files.map(|name| copy.join(name).metadata().unwrap());
        metadata
            .map(|file| (file.ino(), file.mtime(), file.mtime_nsec()))
            .collect::<Vec<_>>()
    };
    let before = files();
    for more in [&[][..], &["--offline"], &["--revision", COMMIT]] {
        assert_eq!(notes(&sandbox, more), "");
    }
    let text = sandbox.run("demo", &["serverlessllm", "sync", "--model-id", ID]);
    assert!(text.contains(copy.to_str().unwrap()), "{text}");
    assert_eq!(files(), before);

    let listed = &converted(&sandbox)[0];
    let bytes = names(&copy)
        .into_iter()
        .map(|name| copy.join(name).metadata());
    let bytes: u64 = bytes.map(|file| file.unwrap().len()).sum();
    let wanted = serde_json::json!({
        "id": ID, "commit": COMMIT, "dialect": "tensora", "partitions": 1, "path": copy,
        "bytes": bytes, "complete": true,
    });
    assert_eq!(*listed, wanted);
    let table = sandbox.run("tensora", &["cache"]);
    assert!(table.contains(copy.to_str().unwrap()), "{table}");
}

#[test]
fn the_demo_converts_too_and_another_revision_has_another_copy() {
    let sandbox = Sandbox::new();
    let demo = ["serverlessllm", "default", "--model-id", ID];
    sandbox.cached_model(ID);
    let text = sandbox.run("demo", &demo);
    assert!(text.contains("All bytes are equal"), "{text}");
    let other = COMMIT.replace('0', "f");
    sandbox.cached_snapshot(ID, &other, "2MiB");
    assert!(notes(&sandbox, &[]).contains(": 2 MiB into"));
    expect_equal(&sandbox, &copy_of(&sandbox, &other));
    assert_eq!(notes(&sandbox, &["--revision", COMMIT]), "");
    let sizes: Vec<_> = converted(&sandbox)
        .iter()
        .map(|copy| copy["complete"].clone())
        .collect();
    assert_eq!(sizes, [true, true]);
    // More bytes want more partitions.
    let large = COMMIT.replace('1', "e");
    sandbox.cached_snapshot(ID, &large, "513MiB");
    let said = notes(&sandbox, &[]);
    assert!(said.contains(&format!("@{large}+tensora-2/")), "{said}");
}

/// `profile` under way, with its notes in a file.
struct Running {
    child: Child,
    notes: PathBuf,
}

impl Running {
    fn start(sandbox: &Sandbox, name: &str) -> Self {
        let notes = sandbox.path(name);
        let mut program = sandbox.std_program("profile");
        let program = program.args(PROFILE).stdout(Stdio::null());
        let child = program.stderr(File::create(&notes).unwrap()).spawn();
        Self {
            child: child.unwrap(),
            notes,
        }
    }

    fn notes(&self) -> String {
        std::fs::read_to_string(&self.notes).unwrap()
    }

    /// The notes of a run that must succeed.
    fn end(mut self) -> String {
        let code = wait(&mut self.child);
        assert_eq!(code, Some(0), "{}", self.notes());
        self.notes()
    }
}

#[test]
fn processes_that_want_the_same_copy_make_it_once() {
    let sandbox = Sandbox::new();
    sandbox.cached_model(ID);
    let copy = copy_of(&sandbox, COMMIT);
    let made = |notes: &[String]| notes.concat().matches("note: converting").count();
    for _ in 0..5 {
        let running: Vec<_> = (0..4)
            .map(|n| Running::start(&sandbox, &format!("notes{n}")))
            .collect();
        let notes: Vec<_> = running.into_iter().map(Running::end).collect();
        assert_eq!(made(&notes), 1, "{notes:?}");
        expect_equal(&sandbox, &copy);
        std::fs::remove_dir_all(sandbox.path("cache")).unwrap();
    }
    // Somebody has the folder for long.
    let held = OutputFolder::claim(&copy).unwrap();
    let running = ["one", "two"].map(|name| Running::start(&sandbox, name));
    let start = Instant::now();
    let wanted = "note: waiting for another process, which converts org/name\n";
    while running.iter().any(|running| running.notes() != wanted) {
        assert!(start.elapsed() < WATCHDOG);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut third = Running::start(&sandbox, "three");
    while third.notes() != wanted {
        assert!(start.elapsed() < WATCHDOG);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Whoever waits can be interrupted.
    send("INT", &third.child);
    assert_eq!(wait(&mut third.child), Some(130));
    drop(held);
    let notes = running.map(Running::end);
    assert_eq!(made(&notes), 1, "{notes:?}");
    expect_equal(&sandbox, &copy);
}

#[test]
fn a_conversion_that_was_stopped_is_no_copy_and_is_continued() {
    let sandbox = Sandbox::new();
    sandbox.cached_snapshot(ID, COMMIT, "48MiB");
    let copy = copy_of(&sandbox, COMMIT);
    let marks = [".tensora-convert", ".tensora-incomplete"].map(|mark| copy.join(mark));
    for (signal, code) in [("KILL", None), ("INT", Some(130)), ("TERM", Some(143))] {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < WATCHDOG, "it was always too late");
            let mut running = Running::start(&sandbox, "notes");
            while !marks[0].exists() && running.child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            if running.child.try_wait().unwrap().is_none() {
                send(signal, &running.child);
                let ended = wait(&mut running.child);
                if marks.iter().any(|mark| mark.exists()) {
                    assert_eq!(ended, code);
                    break;
                }
            }
            std::fs::remove_dir_all(sandbox.path("cache")).unwrap();
        }
        if marks[0].exists() {
            assert!(WHOLE.iter().all(|name| !copy.join(name).exists()));
        }
        sandbox.fail(1, "tensora", &["inspect", copy.to_str().unwrap()]);
        assert_eq!(converted(&sandbox)[0]["complete"], false);
        let table = sandbox.run("tensora", &["cache"]);
        assert!(table.contains("not complete"), "{table}");

        let said = notes(&sandbox, &[]);
        assert!(said.contains("note: going on with"), "{said}");
        expect_equal(&sandbox, &copy);
        assert_eq!(notes(&sandbox, &[]), "");
        std::fs::remove_dir_all(sandbox.path("cache")).unwrap();
    }
    // What another conversion left cannot be continued, and is written anew.
    std::fs::create_dir_all(&copy).unwrap();
    std::fs::write(&marks[0], "tensora-convert 1 0123456789abcdef\ndone 0-9\n").unwrap();
    std::fs::write(copy.join(".tensor.data_0.part"), vec![1; 48 << 20]).unwrap();
    notes(&sandbox, &[]);
    expect_equal(&sandbox, &copy);
}

#[test]
fn a_copy_that_is_no_good_is_made_again() {
    let sandbox = Sandbox::new();
    sandbox.cached_model(ID);
    let copy = copy_of(&sandbox, COMMIT);
    notes(&sandbox, &[]);
    let (data, index) = (copy.join(WHOLE[0]), copy.join(WHOLE[1]));
    let damages: [&dyn Fn(); 6] = [
        &|| {
            let file = File::options().write(true).open(&data).unwrap();
            file.set_len(100).unwrap();
        },
        &|| std::fs::remove_file(&data).unwrap(),
        &|| std::fs::write(&index, b"").unwrap(),
        &|| std::fs::write(&index, br#"{"a": [0, 4, [4], [1], "torch.uint8", 0]}"#).unwrap(),
        &|| std::fs::remove_file(&index).unwrap(),
        &|| {
            std::fs::remove_file(&data).unwrap();
            std::fs::create_dir_all(data.join("x")).unwrap();
        },
    ];
    for damage in damages {
        damage();
        std::fs::write(copy.join("tensor.data_7"), b"stray").unwrap();
        let said = notes(&sandbox, &[]);
        assert!(said.contains("again, as its copy is no good ("), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        expect_equal(&sandbox, &copy);
    }
}

/// `profile` with its cache in `cache`.
fn profile_in(sandbox: &Sandbox, cache: &Path) -> Output {
    let mut program = sandbox.std_program("profile");
    program.env("TENSORA_CACHE_DIR", cache).args(PROFILE);
    program.output().unwrap()
}

/// Its error, which must say where, and what helps.
fn refused_in(sandbox: &Sandbox, cache: &Path) -> String {
    let output = profile_in(sandbox, cache);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("error: "), "{error}");
    for word in [cache.to_str().unwrap(), "TENSORA_CACHE_DIR"] {
        assert!(error.contains(word), "{error}");
    }
    error
}

#[test]
fn too_little_space_is_said_with_the_numbers() {
    let sandbox = Sandbox::new();
    sandbox.cached_model(ID);
    let cache = sandbox.path("disk");
    let Some(_disk) = SmallDisk::mount(&cache, 1 << 20) else {
        println!("skipped: a tmpfs cannot be mounted here");
        return;
    };
    let error = refused_in(&sandbox, &cache);
    for word in ["bytes are to be written, and ", "are free here"] {
        assert!(error.contains(word), "{error}");
    }
    assert!(names(&cache).is_empty());
}

#[test]
fn a_cache_that_may_not_be_written_to_is_enough_for_a_copy_that_is_there() {
    let sandbox = Sandbox::new();
    sandbox.cached_model(ID);
    let file = sandbox.path("file");
    std::fs::write(&file, b"").unwrap();
    refused_in(&sandbox, &file);
    let (empty, full) = (sandbox.path("empty"), sandbox.path("full"));
    std::fs::create_dir(&empty).unwrap();
    assert!(profile_in(&sandbox, &full).status.success());
    let Some(_locked) = ReadOnly::make(&empty).zip(ReadOnly::make(&full)) else {
        println!("skipped: permissions do not bind this user, and nothing can be mounted");
        return;
    };
    refused_in(&sandbox, &empty);
    assert!(names(&empty).is_empty());
    let output = profile_in(&sandbox, &full);
    assert!(output.status.success() && output.stderr.is_empty());
}
