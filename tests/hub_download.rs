//! Downloads from a Hub on loopback, with everything that goes wrong on the way.
#![cfg(feature = "hub")]

#[path = "support/fake_hub.rs"]
mod fake_hub;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake_hub::{COMMIT, FakeHub, Fault, ID, TOKEN, safetensors};
use tensora::hf_model::{Client, Event, HubCache, Pace, Pull};
use tensora::{CancelToken, Checkpoint, Error, ErrorKind, Selection};

const SHARD: usize = 300_000;
const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";

struct World {
    hub: FakeHub,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self::of(FakeHub::with_model(SHARD))
    }

    fn of(hub: FakeHub) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { hub, folder }
    }

    fn client(&self) -> Client {
        let cache = HubCache::at(self.folder.path());
        let client = Client::new(cache).endpoint(&self.hub.endpoint()).unwrap();
        client.pace(pace())
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("models--org--name")
    }

    fn blob(&self, name: &str) -> PathBuf {
        let etag = self.hub.state().files[name].etag();
        self.model().join("blobs").join(etag)
    }

    fn partial(&self, name: &str) -> PathBuf {
        let mut path = self.blob(name).into_os_string();
        path.push(".incomplete");
        path.into()
    }

    /// Puts bytes where an earlier download would have left them.
    fn leave(&self, name: &str, bytes: &[u8]) {
        std::fs::create_dir_all(self.model().join("blobs")).unwrap();
        std::fs::write(self.partial(name), bytes).unwrap();
    }

    fn bytes(&self, name: &str) -> Arc<Vec<u8>> {
        Arc::clone(&self.hub.state().files[name].bytes)
    }

    /// The model is there, byte for byte, and loads.
    fn check(&self, snapshot: &Path) {
        for name in [ONE, TWO, "model.safetensors.index.json"] {
            let found = std::fs::read(snapshot.join(name)).unwrap();
            assert!(found == *self.bytes(name), "{name}");
            assert!(!self.partial(name).exists(), "{name}");
        }
        let tensors = Checkpoint::open(snapshot).unwrap().load().unwrap();
        assert_eq!(tensors.len(), 2);
        assert_eq!(self.hub.state().leaked, 0);
    }
}

fn pace() -> Pace {
    let mut pace = Pace::default();
    pace.backoff = Duration::from_millis(1);
    pace.chunk_bytes = 64 << 10;
    pace
}

fn pull() -> Pull {
    Pull::new(ID)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_first_run_fetches_what_a_load_needs_and_later_ones_nothing() {
    let world = World::new();
    let client = world.client().token(TOKEN).unwrap();
    let snapshot = client.pull(&pull()).unwrap();
    assert_eq!(snapshot.commit(), COMMIT);
    world.check(snapshot.path());
    let wanted = [ONE, TWO, "model.safetensors.index.json"];
    assert_eq!(names(snapshot.path()), wanted);
    let files = snapshot.files().iter();
    let files: Vec<_> = files
        .map(|file| (&*file.path, file.size, file.downloaded))
        .collect();
    for (path, size, downloaded) in &files {
        assert_eq!(*size, world.bytes(path).len() as u64);
        assert_eq!(size, downloaded);
    }
    assert_eq!(files.len(), 3);
    // The layout of the Hub's own tools.
    assert_eq!(
        std::fs::read_to_string(world.model().join("refs/main")).unwrap(),
        COMMIT
    );
    #[cfg(unix)]
    for name in wanted {
        let link = std::fs::read_link(snapshot.path().join(name)).unwrap();
        let etag = world.hub.state().files[name].etag();
        assert_eq!(link, Path::new("../../blobs").join(etag));
    }
    let requests = world.hub.requests();
    for other in ["consolidated", "README", "config.json", "original"] {
        assert!(!requests.iter().any(|line| line.contains(other)), "{other}");
    }
    // The Hub is asked once for the place of each large file.
    let asked = requests.iter().filter(|line| line.contains("/resolve/"));
    assert_eq!(asked.count(), 3);
    let count = requests.len();
    for revision in [Some(COMMIT), Some("main"), None] {
        let again = pull().revision(revision);
        let offline = client.clone().offline(true).pull(&again).unwrap();
        assert_eq!(offline.path(), snapshot.path());
        assert!(offline.files().iter().all(|file| file.downloaded == 0));
    }
    client.pull(&pull().revision(Some(COMMIT))).unwrap();
    assert_eq!(world.hub.requests().len(), count);
    // A branch may have moved: one question.
    client.pull(&pull()).unwrap();
    assert_eq!(world.hub.requests().len(), count + 1);
}

#[test]
fn side_files_come_when_asked_for_and_are_known_to_be_there_afterwards() {
    let world = World::new();
    let client = world.client();
    client.pull(&pull()).unwrap();
    let sent = world.hub.state().sent;
    let with = pull().side_files(true);
    // Offline they are not known, and a load does without.
    client.clone().offline(true).pull(&with).unwrap();
    let snapshot = client.pull(&with).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        let found = std::fs::read(snapshot.path().join(name)).unwrap();
        assert_eq!(found, *world.bytes(name));
    }
    assert!(!snapshot.path().join("README.md").exists());
    let came = world.hub.state().sent - sent;
    assert!(came < 1000, "{came}");
    let count = world.hub.requests().len();
    client.pull(&with.revision(Some(COMMIT))).unwrap();
    assert_eq!(world.hub.requests().len(), count);
}

#[test]
fn a_download_survives_what_servers_and_networks_do() {
    let storage = format!("/storage/{ONE}");
    let later = format!("{storage}?X-Signature=secret bytes=65536-");
    let resolve = format!("/resolve/{COMMIT}/{ONE}");
    let status = |status, headers: &[(&'static str, &str)]| {
        let headers = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        Fault::Status(status, headers.collect())
    };
    let cases: Vec<(&str, Vec<(&str, Fault)>)> = vec![
        ("reset", vec![(&storage, Fault::Reset(10_000))]),
        ("resets", vec![(&storage, Fault::Reset(10)); 4]),
        (
            "short body",
            vec![(&storage, Fault::Short(1000)), (&storage, Fault::Short(0))],
        ),
        (
            "unavailable",
            vec![(&storage, status(503, &[])), (&resolve, status(500, &[]))],
        ),
        (
            "gateway",
            vec![
                ("/revision/", status(502, &[])),
                ("/tree/", status(504, &[])),
            ],
        ),
        (
            "too many requests",
            vec![(&resolve, status(429, &[("Retry-After", "0")])); 2],
        ),
        ("signature expired", vec![(&later, status(403, &[]))]),
        ("no such range", vec![(&later, status(416, &[]))]),
        ("wrong byte", vec![(&storage, Fault::WrongByte(99))]),
        ("ranges ignored", vec![(&storage, Fault::IgnoreRange); 9]),
        ("small file reset", vec![("index.json", Fault::Reset(5))]),
        ("page reset", vec![("cursor=2", Fault::Status(408, vec![]))]),
    ];
    for (name, faults) in cases {
        let world = World::new();
        for (part, fault) in faults {
            world.hub.fault(part, fault);
        }
        let snapshot = world.client().pull(&pull());
        let snapshot = snapshot.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        world.check(snapshot.path());
    }
}

#[test]
fn a_stalled_download_is_taken_up_where_it_stopped() {
    let world = World::new();
    world
        .hub
        .fault(&format!("/storage/{ONE}"), Fault::Stall(20_000));
    let mut pace = pace();
    pace.stall = Duration::from_secs(1);
    pace.tries = 50;
    let snapshot = world.client().pace(pace).pull(&pull()).unwrap();
    world.check(snapshot.path());
    let requests = world.hub.requests();
    // The first range, from where it had stopped.
    assert!(
        requests
            .iter()
            .any(|line| line.ends_with("bytes=20000-65535")),
        "{requests:?}"
    );
}

#[test]
fn what_an_earlier_download_left_is_continued_checked_or_dropped() {
    let whole = |world: &World| world.bytes(ONE).to_vec();
    type Left = fn(Vec<u8>) -> Vec<u8>;
    let cases: [(&str, Left, Option<u64>); 6] = [
        ("half", |bytes| bytes[..150_000].to_vec(), Some(150_000)),
        ("nothing", |_| Vec::new(), None),
        ("all", |bytes| bytes, Some(SHARD as u64)),
        ("wrong half", |bytes| vec![0; bytes.len() / 2], None),
        ("all of another", |bytes| vec![1; bytes.len()], None),
        ("too long", |bytes| [bytes, vec![0; 10]].concat(), None),
    ];
    for (name, left, saved) in cases {
        let world = World::new();
        world.leave(ONE, &left(whole(&world)));
        let snapshot = world.client().pull(&pull());
        let snapshot = snapshot.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        world.check(snapshot.path());
        if let Some(saved) = saved {
            let file = snapshot
                .files()
                .iter()
                .find(|file| file.path == ONE)
                .unwrap();
            assert!(file.downloaded <= file.size - saved, "{name}: {file:?}");
        }
    }
}

#[test]
fn a_server_without_ranges_sends_what_is_there_again() {
    let world = World::new();
    world.leave(ONE, &world.bytes(ONE)[..100_000]);
    for _ in 0..9 {
        world
            .hub
            .fault(&format!("/storage/{ONE}"), Fault::IgnoreRange);
    }
    let snapshot = world.client().pull(&pull()).unwrap();
    world.check(snapshot.path());
    let files = snapshot.files();
    let file = files.iter().find(|file| file.path == ONE).unwrap();
    assert_eq!(file.downloaded, file.size - 100_000);
}

#[test]
fn bad_bytes_never_get_the_name_of_a_blob() {
    let mut wrong = Vec::new();
    for _ in 0..40 {
        wrong.push(Fault::WrongByte(7));
    }
    let cases: [(&str, Vec<Fault>); 3] = [
        ("wrong sha", wrong),
        ("changed", vec![Fault::Short(10), Fault::Change]),
        ("longer", vec![Fault::Longer(5)]),
    ];
    for (name, faults) in cases {
        let world = World::new();
        let etag = world.hub.state().files[ONE].etag();
        // What is listed stays, whatever the storage has.
        world.hub.state().files.get_mut(ONE).unwrap().listed_etag = Some(etag.clone());
        for fault in faults {
            world.hub.fault(&format!("/storage/{ONE}"), fault);
        }
        let error = world.client().pull(&pull()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadDownload, "{name}: {error}");
        assert!(error.to_string().contains(ONE), "{name}: {error}");
        assert!(!world.model().join("blobs").join(&etag).exists(), "{name}");
        assert!(!world.model().join("refs/main").exists(), "{name}");
        let snapshot = world.model().join("snapshots").join(COMMIT);
        assert!(!snapshot.join(ONE).exists(), "{name}");
    }
}

#[test]
fn a_file_that_is_shorter_than_listed_is_refused() {
    for left in [0, SHARD] {
        let world = World::new();
        let listed = world.bytes(ONE).len() as u64 + 100;
        let etag = world.hub.state().files[ONE].etag();
        let change = |hub: &FakeHub| {
            let mut state = hub.state();
            let file = state.files.get_mut(ONE).unwrap();
            file.listed_size = Some(listed);
            file.listed_etag = Some(etag);
        };
        change(&world.hub);
        world.leave(ONE, &vec![0; left]);
        let error = world.client().pull(&pull()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadDownload, "{error}");
        assert!(error.to_string().contains("declared"), "{error}");
        assert!(!world.blob(ONE).exists());
    }
}

#[test]
fn a_future_that_is_dropped_ends_its_download() {
    let world = World::new();
    world.hub.state().pause = Some(Duration::from_millis(50));
    let client = world.client();
    let waker = std::task::Waker::noop();
    let wanted = pull();
    let mut future = Box::pin(client.pull_async(&wanted));
    let poll =
        std::future::Future::poll(future.as_mut(), &mut std::task::Context::from_waker(waker));
    assert!(poll.is_pending());
    drop(future);
    // Its thread lets go of the locks, so that this one does not wait for ever.
    world.hub.state().pause = None;
    world.check(client.pull(&pull()).unwrap().path());
}

#[test]
fn refusals_say_what_to_do_and_keep_secrets() {
    let refuse = |hub: FakeHub, id: &str, revision: Option<&str>, token: Option<&str>| {
        let world = World::of(hub);
        let mut client = world.client();
        if let Some(token) = token {
            client = client.token(token).unwrap();
        }
        let error = client.pull(&Pull::new(id).revision(revision)).unwrap_err();
        let text = format!("{error:?}");
        assert!(!text.contains("hf_") && !text.contains("secret"), "{text}");
        assert!(error.remedy().is_some(), "{text}");
        assert_eq!(world.hub.state().leaked, 0);
        error
    };
    let model = || FakeHub::with_model(100);
    let private = || {
        let hub = model();
        hub.state().private = true;
        hub
    };
    let gated = || {
        let hub = model();
        hub.state().gated = true;
        hub
    };
    let error = refuse(private(), ID, None, None);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.remedy().unwrap().contains("HF_TOKEN"), "{error}");
    let error = refuse(private(), ID, None, Some("hf_other"));
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = refuse(gated(), ID, None, None);
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("gated"), "{error}");
    let error = refuse(gated(), ID, None, Some("hf_other"));
    assert!(
        error.remedy().unwrap().contains("a token was sent"),
        "{error}"
    );
    let error = refuse(model(), "org/other", None, None);
    assert!(error.to_string().contains("no model org/other"), "{error}");
    let error = refuse(model(), ID, Some("v9"), None);
    assert!(error.to_string().contains("no revision v9"), "{error}");
    let hub = model();
    hub.fault(
        ONE,
        Fault::Status(404, vec![("X-Error-Code", "EntryNotFound".to_owned())]),
    );
    let error = refuse(hub, ID, None, None);
    assert!(error.to_string().contains(ONE), "{error}");
    let hub = model();
    for _ in 0..9 {
        hub.fault("/revision/", Fault::Status(503, vec![]));
    }
    assert_eq!(refuse(hub, ID, None, None).kind(), ErrorKind::Network);
    let hub = model();
    hub.fault(
        "/revision/",
        Fault::Status(429, vec![("Retry-After", "9999".to_owned())]),
    );
    let error = refuse(hub, ID, None, None);
    assert!(error.remedy().unwrap().contains("9999"), "{error}");

    // With the right token everything opens, and the storage never sees it.
    for hub in [private(), gated()] {
        let world = World::of(hub);
        let client = world.client().token(TOKEN).unwrap();
        world.check(client.pull(&pull()).unwrap().path());
    }
}

#[test]
fn what_a_repository_says_is_checked_before_it_is_followed() {
    let refuse = |change: &dyn Fn(&FakeHub)| {
        let world = World::new();
        change(&world.hub);
        let error = world.client().pull(&pull()).unwrap_err();
        (error, world.hub.requests())
    };
    let index = |name: &str| format!("{{\"weight_map\":{{\"a\":\"{name}\"}}}}").into_bytes();
    for name in [
        "../../../etc/passwd",
        "/etc/passwd",
        "a/../../b",
        "http://127.0.0.1/x/..",
    ] {
        let (error, requests) =
            refuse(&|hub| hub.put("model.safetensors.index.json", index(name), false));
        assert_eq!(error.kind(), ErrorKind::UnsafePath, "{error}");
        assert!(
            !requests.iter().any(|line| line.contains("passwd")),
            "{requests:?}"
        );
    }
    let (error, _) = refuse(&|hub| {
        hub.put(
            "model.safetensors.index.json",
            index("no.safetensors"),
            false,
        )
    });
    assert_eq!(error.kind(), ErrorKind::MissingShard, "{error}");
    let (error, _) = refuse(&|hub| hub.put("model.safetensors.index.json", b"{".to_vec(), false));
    assert_eq!(error.kind(), ErrorKind::BadIndex, "{error}");
    let (error, _) = refuse(&|hub| {
        hub.state()
            .files
            .retain(|name, _| !name.contains("safetensors"))
    });
    assert_eq!(error.kind(), ErrorKind::NoWeights, "{error}");
    // More than any disk has: said before a byte of it is asked for.
    let (error, requests) = refuse(&|hub| {
        hub.state().files.get_mut(ONE).unwrap().listed_size = Some(1 << 60);
    });
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("are free here"), "{error}");
    assert!(
        !requests.iter().any(|line| line.contains("/storage/")),
        "{requests:?}"
    );
}

#[test]
fn a_complete_cache_outlives_the_hub_and_the_model_on_it() {
    let world = World::new();
    let client = world.client();
    let first = client.pull(&pull()).unwrap();
    let again = || client.pull(&pull()).map(|found| found.path().to_owned());
    world.hub.fault("/revision/", Fault::Status(503, vec![]));
    assert_eq!(again().unwrap(), first.path());
    world.hub.state().private = true;
    assert_eq!(again().unwrap(), first.path());
    let dead = client.clone().endpoint("http://127.0.0.1:1").unwrap();
    assert_eq!(dead.pull(&pull()).unwrap().path(), first.path());
    // Nothing of the kind without a cache, and no second meaning for another revision.
    let error = dead.pull(&pull().revision(Some("v1"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Network, "{error}");
    let error = dead
        .offline(true)
        .pull(&Pull::new("org/other"))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotCached);
    assert!(error.to_string().contains("offline"), "{error}");
}

#[test]
fn partitions_that_an_interruption_left_out_are_fetched() {
    let world = World::of(FakeHub::new());
    let index = r#"{"a":[0,4,[4],[1],"torch.uint8",0],"b":[0,4,[4],[1],"torch.uint8",1]}"#;
    let put = |name: &str, bytes: &[u8]| world.hub.put(name, bytes.to_vec(), true);
    put("tensor_index.json", index.as_bytes());
    put("tensor.data_0", b"aaaa");
    put("tensor.data_1", b"bbbb");
    let snapshot = world.client().pull(&pull()).unwrap();
    let snapshot = snapshot.path().to_owned();
    std::fs::remove_file(snapshot.join("tensor.data_1")).unwrap();
    std::fs::remove_file(world.blob("tensor.data_1")).unwrap();
    let error = world.client().offline(true).pull(&pull()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotCached, "{error}");
    assert!(error.to_string().contains("tensor.data_1"), "{error}");
    world.client().pull(&pull()).unwrap();
    assert_eq!(
        Checkpoint::open(&snapshot).unwrap().load().unwrap().len(),
        2
    );
}

#[test]
fn a_file_that_another_client_has_chosen_is_not_taken_for_the_model() {
    let world = World::new();
    let other = safetensors("x", 100, 1);
    let snapshot = world.model().join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(snapshot.join("consolidated.safetensors"), other).unwrap();
    std::fs::create_dir_all(world.model().join("refs")).unwrap();
    std::fs::write(world.model().join("refs/main"), COMMIT).unwrap();
    // Offline, what is there has to do.
    let offline = world.client().offline(true).pull(&pull()).unwrap();
    assert_eq!(offline.files().len(), 1);
    for revision in [None, Some(COMMIT)] {
        let pulled = world.client().pull(&pull().revision(revision)).unwrap();
        world.check(pulled.path());
    }
}

#[test]
fn weights_of_a_commit_do_without_a_hub_that_would_list_their_side_files() {
    let world = World::new();
    world.client().pull(&pull()).unwrap();
    let endpoint = "http://127.0.0.1:9";
    let client = world.client().endpoint(endpoint).unwrap();
    for revision in [None, Some(COMMIT)] {
        let wanted = pull().revision(revision).side_files(true);
        world.check(client.pull(&wanted).unwrap().path());
    }
}

#[test]
fn a_file_that_was_cut_short_in_the_cache_is_fetched_again() {
    let world = World::new();
    let snapshot = world.client().pull(&pull()).unwrap();
    let blob = world.blob(TWO);
    let file = std::fs::OpenOptions::new().write(true).open(blob).unwrap();
    file.set_len(1000).unwrap();
    let pulled = world.client().pull(&pull().revision(Some(COMMIT))).unwrap();
    assert!(pulled.files().iter().any(|file| file.downloaded > 0));
    world.check(snapshot.path());
}

#[test]
fn a_branch_that_moves_is_followed_once_its_files_are_here() {
    let moved = "f".repeat(40);
    let world = World::new();
    let client = world.client();
    let old = client.pull(&pull()).unwrap();
    let kept = world.bytes(TWO);
    world.hub.state().commit.clone_from(&moved);
    world
        .hub
        .put(ONE, safetensors("model.layers.0.weight", SHARD, 77), true);
    world.hub.fault(
        &format!("/resolve/{moved}/{ONE}"),
        Fault::Status(404, vec![("X-Error-Code", "EntryNotFound".to_owned())]),
    );
    client.pull(&pull()).unwrap_err();
    // The older, complete one is still what an offline load finds.
    let offline = client.clone().offline(true);
    assert_eq!(offline.pull(&pull()).unwrap().path(), old.path());
    let new = client.pull(&pull()).unwrap();
    assert_eq!(new.commit(), moved);
    world.check(new.path());
    assert_eq!(offline.pull(&pull()).unwrap().path(), new.path());
    assert!(old.path().join(ONE).exists());
    // What both have in common is there once, and came once.
    let file = new.files().iter().find(|file| file.path == TWO).unwrap();
    assert_eq!((file.downloaded, file.size), (0, kept.len() as u64));
    let models = client.cache().models().unwrap();
    assert_eq!(models[0].id, ID);
    let [before, now] = &*models[0].snapshots else {
        panic!("{models:?}");
    };
    assert!(before.complete && before.refs.is_empty(), "{before:?}");
    assert!(now.complete && now.refs == ["main"], "{now:?}");
}

#[test]
fn a_selection_fetches_the_files_that_hold_it() {
    let world = World::new();
    let second = Selection::glob("model.layers.1.*").unwrap();
    let snapshot = world.client().pull(&pull().select(second.clone())).unwrap();
    assert_eq!(
        names(snapshot.path()),
        [TWO, "model.safetensors.index.json"]
    );
    let count = world.hub.requests().len();
    let again = pull().select(second).revision(Some(COMMIT));
    world.client().pull(&again).unwrap();
    assert_eq!(world.hub.requests().len(), count);
    let none = pull().select(Selection::names(["nothing"]));
    let error = world.client().pull(&none).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTensor, "{error}");
    let error = world.client().offline(true).pull(&pull()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotCached);
    assert!(error.to_string().contains(ONE), "{error}");
    let rest = world.client().pull(&pull()).unwrap();
    world.check(rest.path());

    // Without an index, headers say what is where.
    let hub = FakeHub::new();
    hub.put("model.safetensors", safetensors("embed", SHARD, 3), true);
    let world = World::of(hub);
    let other = pull().select(Selection::glob("head*").unwrap());
    let error = world.client().pull(&other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTensor, "{error}");
    assert!(world.hub.state().sent < 1000);
    let embed = pull().select(Selection::glob("emb*").unwrap());
    let snapshot = world.client().pull(&embed).unwrap();
    assert_eq!(names(snapshot.path()), ["model.safetensors"]);
}

#[test]
fn it_runs_within_async_programs() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let client = world.client();
    runtime.block_on(async {
        world.check(client.pull(&pull()).unwrap().path());
        let snapshot = client.pull_async(&pull()).await.unwrap();
        world.check(snapshot.path());
    });
}

#[test]
fn a_cancelled_download_keeps_what_came() {
    let world = World::new();
    world.hub.state().pause = Some(Duration::from_millis(2));
    let cancel = CancelToken::default();
    let (seen, token) = (Arc::new(Mutex::new(0)), cancel.clone());
    let count = Arc::clone(&seen);
    let client = world.client().cancel(cancel).on_event(move |event| {
        if let Event::Advanced { bytes, path } = event
            && path == ONE
        {
            let mut seen = count.lock().unwrap();
            *seen += bytes;
            if *seen > 50_000 {
                token.cancel();
            }
        }
    });
    let error = client.pull(&pull()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    let kept = std::fs::read(world.partial(ONE)).unwrap();
    assert!(kept.len() > 50_000 && kept.len() < SHARD, "{}", kept.len());
    assert!(world.bytes(ONE).starts_with(&kept));
    world.hub.state().pause = None;
    let snapshot = world.client().pull(&pull()).unwrap();
    world.check(snapshot.path());
    let file = snapshot
        .files()
        .iter()
        .find(|file| file.path == ONE)
        .unwrap();
    assert_eq!(file.downloaded, file.size - kept.len() as u64);
}

#[test]
fn without_links_the_files_themselves_lie_in_the_snapshot_once() {
    let world = World::new();
    let snapshot = world.client().symlinks(false).pull(&pull()).unwrap();
    world.check(snapshot.path());
    for name in [ONE, TWO] {
        assert!(!snapshot.path().join(name).is_symlink());
        assert!(!world.blob(name).exists());
    }
    let count = world.hub.requests().len();
    world.client().pull(&pull().revision(Some(COMMIT))).unwrap();
    assert_eq!(world.hub.requests().len(), count);
}

#[test]
fn a_held_lock_is_waited_for_and_a_file_that_nobody_holds_is_none() {
    let world = World::new();
    let etag = world.hub.state().files[ONE].etag();
    let locks = world.folder.path().join(".locks/models--org--name");
    std::fs::create_dir_all(&locks).unwrap();
    let path = locks.join(format!("{etag}.lock"));
    let held = std::fs::File::create(&path).unwrap();
    held.lock().unwrap();
    let held = Mutex::new(Some(held));
    let blob = world.blob(ONE);
    let client = world.client().on_event(move |event| {
        if let Event::Waiting { path, lock } = event {
            assert_eq!(path, ONE);
            assert!(lock.ends_with(format!("{etag}.lock")));
            assert!(!blob.exists());
            // Its holder ends, and leaves the file.
            drop(held.lock().unwrap().take());
        }
    });
    world.check(client.pull(&pull()).unwrap().path());
    assert!(path.exists());

    // Whoever holds one and gets nowhere is named.
    let world = World::new();
    std::fs::create_dir_all(world.folder.path().join(".locks/models--org--name")).unwrap();
    let etag = world.hub.state().files[ONE].etag();
    let path = world
        .folder
        .path()
        .join(format!(".locks/models--org--name/{etag}.lock"));
    let held = std::fs::File::create(&path).unwrap();
    held.lock().unwrap();
    let mut pace = pace();
    pace.lock = Duration::from_millis(200);
    let error: Error = world.client().pace(pace).pull(&pull()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(error.path(), Some(&*path));
    drop(held);
    world.check(world.client().pull(&pull()).unwrap().path());
}

#[test]
fn many_clients_at_once_download_each_file_once() {
    let world = World::new();
    let client = world.client();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| client.pull(&pull()).unwrap()))
            .collect();
        for thread in threads {
            world.check(thread.join().unwrap().path());
        }
    });
    let bytes: usize = [ONE, TWO].iter().map(|name| world.bytes(name).len()).sum();
    let sent = world.hub.state().sent as usize;
    // A whole index more or less: who comes late may have asked for it.
    assert!((bytes..bytes + 2000).contains(&sent), "{sent} of {bytes}");
    let leftovers = names(&world.model().join("blobs"));
    assert!(
        leftovers.iter().all(|name| !name.ends_with(".incomplete")),
        "{leftovers:?}"
    );
}
