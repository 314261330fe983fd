//! What the programs say when a conversion replaces files, is refused, or is ended from outside.

#![cfg(unix)]
#![allow(missing_docs)]

mod common;

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Sandbox, send, wait};

#[test]
fn files_of_an_earlier_checkpoint_that_go_are_said() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    sandbox.run("convert", &["a", "out", "-p", "3"]);
    let args = ["a", "out", "-p", "2", "--force"];
    let assert = sandbox.program("convert").args(args).assert().success();
    let notes = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    let wanted = "removed, as the earlier checkpoint: tensor.data_2";
    assert!(notes.contains(wanted), "{notes}");
}

#[test]
fn a_signal_gives_one_object_where_json_is_asked_for() {
    let sandbox = Sandbox::new();
    let args = ["sample", "a", "--size", "1MiB", "--tensors", "20000"];
    sandbox.run("tensora", &args);
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut child = sandbox
            .std_program("convert")
            .args(["a", "out", "-p", "20000", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        while !sandbox.path("out/.tensora-convert").exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended too early");
            std::thread::sleep(Duration::from_millis(1));
        }
        send(signal, &child);
        assert_eq!(wait(&mut child), Some(code), "{signal}");
        let mut text = String::new();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["ok"], false, "{json}");
        assert_eq!(json["error"]["kind"], "Cancelled", "{json}");
        assert!(!sandbox.path("out").exists());
    }
}

#[test]
fn a_file_that_is_mounted_in_the_output_is_refused_before_anything_is_touched() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    sandbox.run("convert", &["a", "out", "-p", "2"]);
    std::fs::write(sandbox.path("elsewhere"), b"x").unwrap();
    let target = sandbox.path("out/tensor.data_1");
    let mut mount = Command::new("mount");
    mount.arg("--bind").arg(sandbox.path("elsewhere"));
    let mounted = mount.arg(&target).stderr(Stdio::null()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("nothing may be mounted here: not tried");
        return;
    }
    let assert = sandbox
        .program("convert")
        .args(["a", "out", "-p", "1", "--force"])
        .assert();
    let unmounted = Command::new("umount").arg(&target).status();
    assert!(unmounted.unwrap().success());
    let output = assert.code(1).get_output().stderr.clone();
    let error = String::from_utf8(output).unwrap();
    assert!(
        error.contains("tensor.data_1") && error.contains("mounted"),
        "{error}"
    );
    sandbox.run("tensora", &["diff", "a", "out"]);
}
