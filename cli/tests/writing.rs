//! What is written, by whom, and what is left when it does not end well. Outputs of many small
//! files take long enough to be interrupted, and hardly any space.

#![cfg(unix)]

mod common;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Sandbox, WATCHDOG, names, send, wait};

/// A sample of so many partitions, in 1 MiB.
fn start_sample(sandbox: &Sandbox, out: &str, partitions: &str) -> Child {
    let args = ["sample", out, "--layout", "serverlessllm", "--size", "1MiB"];
    sandbox
        .std_program("tensora")
        .args(args)
        .args(["--tensors", partitions, "--partitions", partitions])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait_for_files(child: &mut Child, folder: &Path) {
    let start = Instant::now();
    while !holds_temporary_files(folder) {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "it ended too early: {ended:?}");
        assert!(start.elapsed() < WATCHDOG, "it writes nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn holds_temporary_files(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name().into_string().unwrap_or_default();
        let is_file = entry.path().is_file();
        (is_file && (name.contains(".tmp-") || name.ends_with(".part")))
            || (!is_file && holds_temporary_files(&entry.path()))
    })
}

#[test]
fn signals_leave_nothing_behind_but_the_files_of_others() {
    let sandbox = Sandbox::new();
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        // A folder that the program makes, and one that was there.
        let mut child = start_sample(&sandbox, "deep/out", "100000");
        wait_for_files(&mut child, &sandbox.path("deep/out"));
        send(signal, &child);
        assert_eq!(wait(&mut child), Some(code), "{signal}");
        assert!(!sandbox.path("deep").exists(), "{signal}");

        let mine = sandbox.path("mine");
        std::fs::create_dir_all(&mine).unwrap();
        std::fs::write(mine.join(".hidden"), b"x").unwrap();
        let mut child = start_sample(&sandbox, "mine", "100000");
        wait_for_files(&mut child, &mine);
        // Names that the program itself writes, too.
        let others = [
            ".config.json.tmp-1-1",
            ".hidden",
            "config.json",
            "tensor.data_7",
            "tokenizer.json",
        ];
        for name in others {
            std::fs::write(mine.join(name), b"x").unwrap();
        }
        send(signal, &child);
        assert_eq!(wait(&mut child), Some(code), "{signal}");
        assert_eq!(names(&mine), others, "{signal}");
        std::fs::remove_dir_all(&mine).unwrap();
    }
}

#[test]
fn an_interrupted_conversion_leaves_the_files_of_others() {
    let sandbox = Sandbox::new();
    let args = ["sample", "a", "--size", "1MiB", "--tensors", "50000"];
    sandbox.run("tensora", &args);
    let mut child = sandbox
        .std_program("convert")
        .args(["a", "out", "-p", "50000"])
        .spawn()
        .unwrap();
    wait_for_files(&mut child, &sandbox.path("out"));
    for name in ["notes.txt", "tokenizer.json"] {
        std::fs::write(sandbox.path("out").join(name), b"mine").unwrap();
    }
    send("INT", &child);
    assert_eq!(wait(&mut child), Some(130));
    assert_eq!(names(&sandbox.path("out")), ["notes.txt", "tokenizer.json"]);
}

#[test]
fn an_interrupted_sample_of_the_cache_is_whole_or_gone() {
    let sandbox = Sandbox::new();
    let args = ["safetensors", "sync", "--sample", "16MiB", "-i", "1000000"];
    let mut child = sandbox
        .std_program("profile")
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_files(&mut child, &sandbox.path("cache"));
    send("TERM", &child);
    assert_eq!(wait(&mut child), Some(143));
    let cache = sandbox.path("cache");
    assert!(!holds_temporary_files(&cache));
    if cache.exists() {
        let sample = cache.join("samples/bf16-4x16777216/safetensors");
        sandbox.run("tensora", &["hash", sample.to_str().unwrap()]);
    }
}

#[test]
fn of_two_writers_one_is_refused_and_the_other_completes() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let mut first = start_sample(&sandbox, "out", "3000");
    wait_for_files(&mut first, &sandbox.path("out"));
    for args in [
        &["sample", "out", "--size", "2MiB", "--shards", "3"][..],
        &["convert", "a", "out"],
    ] {
        let error = sandbox.fail(1, "tensora", args);
        assert!(error.contains("out: "), "{error}");
    }
    assert_eq!(wait(&mut first), Some(0));
    assert_eq!(names(&sandbox.path("out")).len(), 3002);
    sandbox.run("tensora", &["inspect", "out"]);
}

#[test]
fn what_a_killed_program_left_is_no_obstacle_and_goes() {
    let sandbox = Sandbox::new();
    let mut child = start_sample(&sandbox, "out", "100000");
    wait_for_files(&mut child, &sandbox.path("out"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(holds_temporary_files(&sandbox.path("out")));
    sandbox.sample("out", "serverlessllm");
    assert_eq!(names(&sandbox.path("out")).len(), 6);
}

#[test]
fn what_a_killed_program_left_in_the_cache_goes_with_the_next_sample() {
    let sandbox = Sandbox::new();
    let samples = sandbox.path("cache/samples/bf16-4x1048576");
    let (left, held) = (".safetensors.tmp-77-5", ".safetensors.tmp-78-6");
    for name in [left, held] {
        std::fs::create_dir_all(samples.join(name)).unwrap();
        std::fs::write(samples.join(name).join("model.safetensors"), b"x").unwrap();
        std::fs::write(samples.join(name).join(".tensora.lock"), b"").unwrap();
    }
    let lock = std::fs::File::open(samples.join(held).join(".tensora.lock")).unwrap();
    lock.try_lock().unwrap();
    let args = ["safetensors", "sync", "--sample", "1MiB"];
    sandbox.run("profile", &args);
    assert_eq!(names(&samples), [held, "safetensors"]);
}

#[test]
fn any_size_is_answered_before_memory_or_disk_are_used() {
    let sandbox = Sandbox::new();
    let error = sandbox.fail(1, "tensora", &["sample", "x", "--size", "999999TiB"]);
    assert!(error.contains("are free here"), "{error}");
    assert!(!sandbox.path("x").exists());
    let args = ["safetensors", "sync", "--sample", "100000TiB"];
    let error = sandbox.fail(1, "profile", &args);
    assert!(error.contains("are free here"), "{error}");
    assert!(error.contains("TENSORA_CACHE_DIR"), "{error}");
    assert!(!sandbox.path("cache").exists());
}

#[test]
fn a_cache_that_cannot_be_written_says_how_to_have_another() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("cache"), b"a file").unwrap();
    let args = ["safetensors", "sync", "--sample", "1MiB"];
    let error = sandbox.fail(1, "profile", &args);
    assert!(error.contains("TENSORA_CACHE_DIR"), "{error}");
}

#[test]
fn configuration_is_counted_before_and_copied_in_chunks() {
    let sandbox = Sandbox::new();
    let source = sandbox.sample("a", "safetensors");
    let vocabulary = source.join("big.vocab");
    let content: Vec<u8> = (0..3_000_001_u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(&vocabulary, &content).unwrap();
    sandbox.run("convert", &["a", "b"]);
    let copy = std::fs::read(sandbox.path("b/big.vocab")).unwrap();
    assert!(copy == content);
    // A file with a hole: long, and without bytes on disk.
    let file = std::fs::File::options()
        .write(true)
        .open(&vocabulary)
        .unwrap();
    file.set_len(1 << 43).unwrap();
    let error = sandbox.fail(1, "convert", &["a", "c"]);
    assert!(error.contains("are free here"), "{error}");
    assert!(!sandbox.path("c").exists());
}

#[test]
fn fewer_partitions_than_asked_for_are_said() {
    let sandbox = Sandbox::new();
    let args = ["sample", "a", "--size", "1MiB", "--tensors", "2"];
    sandbox.run("tensora", &args);
    let output = sandbox
        .program("convert")
        .args(["a", "b", "-p", "100000"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(
        note.contains("2 partitions") && note.contains("100000"),
        "{note}"
    );
    assert!(sandbox.run("convert", &["--help"]).contains("mmap"));
    sandbox.run("convert", &["b", "c", "-p", "2"]);
}
