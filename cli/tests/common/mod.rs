//! A scratch folder with caches of its own, and the programs run in it.

#![allow(dead_code, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

/// A commit, as the Hub names snapshots.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// When something has hung, not a measure of speed.
pub const WATCHDOG: Duration = Duration::from_secs(60);

pub struct Sandbox {
    folder: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program that sees none of the user's caches and settings.
    pub fn program(&self, name: &str) -> Command {
        Command::from_std(self.std_program(name))
    }

    pub fn std_program(&self, name: &str) -> std::process::Command {
        let mut command = std::process::Command::new(cargo_bin(name));
        command
            .current_dir(self.folder.path())
            .env("TENSORA_CACHE_DIR", self.path("cache"))
            .env("TENSORA_CONFIG_DIR", self.path("config"))
            .env("HF_HUB_CACHE", self.path("hub"))
            .env_remove("NO_COLOR")
            .env("HF_HUB_OFFLINE", "1")
            .env_remove("HF_HOME")
            .env_remove("HF_TOKEN")
            .env_remove("HF_ENDPOINT");
        command
    }

    /// Runs a program that must succeed, and gives what it printed.
    pub fn run<S: AsRef<str>>(&self, name: &str, args: &[S]) -> String {
        let args = args.iter().map(AsRef::as_ref);
        let assert = self.program(name).args(args).assert().success();
        String::from_utf8(assert.get_output().stdout.clone()).unwrap()
    }

    /// Runs a program that must fail with `code`, and gives its error message.
    pub fn fail<S: AsRef<str>>(&self, code: i32, name: &str, args: &[S]) -> String {
        let args = args.iter().map(AsRef::as_ref);
        let assert = self.program(name).args(args).assert().code(code);
        let message = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
        assert!(message.starts_with("error: "), "{message}");
        message
    }

    pub fn json_lines<S: AsRef<str>>(&self, name: &str, args: &[S]) -> Vec<Value> {
        let text = self.run(name, args);
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// A sample of some MiB in a folder of this name.
    pub fn sample(&self, name: &str, layout: &str) -> PathBuf {
        self.run(
            "tensora",
            &[
                "sample", name, "--size", "3MiB", "--shards", "3", "--layout", layout,
            ],
        );
        self.path(name)
    }

    /// A model of some MiB in the Hub cache.
    pub fn cached_model(&self, id: &str) -> PathBuf {
        self.cached_snapshot(id, COMMIT, "3MiB")
    }

    /// A commit of a model in the Hub cache, as the Hub's own tools leave it: links from the snapshot
    /// to blobs. From now on `main` is this commit.
    pub fn cached_snapshot(&self, id: &str, commit: &str, size: &str) -> PathBuf {
        let model = self
            .path("hub")
            .join(format!("models--{}", id.replace('/', "--")));
        let (blobs, snapshot) = (model.join("blobs"), model.join("snapshots").join(commit));
        std::fs::create_dir_all(model.join("refs")).unwrap();
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(model.join("refs/main"), commit).unwrap();
        self.run(
            "tensora",
            &["sample", snapshot.to_str().unwrap(), "--size", size],
        );
        #[cfg(unix)]
        for entry in std::fs::read_dir(&snapshot).unwrap() {
            let file = entry.unwrap().path();
            let name = file.file_name().unwrap().to_str().unwrap();
            let blob = format!("blob-of-{commit}-{name}");
            std::fs::rename(&file, blobs.join(&blob)).unwrap();
            std::os::unix::fs::symlink(Path::new("../../blobs").join(blob), &file).unwrap();
        }
        snapshot
    }
}

/// Names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Sends a signal by its name.
#[cfg(unix)]
pub fn send(signal: &str, child: &Child) {
    let kill = format!("kill -{signal} {}", child.id());
    assert!(
        std::process::Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
}

/// The exit code; a program that hangs is killed and has none.
pub fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < WATCHDOG {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}
