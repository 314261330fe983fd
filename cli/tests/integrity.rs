//! `hash`, `verify` and `diff`: where their files go, and what they say.

#![allow(missing_docs)]

mod common;

use common::{Sandbox, names};

#[test]
fn a_manifest_or_trace_never_replaces_what_is_none() {
    let sandbox = Sandbox::new();
    let folder = sandbox.sample("a", "safetensors");
    std::fs::write(sandbox.path("notes.txt"), b"mine").unwrap();
    let digests = sandbox.run("tensora", &["hash", "a"]);
    let inside = names(&folder);
    for option in ["--manifest", "--trace"] {
        let targets = inside.iter().map(|name| format!("a/{name}"));
        for target in targets.chain(["notes.txt".to_owned(), "a".to_owned()]) {
            let error = sandbox.fail(1, "tensora", &["hash", "a", option, &target]);
            assert!(error.contains(&target), "{error}");
        }
        let error = sandbox.fail(1, "tensora", &["hash", "a", option, "notes.txt"]);
        assert!(error.contains("remove the file first"), "{error}");
        let error = sandbox.fail(1, "tensora", &["hash", "a", option, "no/folder"]);
        assert!(error.contains("not there"), "{error}");
    }
    assert_eq!(sandbox.run("tensora", &["hash", "a"]), digests);
    assert_eq!(std::fs::read(sandbox.path("notes.txt")).unwrap(), b"mine");
    // An empty file may say something, too.
    std::fs::write(folder.join("merges.txt"), b"").unwrap();
    for option in ["--manifest", "--trace"] {
        let error = sandbox.fail(1, "tensora", &["hash", "a", option, "a/merges.txt"]);
        assert!(error.contains("of the checkpoint itself"), "{error}");
    }
    assert_eq!(std::fs::read(folder.join("merges.txt")).unwrap(), b"");
    // Our own are renewed, also beside the weights.
    for _ in 0..2 {
        sandbox.run("tensora", &["hash", "a", "--manifest", "a/manifest.json"]);
        sandbox.run("tensora", &["hash", "a", "--trace", "a/trace.json"]);
    }
    sandbox.run("tensora", &["verify", "a", "--manifest", "a/manifest.json"]);
}

#[cfg(unix)]
#[test]
fn links_and_pipes_stay_what_they_are() {
    use std::os::unix::fs::FileTypeExt as _;
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    std::fs::create_dir(sandbox.path("kept")).unwrap();
    std::os::unix::fs::symlink("kept/m.json", sandbox.path("link")).unwrap();
    sandbox.run("tensora", &["hash", "a", "--manifest", "link"]);
    assert!(sandbox.path("link").is_symlink());
    sandbox.run("tensora", &["verify", "a", "--manifest", "kept/m.json"]);
    let manifest = std::fs::read_to_string(sandbox.path("kept/m.json")).unwrap();
    for stdout in ["-", "/dev/stdout"] {
        let text = sandbox.run("tensora", &["hash", "a", "--manifest", stdout]);
        assert!(text.starts_with(&manifest), "{stdout}: {text}");
    }
    let fifo = sandbox.path("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || std::fs::read_to_string(fifo).unwrap()
    });
    sandbox.run("tensora", &["hash", "a", "--manifest", "fifo"]);
    assert_eq!(reader.join().unwrap(), manifest);
    assert!(fifo.symlink_metadata().unwrap().file_type().is_fifo());
}

#[test]
fn two_manifests_are_written_into_one_folder_at_once() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    std::fs::create_dir(sandbox.path("out")).unwrap();
    let hold = std::fs::File::create(sandbox.path("out/.tensora.lock")).unwrap();
    hold.try_lock().unwrap();
    std::thread::scope(|scope| {
        for name in ["out/1", "out/2"] {
            let sandbox = &sandbox;
            scope.spawn(move || sandbox.run("tensora", &["hash", "a", "--manifest", name]));
        }
    });
    drop(hold);
    assert_eq!(names(&sandbox.path("out")), [".tensora.lock", "1", "2"]);
}

/// What a command that must fail prints on stdout, as one JSON object.
fn failed_json(sandbox: &Sandbox, code: i32, name: &str, args: &[&str]) -> serde_json::Value {
    let assert = sandbox.program(name).args(args).assert().code(code);
    let output = assert.get_output();
    assert!(output.stderr.starts_with(b"error: "), "{name} {args:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{name} {args:?}: {text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn failures_are_json_where_json_is_asked_for() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    sandbox.sample("b", "safetensors");
    std::fs::write(sandbox.path("bad.json"), b"{}").unwrap();
    for (name, args, kind) in [
        ("convert", &["./none", "out", "--json"][..], "NotFound"),
        (
            "tensora",
            &["convert", "a", "a", "--json"],
            "InvalidArgument",
        ),
        ("tensora", &["hash", "./none", "--json"], "NotFound"),
        ("tensora", &["diff", "a", "./none", "--json"], "NotFound"),
        ("tensora", &["inspect", "./none", "--json"], "NotFound"),
        (
            "tensora",
            &["verify", "a", "--json", "--manifest", "bad.json"],
            "BadIndex",
        ),
    ] {
        let json = failed_json(&sandbox, 1, name, args);
        assert_eq!(json["ok"], false, "{json}");
        assert_eq!(json["error"]["kind"], kind, "{json}");
        for field in ["message", "path", "help"] {
            assert!(json["error"][field].is_string(), "{field}: {json}");
        }
        let message = json["error"]["message"].as_str().unwrap();
        assert!(
            !message.contains(json["error"]["help"].as_str().unwrap()),
            "{json}"
        );
        assert!(json["error"]["tensor"].is_null());
    }
    let json = failed_json(
        &sandbox,
        2,
        "convert",
        &["a", "out", "--to", "safetensors", "--packed", "--json"],
    );
    assert_eq!(json["error"]["kind"], "Usage");
    // What the parser of arguments refuses, too.
    for args in [
        &["a", "out", "--json", "--nonsense"][..],
        &["--json"],
        &["a", "out", "-p", "none", "--json"],
    ] {
        let json = failed_json(&sandbox, 2, "convert", args);
        assert_eq!(json["error"]["kind"], "Usage");
        let message = json["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.contains('\n'), "{json}");
    }
    // A report that says what is wrong is all there is.
    let (_, manifest) = (
        sandbox.run("tensora", &["hash", "a", "--manifest", "m.json"]),
        sandbox.path("m.json"),
    );
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(
        &manifest,
        text.replacen("\"sha256\": \"", "\"sha256\": \"00", 1),
    )
    .unwrap();
    let json = failed_json(
        &sandbox,
        1,
        "tensora",
        &["verify", "a", "--json", "--manifest", "m.json"],
    );
    assert!(json["error"]["tensor"].is_string(), "{json}");
    std::fs::write(
        &manifest,
        "{\"format\": \"tensora-manifest-1\", \"tensors\": {}}",
    )
    .unwrap();
    let json = failed_json(
        &sandbox,
        1,
        "tensora",
        &["verify", "a", "--json", "--manifest", "m.json"],
    );
    assert!(
        json["problems"].is_array() && json["error"].is_null(),
        "{json}"
    );
}

#[test]
fn empty_names_are_seen() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let sha = "ab".repeat(32);
    let manifest = format!(
        r#"{{"format": "tensora-manifest-1", "tensors": {{"": {{"dtype": "U8", "shape": [1], "nbytes": 1, "sha256": "{sha}"}}}}}}"#
    );
    std::fs::write(sandbox.path("m.json"), manifest).unwrap();
    let assert = sandbox
        .program("tensora")
        .args(["verify", "a", "--manifest", "m.json"])
        .assert();
    let text = String::from_utf8(assert.code(1).get_output().stdout.clone()).unwrap();
    assert!(text.contains("bad: \"\": it is missing"), "{text}");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_no_manifest_and_blocks_nobody() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let made = std::process::Command::new("mkfifo")
        .arg(sandbox.path("fifo"))
        .status();
    assert!(made.unwrap().success());
    for name in ["fifo", "/dev/zero"] {
        let error = sandbox.fail(1, "tensora", &["verify", "a", "--manifest", name]);
        assert!(error.contains("regular file"), "{error}");
    }
}

#[test]
fn arguments_that_contradict_each_other_are_usage_errors() {
    let sandbox = Sandbox::new();
    for args in [
        &["--to", "safetensors", "--packed"][..],
        &["--to", "safetensors", "--dialect", "store"],
        &["--to", "serverlessllm", "--max-shard-size", "4"],
        &["--packed", "--dialect", "store"],
    ] {
        // Before the input is looked for.
        let error = sandbox.fail(2, "convert", &[&["./none", "out"], args].concat());
        assert!(error.contains("leave") || error.contains("-p"), "{error}");
    }
}

#[test]
fn a_mistyped_path_is_said_to_be_none() {
    let sandbox = Sandbox::new();
    for name in ["mdoel", "a/mdoel"] {
        let error = sandbox.fail(1, "tensora", &["hash", name]);
        let said = format!("no file or folder \"{name}\" here");
        assert!(error.contains(&said), "{error}");
    }
}

#[test]
fn completions_know_values_and_all_programs() {
    let sandbox = Sandbox::new();
    let script = sandbox.run("tensora", &["completions", "bash"]);
    for words in [
        "\"tensora store\"",
        "\"safetensors serverlessllm\"",
        "\"default sync async io-uring mmap\"",
    ] {
        assert!(script.contains(words), "{words}");
    }
    for program in ["convert", "profile", "demo"] {
        let script = sandbox.run("tensora", &["completions", "bash", program]);
        assert!(script.contains(&format!("_{program}()")), "{program}");
        assert!(script.contains("mmap"), "{program}");
    }
    // What is no proposal is still understood.
    sandbox.sample("a", "safetensors");
    sandbox.run(
        "tensora",
        &["hash", "a", "--backend", "tokio", "--layout", "SafeTensors"],
    );
}
