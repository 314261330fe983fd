//! profile and demo, run as the instructions say.

mod common;

use common::{Sandbox, names};

const ID: &str = "Qwen/Qwen3-0.6B";

/// Runs the words of a command line after `cargo run --release --bin NAME --`.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn the_commands_of_the_instructions_work_on_the_hub_cache() {
    let sandbox = Sandbox::new();
    let snapshot = sandbox.cached_model(ID);
    let text = sandbox.run(
        "profile",
        &words("safetensors default --model-id Qwen/Qwen3-0.6B --iterations 1"),
    );
    assert!(
        text.contains("iteration 1:") && text.contains("median"),
        "{text}"
    );
    assert!(text.contains(snapshot.to_str().unwrap()), "{text}");
    let line = words("safetensors sync --model-id Qwen/Qwen3-0.6B --iterations 1");
    assert!(
        sandbox
            .run("profile", &line)
            .contains("backend         sync (chosen by the caller)")
    );
    let text = sandbox.run("demo", &words("safetensors all --model-id Qwen/Qwen3-0.6B"));
    for row in [
        "metadata",
        "sync",
        "parallel-sync",
        "async",
        "io-uring",
        "mmap",
        "default",
    ] {
        let start = format!("safetensors  {row} ");
        assert!(
            text.lines().any(|line| line.starts_with(&start)),
            "{row} in {text}"
        );
    }
    assert!(text.contains("All bytes are equal") && text.contains("default for safetensors chose"));
}

#[test]
fn a_path_in_the_other_layout_says_how_to_convert_it() {
    let sandbox = Sandbox::new();
    sandbox.sample("a", "safetensors");
    for program in ["profile", "demo"] {
        let args = ["serverlessllm", "sync", "--path", "a"];
        let error = sandbox.fail(1, program, &args);
        assert!(
            error.contains("convert") && error.contains("a OUT"),
            "{error}"
        );
        assert!(!sandbox.path("cache").exists());
    }
}

#[test]
fn a_model_that_is_not_in_the_cache_is_named_and_a_path_wins_over_an_id() {
    let sandbox = Sandbox::new();
    let error = sandbox.fail(1, "profile", &["safetensors", "sync", "--model-id", "gpt2"]);
    assert!(error.contains("gpt2") && error.contains("path"), "{error}");
    sandbox.cached_model("gpt2");
    assert!(
        sandbox
            .run("tensora", &["inspect", "gpt2"])
            .contains("4 files")
    );
    sandbox.sample("gpt2", "serverlessllm");
    assert!(
        sandbox
            .run("tensora", &["inspect", "gpt2"])
            .contains("serverlessllm,")
    );
}

#[test]
fn every_case_reports_the_same_fields() {
    let sandbox = Sandbox::new();
    let mut bytes = None;
    for layout in ["safetensors", "serverlessllm"] {
        for case in [
            "default",
            "sync",
            "async",
            "mmap",
            "native",
            "hf-native",
            "native-parallel",
        ] {
            let args = [layout, case, "--sample", "2MiB", "-i", "2", "--json"];
            let lines = sandbox.json_lines("profile", &args);
            assert_eq!(lines.len(), 2);
            for (number, line) in lines.iter().enumerate() {
                assert_eq!(line["iteration"], number + 1);
                assert_eq!(line["layout"], layout);
                for field in [
                    "ms",
                    "first_tensor_ms",
                    "bytes",
                    "tensors",
                    "resident_before_bytes",
                ] {
                    assert!(line[field].is_number(), "{field} in {line}");
                }
                for field in ["backend", "reason", "case"] {
                    assert!(line[field].is_string(), "{field} in {line}");
                }
                if cfg!(target_os = "linux") {
                    for field in ["cpu_s", "peak_rss_bytes", "disk_read_bytes"] {
                        assert!(line[field].is_number(), "{field} in {line}");
                    }
                }
                assert_eq!(line["map_ms"].is_number(), case == "mmap");
                let total = bytes.get_or_insert(line["bytes"].clone());
                assert_eq!(&line["bytes"], total);
                if !matches!(case, "default" | "hf-native") {
                    assert_eq!(line["backend"], case);
                }
            }
        }
    }
    // Made once for each layout, and nothing beside them.
    let sample = sandbox
        .path("cache/samples")
        .join(&names(&sandbox.path("cache/samples"))[0]);
    assert_eq!(names(&sample), ["safetensors", "serverlessllm"]);
}

#[test]
#[cfg(target_os = "linux")]
fn cold_loads_report_what_stayed_in_the_cache() {
    let sandbox = Sandbox::new();
    sandbox.cached_model(ID);
    for flag in ["--cold", "--evict-page-cache"] {
        let args = ["safetensors", "sync", "--model-id", ID, flag, "--json"];
        let line = sandbox.json_lines("profile", &args).remove(0);
        assert_eq!(line["cold"], true);
        let left = line["left_after_evict_bytes"].as_u64().unwrap();
        let resident = line["resident_before_bytes"].as_u64().unwrap();
        // File systems in memory keep everything; others let go of all of it.
        assert_eq!(left == 0, resident == 0, "{line}");
    }
    let warm = sandbox.json_lines(
        "profile",
        &[
            "safetensors",
            "native",
            "--model-id",
            ID,
            "-i",
            "2",
            "--json",
        ],
    );
    let (resident, bytes) = (&warm[1]["resident_before_bytes"], &warm[1]["bytes"]);
    assert_eq!(resident, bytes);
}

#[test]
fn a_damaged_sample_is_made_again() {
    let sandbox = Sandbox::new();
    let args = ["safetensors", "sync", "--sample", "2MiB", "--json"];
    let path = sandbox.json_lines("profile", &args)[0]["path"]
        .as_str()
        .unwrap()
        .to_owned();
    let shard = std::path::Path::new(&path).join("model-00002-of-00004.safetensors");
    let file = std::fs::File::options().write(true).open(&shard).unwrap();
    file.set_len(100).unwrap();
    sandbox.json_lines("profile", &args);
    assert!(shard.metadata().unwrap().len() > 100);
}

#[test]
fn the_demo_loads_its_sample_in_both_layouts() {
    let sandbox = Sandbox::new();
    let text = sandbox.run("demo", &["--sample", "2MiB"]);
    for layout in ["safetensors", "serverlessllm"] {
        for row in [
            "metadata",
            "sync",
            "parallel-sync",
            "async",
            "io-uring",
            "mmap",
            "default",
        ] {
            let found = text.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(layout) && words.next() == Some(row)
            });
            assert!(found, "{layout} {row} in {text}");
        }
    }
    assert!(
        text.contains("mapped after") && text.contains("All bytes are equal"),
        "{text}"
    );
    assert!(text.contains("Next:"), "{text}");

    let one = sandbox.run("demo", &["serverlessllm", "metadata", "--sample", "2MiB"]);
    assert!(
        one.contains("no data read") && !one.contains("All bytes"),
        "{one}"
    );
    let path = sandbox.sample("a", "serverlessllm");
    let found = sandbox.run("demo", &["--path", path.to_str().unwrap()]);
    assert!(found.contains("serverlessllm  mmap"), "{found}");
}

/// The file's events of one name.
fn events(path: &std::path::Path, name: &str) -> usize {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let events = json["traceEvents"].as_array().unwrap().iter();
    events.filter(|event| event["name"] == name).count()
}

#[test]
fn traces_are_written_when_all_went_well() {
    let sandbox = Sandbox::new();
    let path = sandbox.sample("a", "safetensors");
    let path = path.to_str().unwrap();
    let profile = |trace: &str, more: &[&'static str]| -> Vec<String> {
        let args = [
            "safetensors",
            "sync",
            "--path",
            path,
            "--trace",
            trace,
            "-i",
            "3",
        ];
        args.iter().chain(more).map(|&arg| arg.to_owned()).collect()
    };
    let text = sandbox.run("profile", &profile("out.json", &[]));
    assert!(
        text.contains("where time went") && text.contains("disk wait"),
        "{text}"
    );
    // The last of three loads.
    assert_eq!(events(&sandbox.path("out.json"), "prepare"), 1);
    let lines = sandbox.json_lines("profile", &profile("out.json", &["--json"]));
    assert!(lines[1]["trace"].is_null() && lines[2]["trace"]["total"]["reads"].is_number());
    let tensors = lines[2]["tensors"].as_u64().unwrap() as usize;
    assert_eq!(events(&sandbox.path("out.json"), "deliver"), tensors);

    let plain = sandbox.run("tensora", &["hash", path]);
    assert_eq!(
        sandbox.run("tensora", &["hash", path, "--trace", "hash.json"]),
        plain
    );
    assert_eq!(events(&sandbox.path("hash.json"), "deliver"), tensors);

    let before = names(&sandbox.path(""));
    let error = sandbox.fail(1, "profile", &profile("no/such/folder.json", &[]));
    assert!(error.contains("no/such"), "{error}");
    let error = sandbox.fail(1, "profile", &profile("a", &[]));
    assert!(error.contains("name a file in it"), "{error}");
    let args = ["safetensors", "native", "--path", path, "--trace", "x.json"];
    assert!(sandbox.fail(2, "profile", &args).contains("--trace"));
    sandbox.fail(1, "tensora", &["hash", "nowhere", "--trace", "x.json"]);
    assert_eq!(
        names(&sandbox.path("")),
        before,
        "nothing is left of what failed"
    );
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::FileTypeExt;
        let text = sandbox.run("tensora", &["hash", path, "--trace", "/dev/null"]);
        assert_eq!(text, plain);
        let null = std::fs::metadata("/dev/null").unwrap();
        assert!(null.file_type().is_char_device(), "devices are written to");
    }
}

#[test]
fn capabilities_in_three_formats() {
    let sandbox = Sandbox::new();
    let text = sandbox.run("profile", &["capabilities"]);
    assert!(
        text.contains("io-uring") && text.contains("cores"),
        "{text}"
    );
    let json = sandbox
        .json_lines("profile", &["capabilities", "--format", "json"])
        .remove(0);
    let available = json["io_uring"]["status"] == "available";
    assert_eq!(json["backends"].as_array().unwrap().len(), 4);
    let shell = sandbox.run("profile", &["capabilities", "--format", "shell"]);
    let flag = format!("TENSORA_IO_URING={}\n", u8::from(available));
    assert!(shell.contains(&flag), "{shell}");
    #[cfg(unix)]
    {
        let script = format!("{shell}\necho \"$TENSORA_BACKENDS|$TENSORA_CORES\"");
        let echoed = std::process::Command::new("sh")
            .args(["-euc", &script])
            .output()
            .unwrap();
        let echoed = String::from_utf8(echoed.stdout).unwrap();
        assert_eq!(
            echoed.trim(),
            format!(
                "{}|{}",
                if available {
                    "sync async io-uring mmap"
                } else {
                    "sync async mmap"
                },
                json["cores"]
            )
        );
    }
}
