//! `huggingface_hub` for Python and this library on one cache, against a Hub on loopback: what one
//! downloads the other finds, and one waits for the other.
//!
//! `scripts/make_hub_env.sh` makes the Python environment in `.test-env/hub` (or where
//! `TENSORA_HUB_ENV` says); `scripts/test.sh` does, and runs these tests.
#![cfg(feature = "hub")]

#[path = "support/fake_hub.rs"]
mod fake_hub;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fake_hub::{COMMIT, FakeHub, ID};
use tensora::Checkpoint;
use tensora::hf_model::{Client, HubCache, Pull};

const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";

fn interpreter() -> PathBuf {
    let folder = std::env::var_os("TENSORA_HUB_ENV").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(".test-env/hub"),
        PathBuf::from,
    );
    let python = folder.join("bin/python");
    assert!(
        python.exists(),
        "{}: not there; run scripts/make_hub_env.sh",
        python.display()
    );
    python
}

/// A Python program on this cache and Hub.
fn python(hub: &FakeHub, cache: &Path, program: &str) -> Command {
    let mut command = Command::new(interpreter());
    command
        .args(["-c", program])
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HUB_CACHE", cache)
        .env("HF_HOME", cache.join("home"))
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_XET", "1")
        .env("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        .env("NO_PROXY", "127.0.0.1,localhost")
        .env_remove("HF_TOKEN")
        .env_remove("HF_HUB_OFFLINE");
    command
}

fn run(mut command: Command) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn client(hub: &FakeHub, cache: &Path) -> Client {
    let client = Client::new(HubCache::at(cache));
    client.endpoint(&hub.endpoint()).unwrap()
}

fn check(hub: &FakeHub, snapshot: &Path) {
    for name in [ONE, TWO] {
        let found = std::fs::read(snapshot.join(name)).unwrap();
        assert!(found == *hub.state().files[name].bytes, "{name}");
    }
    assert_eq!(Checkpoint::open(snapshot).unwrap().load().unwrap().len(), 2);
}

const PULL: &str = "
from huggingface_hub import snapshot_download
print(snapshot_download('org/name', allow_patterns=['model*', '*.json']))
";

#[test]
#[ignore = "needs the environment that scripts/make_hub_env.sh makes; scripts/test.sh runs it"]
fn what_python_downloads_we_find() {
    let hub = FakeHub::with_model(200_000);
    let cache = tempfile::tempdir().unwrap();
    let folder = run(python(&hub, cache.path(), PULL));
    let requests = hub.requests().len();
    let client = client(&hub, cache.path());
    for revision in [COMMIT, "main"] {
        let pull = Pull::new(ID).revision(Some(revision));
        let found = client.clone().offline(true).pull(&pull).unwrap();
        assert_eq!(
            found.path().canonicalize().unwrap(),
            Path::new(&folder).canonicalize().unwrap()
        );
        check(&hub, found.path());
    }
    client.pull(&Pull::new(ID).revision(Some(COMMIT))).unwrap();
    assert_eq!(hub.requests().len(), requests);
    assert!(client.cache().models().unwrap()[0].snapshots[0].complete);
}

#[test]
#[ignore = "needs the environment that scripts/make_hub_env.sh makes; scripts/test.sh runs it"]
fn what_we_download_python_finds() {
    let hub = FakeHub::with_model(200_000);
    let cache = tempfile::tempdir().unwrap();
    let pull = Pull::new(ID).side_files(true);
    let snapshot = client(&hub, cache.path()).pull(&pull).unwrap();
    let requests = hub.requests().len();
    let offline = format!(
        "
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache
folder = snapshot_download('org/name', local_files_only=True)
for name in ['{ONE}', '{TWO}', 'config.json', 'tokenizer.json', 'model.safetensors.index.json']:
    by_branch = hf_hub_download('org/name', name, local_files_only=True)
    by_commit = hf_hub_download('org/name', name, revision='{COMMIT}')
    assert by_branch == by_commit == folder + '/' + name, (by_branch, by_commit)
    assert try_to_load_from_cache('org/name', name) == by_branch
found = scan_cache_dir()
assert not found.warnings, found.warnings
[repo] = found.repos
[revision] = repo.revisions
assert repo.repo_id == 'org/name' and revision.refs == frozenset(['main']), repo
assert len(revision.files) == 5, revision.files
print(folder)
"
    );
    let folder = run(python(&hub, cache.path(), &offline));
    assert_eq!(
        Path::new(&folder).canonicalize().unwrap(),
        snapshot.path().canonicalize().unwrap()
    );
    assert_eq!(hub.requests().len(), requests);
    // Online it asks, and downloads nothing again.
    let sent = hub
        .requests()
        .iter()
        .filter(|line| line.contains("/storage/"))
        .count();
    run(python(&hub, cache.path(), PULL));
    let again = hub
        .requests()
        .iter()
        .filter(|line| line.contains("/storage/"))
        .count();
    assert_eq!(again, sent);
}

#[test]
#[ignore = "needs the environment that scripts/make_hub_env.sh makes; scripts/test.sh runs it"]
fn both_at_once_download_each_file_once() {
    let hub = FakeHub::with_model(400_000);
    hub.state().pause = Some(Duration::from_millis(3));
    let cache = tempfile::tempdir().unwrap();
    let mut theirs = python(&hub, cache.path(), PULL);
    let theirs = theirs
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ours = client(&hub, cache.path());
    let snapshot = ours.pull(&Pull::new(ID)).unwrap();
    let output = theirs.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    check(&hub, snapshot.path());

    // Python in the midst of a large file: we wait for it, and download nothing of it.
    let hub = FakeHub::with_model(400_000);
    let cache = tempfile::tempdir().unwrap();
    let etag = hub.state().files[ONE].etag();
    hub.state().pause = Some(Duration::from_millis(20));
    let one = format!(
        "
from huggingface_hub import hf_hub_download
hf_hub_download('org/name', '{ONE}')
"
    );
    let mut theirs = python(&hub, cache.path(), &one).spawn().unwrap();
    let lock = cache
        .path()
        .join(format!(".locks/models--org--name/{etag}.lock"));
    let storage = format!("GET /storage/{ONE}");
    while !hub.requests().iter().any(|line| line.starts_with(&storage)) {
        assert!(theirs.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(lock.exists());
    let snapshot = client(&hub, cache.path()).pull(&Pull::new(ID)).unwrap();
    assert!(theirs.wait().unwrap().success());
    check(&hub, snapshot.path());
    let file = snapshot
        .files()
        .iter()
        .find(|file| file.path == ONE)
        .unwrap();
    assert_eq!(file.downloaded, 0);
}
