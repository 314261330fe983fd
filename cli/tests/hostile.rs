//! Names out of files: nothing that a terminal obeys, nothing without an end, and exact JSON.

mod common;

use std::path::Path;

use common::Sandbox;
use serde_json::json;

/// Clears the screen, turns the direction of writing, begins a line of its own.
const EVIL: &str = "\u{1b}[2Ja\u{202e}b\u{2028}c\r\nerror: d";

/// A SafeTensors file with one byte for each of these tensors.
fn write(path: &Path, tensors: &[&str]) {
    let mut header = serde_json::Map::new();
    for (at, name) in tensors.iter().enumerate() {
        let entry = json!({"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]});
        header.insert((*name).to_owned(), entry);
    }
    write_header(
        path,
        &serde_json::to_string(&header).unwrap(),
        tensors.len(),
    );
}

fn write_header(path: &Path, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    std::fs::write(path, bytes).unwrap();
}

fn assert_tame(what: &str, output: &[u8]) {
    let text = String::from_utf8(output.to_vec()).unwrap();
    let obeyed = |c: char| {
        c != '\n' && (c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2028}'))
    };
    assert!(!text.contains(obeyed), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line == "error: d"), "{what}");
    assert!(text.len() < 20_000, "{what}: {} bytes", text.len());
}

#[test]
#[cfg(unix)]
fn no_output_drives_the_terminal() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path(EVIL);
    std::fs::create_dir(&folder).unwrap();
    write(
        &folder.join(format!("model{EVIL}.safetensors")),
        &[EVIL, "x"],
    );
    let path = folder.to_str().unwrap();
    for (program, args) in [
        ("tensora", &["inspect", path][..]),
        ("tensora", &["hash", path, "-vv"]),
        ("tensora", &["plan", path, "-vv"]),
        ("tensora", &["plan", path, "--select", "none"]),
        ("tensora", &["convert", path, "out", "-b", "mmap"]),
        ("tensora", &["convert", path, path]),
        ("profile", &["safetensors", "sync", "--path", path]),
        ("demo", &["safetensors", "sync", "--path", path]),
        ("profile", &["serverlessllm", "sync", "--path", path]),
    ] {
        let output = sandbox.program(program).args(args).output().unwrap();
        assert_tame(&format!("{args:?}"), &output.stdout);
        assert_tame(&format!("{args:?}"), &output.stderr);
        assert!(output.stdout.len() + output.stderr.len() > 0, "{args:?}");
    }
    let line = sandbox
        .json_lines("tensora", &["hash", path, "--json"])
        .remove(0);
    assert_eq!(line["name"], EVIL);
    let report = sandbox
        .json_lines("tensora", &["inspect", path, "--json"])
        .remove(0);
    assert_eq!(report["path"], path);
}

#[test]
#[cfg(unix)]
fn a_command_to_copy_means_the_same_path() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path(EVIL);
    std::fs::create_dir(&folder).unwrap();
    write(&folder.join("model.safetensors"), &["x"]);
    let args = ["safetensors", "sync", "--path", folder.to_str().unwrap()];
    let text = sandbox.run("demo", &args);
    let (_, line) = text.split_once("--path ").unwrap();
    let (word, _) = line.split_once(" --cold").unwrap();
    let script = format!("printf %s {word}");
    let Ok(printed) = std::process::Command::new("bash")
        .args(["-c", &script])
        .output()
    else {
        // No shell that knows $'...'.
        return;
    };
    assert_eq!(
        String::from_utf8(printed.stdout).unwrap(),
        folder.to_str().unwrap()
    );
}

#[test]
fn messages_end() {
    let sandbox = Sandbox::new();
    let long = "n".repeat(3_000_000);
    let dtype = json!({"w": {"dtype": long, "shape": [1], "data_offsets": [0, 1]}});
    let shape = json!({"w": {"dtype": "U8", "shape": long, "data_offsets": [0, 1]}});
    let dims = json!({"w": {"dtype": "U8", "shape": vec![2; 1_000_000], "data_offsets": [0, 1]}});
    let name = json!({&long: {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}});
    let key = json!({"__metadata__": {&long: 1}});
    for header in [dtype, shape, dims, name, key] {
        write_header(&sandbox.path("m.safetensors"), &header.to_string(), 1);
        let error = sandbox.fail(1, "tensora", &["hash", "m.safetensors"]);
        assert!(error.len() < 5000, "{} bytes", error.len());
        assert!(error.contains("characters)"), "{error}");
        assert_tame("hash", error.as_bytes());
    }
    let index = json!({"weight_map": {"w": format!("{long}.safetensors")}});
    let path = sandbox.path("m.safetensors.index.json");
    std::fs::write(path, index.to_string()).unwrap();
    let error = sandbox.fail(1, "tensora", &["hash", "m.safetensors.index.json"]);
    assert!(error.len() < 5000, "{} bytes", error.len());
}
