//! inspect, hash, plan, sample and convert, run as users run them.

mod common;

use std::io::Write as _;

use common::{Sandbox, names};
use serde_json::Value;

#[test]
fn every_backend_and_both_layouts_have_the_digests_of_the_sample() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    sandbox.sample("b", "serverlessllm");
    let expected = sandbox.json_lines("tensora", &["hash", "a", "--json"]);
    for folder in ["a", "b"] {
        for backend in ["sync", "async", "mmap", "default"] {
            let lines =
                sandbox.json_lines("tensora", &["hash", folder, "--backend", backend, "--json"]);
            assert_eq!(lines, expected, "{folder} {backend}");
        }
    }
    let names: Vec<&str> = expected
        .iter()
        .map(|line| line["name"].as_str().unwrap())
        .collect();
    assert!(names.is_sorted());
    let first = &expected[0];
    assert_eq!(first["dtype"], "BF16");
    let shape: u64 = first["shape"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .product();
    assert_eq!(first["nbytes"], 2 * shape);
    assert_eq!(first["sha256"].as_str().unwrap().len(), 64);

    let text = sandbox.run("tensora", &["hash", "a", "--layout", "safetensors"]);
    assert_eq!(text.lines().count(), expected.len());
    let sha = first["sha256"].as_str().unwrap();
    assert!(
        text.starts_with(&format!("{sha}  {}  BF16 [", names[0])),
        "{text}"
    );
}

#[test]
fn zero_size_and_scalar_tensors_are_hashed() {
    let sandbox = Sandbox::new();
    let header = r#"{"none":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"one":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#;
    let mut file = std::fs::File::create(sandbox.path("m.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.write_all(b"a").unwrap();
    let lines = sandbox.json_lines("tensora", &["hash", "m.safetensors", "--json"]);
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(lines[0]["sha256"], empty);
    assert_eq!(lines[0]["shape"], serde_json::json!([0, 3]));
    let a = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    assert_eq!(lines[1]["sha256"], a);
    assert_eq!(lines[1]["shape"], serde_json::json!([]));
}

#[test]
fn inspect_shows_tensors_types_files_and_layers() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    let text = sandbox.run("tensora", &["inspect", "a"]);
    for part in [
        "safetensors,",
        "3 files",
        "BF16",
        "model-00001-of-00003.safetensors",
        "(x",
        "embed_tokens",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json: Value = sandbox
        .json_lines("tensora", &["inspect", "a", "--json"])
        .remove(0);
    let tensors = json["tensors"].as_array().unwrap();
    assert_eq!(json["total_tensors"], tensors.len());
    let bytes: u64 = tensors
        .iter()
        .map(|tensor| tensor["nbytes"].as_u64().unwrap())
        .sum();
    assert_eq!(json["total_bytes"], bytes);
    assert_eq!(json["dtypes"]["BF16"]["bytes"], bytes);
    assert_eq!(json["files"].as_array().unwrap().len(), 3);
    assert!(
        json["layers"]["model.layers.0"]["tensors"]
            .as_u64()
            .unwrap()
            > 1
    );
    assert_eq!(json["layout"], "safetensors");
    assert_eq!(json["metadata"]["format"], "pt");
}

#[test]
fn a_plan_reads_no_data() {
    let sandbox = Sandbox::new();
    // As large as no disk here: whoever read it would not come back.
    let header = format!(
        r#"{{"m:w":{{"dtype":"U8","shape":[4,{}],"data_offsets":[0,{}]}}}}"#,
        1_u64 << 38,
        1_u64 << 40
    );
    let mut file = std::fs::File::create(sandbox.path("m.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    if file.set_len(8 + header.len() as u64 + (1 << 40)).is_err() {
        // A file system without files of this size.
        return;
    }
    let plan = |more: &[&str]| {
        let args = [&["plan", "m.safetensors", "--json"], more].concat();
        sandbox.json_lines("tensora", &args).remove(0)
    };
    let json = plan(&["--backend", "sync"]);
    assert_eq!(json["plan"]["figures"]["needed_bytes"], 1_u64 << 40);
    assert_eq!(json["schedule"]["decision"]["backend"], "sync");
    let json = plan(&["--slice", "m:w:0:1/4", "--select", "m:*"]);
    assert_eq!(json["plan"]["figures"]["needed_bytes"], 1_u64 << 38);
    // Two of four rows, by name and by pattern; beyond the end there is nothing.
    for steps in ["m:w:0:1::2", "m:*:0::99:2"] {
        let json = plan(&["--slice", steps]);
        assert_eq!(json["plan"]["figures"]["needed_bytes"], 1_u64 << 39);
        assert_eq!(json["plan"]["figures"]["ranges"], 2);
    }
    for (steps, words) in [
        ("m:w:2:::2", "no dimension 2"),
        ("x*:0:::2", "x*"),
        ("x:0:::2", "no tensor"),
    ] {
        let error = sandbox.fail(1, "tensora", &["plan", "m.safetensors", "--slice", steps]);
        assert!(error.contains(words), "{error}");
    }
    let text = sandbox.run(
        "tensora",
        &["plan", "m.safetensors", "--slice", "m:w:0:3/4"],
    );
    assert!(
        text.contains("256 GiB") && text.contains("backend"),
        "{text}"
    );

    let error = sandbox.fail(1, "tensora", &["plan", "m.safetensors", "--select", "x*"]);
    assert!(error.contains("x*"), "{error}");
    sandbox.fail(
        2,
        "tensora",
        &["plan", "m.safetensors", "--slice", "m:w:0:4/4"],
    );
}

#[test]
fn the_headline_of_a_plan_is_what_runs() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    for more in [
        &[][..],
        &["--select", "*.layers.0.*norm*"],
        &["--select", "*embed*"],
    ] {
        let args = [&["plan", "a", "--json"], more].concat();
        let json = sandbox.json_lines("tensora", &args).remove(0);
        let (needed, read) = (
            &json["schedule"]["needed_bytes"],
            &json["schedule"]["read_bytes"],
        );
        assert_eq!(needed, &json["plan"]["figures"]["needed_bytes"]);
        let ratio = read.as_f64().unwrap() / needed.as_f64().unwrap();
        assert_eq!(json["schedule"]["over_read"].as_f64().unwrap(), ratio);
        let text = sandbox.run("tensora", &[&["plan", "a"], more].concat());
        let headline = text.lines().next().unwrap();
        let told = format!("needed: {ratio:.3} bytes read per byte needed");
        assert!(headline.ends_with(&told), "{headline}");
        assert_eq!(text.matches("read per byte needed").count(), 1, "{text}");
    }
}

#[test]
fn samples_are_what_was_asked_for_and_replace_nothing() {
    let sandbox = Sandbox::new();
    let args = [
        "sample",
        "s",
        "--size",
        "2MB",
        "--partitions",
        "2",
        "--tensors",
        "50",
    ];
    let more = ["--dtype", "f32", "--layout", "serverlessllm", "--json"];
    let json = sandbox
        .json_lines("tensora", &[&args[..], &more[..]].concat())
        .remove(0);
    assert_eq!(json["tensors"], 50);
    assert_eq!(json["layout"], "serverlessllm");
    assert_eq!(
        names(&sandbox.path("s")),
        [
            "config.json",
            "tensor.data_0",
            "tensor.data_1",
            "tensor_index.json"
        ]
    );
    let error = sandbox.fail(1, "tensora", &["sample", "s", "--size", "2MB"]);
    assert!(error.contains("not empty"), "{error}");
    std::fs::create_dir(sandbox.path("mine")).unwrap();
    std::fs::write(sandbox.path("mine/notes.txt"), b"x").unwrap();
    sandbox.fail(1, "tensora", &["sample", "mine", "--size", "2MB"]);
    assert_eq!(names(&sandbox.path("mine")), ["notes.txt"]);
    let error = sandbox.fail(2, "tensora", &["sample", "t", "--size", "many"]);
    assert!(error.contains("4GiB"), "{error}");
    sandbox.fail(
        2,
        "tensora",
        &["sample", "t", "--size", "2MB", "--dtype", "f12"],
    );
}

#[test]
fn conversion_there_and_back_keeps_every_byte() {
    let sandbox = Sandbox::new();
    let source = sandbox.sample("a", "safetensors");
    std::fs::write(source.join("tokenizer.json"), b"{}").unwrap();
    std::fs::write(source.join("pytorch_model.bin"), b"weights").unwrap();
    let expected = sandbox.run("tensora", &["hash", "a", "--json"]);
    for backend in ["default", "sync", "async", "mmap"] {
        let (there, back) = (format!("{backend}/x"), format!("{backend}/y"));
        let said = sandbox.run("convert", &["a", &there, "-p", "3", "-b", backend]);
        assert!(said.contains("in 3 partitions and an index"), "{said}");
        let files = names(&sandbox.path(&there));
        let expected_files = [
            "config.json",
            "tensor.data_0",
            "tensor.data_1",
            "tensor.data_2",
            "tensor_index.json",
            "tokenizer.json",
        ];
        assert_eq!(files, expected_files);
        assert_eq!(
            sandbox.run("tensora", &["hash", &there, "--json"]),
            expected
        );
        sandbox.run("tensora", &["convert", &there, &back, "--backend", backend]);
        assert_eq!(
            names(&sandbox.path(&back)),
            ["config.json", "model.safetensors", "tokenizer.json"]
        );
        assert_eq!(sandbox.run("tensora", &["hash", &back, "--json"]), expected);
    }
    // 3 MiB fit in one partition of the recommended size.
    let json = sandbox
        .json_lines("tensora", &["convert", "a", "one", "--json"])
        .remove(0);
    assert_eq!(json["files"].as_array().unwrap().len(), 2);
    let error = sandbox.fail(1, "convert", &["a", "one"]);
    assert!(
        error.contains("not empty") && error.contains("one"),
        "{error}"
    );
    sandbox.fail(1, "convert", &["a", "a"]);
}

#[test]
fn what_cannot_be_converted_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let header = r#"{"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.push(0);
    std::fs::write(sandbox.path("m.safetensors"), &bytes).unwrap();
    let error = sandbox.fail(1, "convert", &["m.safetensors", "deep/out"]);
    assert!(error.contains("F4") && error.contains("\"w\""), "{error}");
    assert!(!sandbox.path("deep").exists());
    bytes.pop();
    std::fs::write(sandbox.path("m.safetensors"), &bytes).unwrap();
    sandbox.fail(1, "convert", &["m.safetensors", "deep/out"]);
    assert_eq!(names(&sandbox.path("")), ["m.safetensors"]);
}
