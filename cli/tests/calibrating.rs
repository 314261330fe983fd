//! `calibrate` and the profile that it stores, as users meet them.

mod common;

use common::{Sandbox, names};

#[test]
fn a_profile_is_measured_stored_used_and_explained() {
    let sandbox = Sandbox::new();
    let storage = sandbox.path("storage");
    std::fs::create_dir(&storage).unwrap();
    let args = ["calibrate", "storage", "--size", "64MiB", "--json"];

    let dry = sandbox.json_lines("tensora", &[&args[..], &["--dry-run"]].concat());
    assert!(dry[0].get("stored").is_none());
    assert!(!sandbox.path("config").exists());
    let text = sandbox.run("tensora", &["profile", "capabilities"]);
    assert!(text.contains("profile     built-in;"), "{text}");

    let report = &sandbox.json_lines("tensora", &args)[0];
    assert_eq!(names(&storage), [""; 0], "nothing is left behind");
    let path = sandbox.path("config").join("profile.json");
    assert_eq!(report["stored"], path.to_str().unwrap());
    assert_eq!(report["file_bytes"], 64 << 20);
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    let measured = report["measurements"].as_array().unwrap();
    let of = |way: &str| measured.iter().filter(|one| one["way"] == way).count();
    assert!(of("copies") >= 4, "{measured:?}");
    let stored: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(stored["preset"], report["preset"]);
    assert_eq!(stored["machine"], report["machine"]);

    // A sample on the same storage is loaded with it, and that is said everywhere.
    sandbox.sample("model", "safetensors");
    let plan = &sandbox.json_lines("tensora", &["plan", "model", "--json"])[0];
    assert_eq!(
        plan["schedule"]["decision"]["profile"],
        path.to_str().unwrap()
    );
    let text = sandbox.run("tensora", &["plan", "model"]);
    assert!(
        text.contains(&format!("profile    {}", path.display())),
        "{text}"
    );
    let args = ["safetensors", "default", "--path", "model", "--json"];
    let profile = &sandbox.json_lines("profile", &args)[0];
    assert_eq!(profile["profile"], path.to_str().unwrap());

    let args = ["profile", "capabilities", "--format", "json"];
    let shown = &sandbox.json_lines("tensora", &args)[0]["profile"];
    assert_eq!(shown["source"], "stored");
    assert_eq!(shown["path"], path.to_str().unwrap());
    assert_eq!(shown["machine"], report["machine"]);
    assert_eq!(shown["preset"], report["preset"]);
    let stored_at = shown["stored_at"].as_str().unwrap();
    let text = sandbox.run("tensora", &args[..2]);
    let line = format!("profile     {}, stored {stored_at}\n", path.display());
    assert!(text.contains(&line), "{text}");
}

#[test]
fn the_table_says_what_changed_and_where_it_went() {
    let sandbox = Sandbox::new();
    let text = sandbox.run("tensora", &["calibrate", "--size", "64MiB", "--dry-run"]);
    for word in [
        "GiB/s",
        "built-in",
        "chosen",
        "page cache, threads",
        "not stored",
    ] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

#[test]
fn a_profile_that_cannot_be_used_costs_a_warning_and_nothing_else() {
    let sandbox = Sandbox::new();
    sandbox.sample("model", "safetensors");
    std::fs::create_dir(sandbox.path("config")).unwrap();
    for (text, says) in [
        ("{\"version\": 7}", "version 7"),
        ("{}", "not a valid profile"),
        ("", "not a valid profile"),
    ] {
        std::fs::write(sandbox.path("config/profile.json"), text).unwrap();
        let assert = sandbox
            .program("tensora")
            .args(["plan", "model", "--json"])
            .assert()
            .success();
        let warning = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(
            warning.starts_with("warning: the stored profile"),
            "{warning}"
        );
        assert!(
            warning.contains(says) && warning.contains("calibrate"),
            "{warning}"
        );
        let plan: serde_json::Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
        assert_eq!(plan["schedule"]["decision"]["profile"], "built-in");
    }
}

#[test]
fn what_cannot_be_calibrated_is_said() {
    let sandbox = Sandbox::new();
    let missing = sandbox.fail(1, "tensora", &["calibrate", "missing"]);
    assert!(missing.contains("not a folder"), "{missing}");
    sandbox.fail(2, "tensora", &["calibrate", "--size", "1MiB"]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_calibration_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let storage = sandbox.path("storage");
    std::fs::create_dir(&storage).unwrap();
    let mut child = sandbox
        .std_program("tensora")
        .args(["calibrate", "storage", "--size", "256MiB"])
        .spawn()
        .unwrap();
    while names(&storage).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kill = format!("kill -INT {}", child.id());
    let kill = std::process::Command::new("sh")
        .args(["-c", &kill])
        .status();
    assert!(kill.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(&storage), [""; 0]);
    assert!(!sandbox.path("config").exists());
}
