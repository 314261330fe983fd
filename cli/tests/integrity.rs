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
