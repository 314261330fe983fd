use super::*;
use std::fs;

const A: &str = "0123456789abcdef0123456789abcdef01234567";
const B: &str = "89abcdef0123456789abcdef0123456789abcdef";

struct Fixture {
    scratch: tempfile::TempDir,
    cache: HubCache,
}

impl Fixture {
    /// A cache that holds `snapshots` and `refs` of org/name.
    fn new(snapshots: &[&str], refs: &[(&str, &str)]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let cache = HubCache::at(scratch.path());
        let model = scratch.path().join("models--org--name");
        for snapshot in snapshots {
            fs::create_dir_all(model.join("snapshots").join(snapshot)).unwrap();
        }
        for (name, commit) in refs {
            let path = model.join("refs").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, commit).unwrap();
        }
        Self { scratch, cache }
    }

    /// The name of the snapshot that is found.
    fn find(&self, revision: Option<&str>) -> String {
        let path = self.cache.snapshot("org/name", revision).unwrap();
        assert!(path.is_dir());
        path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn refuse(&self, revision: Option<&str>) -> Error {
        self.cache.snapshot("org/name", revision).unwrap_err()
    }
}

#[test]
fn refs_lead_to_snapshots_with_or_without_a_line_end() {
    for end in ["", "\n", "\r\n"] {
        let main = format!("{A}{end}");
        let pr = format!("{B}{end}");
        let hub = Fixture::new(&[A, B], &[("main", &main), ("refs/pr/1", &pr)]);
        assert_eq!(hub.find(None), A);
        assert_eq!(hub.find(Some("main")), A);
        assert_eq!(hub.find(Some("refs/pr/1")), B);
        assert_eq!(hub.find(Some(B)), B);
        assert_eq!(hub.refuse(Some("refs")).kind(), ErrorKind::NotCached);
    }
}

#[cfg(unix)]
#[test]
fn what_the_system_does_not_tell_is_not_called_absent() {
    let hub = Fixture::new(&[], &[]);
    let long = format!("./{}", "x".repeat(300));
    let error = hub.cache.resolve(&long, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let error = hub.cache.resolve("./x", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let locked = hub.scratch.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::write(locked.join("w"), b"").unwrap();
    let mode = |bits| std::os::unix::fs::PermissionsExt::from_mode(bits);
    fs::set_permissions(&locked, mode(0)).unwrap();
    let found = hub.cache.resolve(locked.join("w"), None);
    fs::set_permissions(&locked, mode(0o700)).unwrap();
    // The administrator may search any folder.
    assert!(!found.is_err_and(|error| error.kind() != ErrorKind::Io));
}

#[test]
fn a_commit_needs_no_ref_and_a_lone_snapshot_no_main() {
    let hub = Fixture::new(&[A], &[]);
    assert_eq!(hub.find(Some(A)), A);
    assert_eq!(hub.find(None), A);
    assert_eq!(hub.find(Some("main")), A);
    // Another revision is another revision.
    assert_eq!(hub.refuse(Some("v1")).kind(), ErrorKind::NotCached);
    assert_eq!(hub.refuse(Some(B)).kind(), ErrorKind::NotCached);
    // What is known to be a tag need not be main.
    let hub = Fixture::new(&[A], &[("v1", A)]);
    assert_eq!(hub.find(Some("v1")), A);
    assert_eq!(hub.refuse(None).kind(), ErrorKind::NotCached);
}

#[test]
fn several_snapshots_without_main_are_listed() {
    let hub = Fixture::new(&[A, B], &[("v1", B)]);
    let error = hub.refuse(None);
    assert_eq!(error.kind(), ErrorKind::NotCached);
    assert!(error.to_string().contains(A) && error.to_string().contains(B));
    assert_eq!(hub.find(Some("v1")), B);
}

#[test]
fn a_ref_without_its_snapshot_names_the_commit_and_the_others() {
    let hub = Fixture::new(&[B], &[("main", A)]);
    let text = hub.refuse(None).to_string();
    assert!(text.contains(A) && text.contains(B), "{text}");
    let hub = Fixture::new(&[A], &[("main", "../../../etc")]);
    assert_eq!(hub.refuse(None).kind(), ErrorKind::NotCached);
    let hub = Fixture::new(&[], &[("main", A)]);
    assert_eq!(hub.refuse(None).kind(), ErrorKind::NotCached);
}

#[test]
fn a_model_that_is_not_cached_names_the_folder_and_promises_nothing() {
    let hub = Fixture::new(&[A], &[]);
    let error = hub.cache.snapshot("gpt2", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotCached);
    let text = error.to_string();
    let root = hub.scratch.path().to_str().unwrap();
    assert!(text.contains(root) && text.contains("path"), "{text}");
    assert!(!text.contains("download"), "{text}");
    fs::create_dir_all(hub.scratch.path().join("models--gpt2/snapshots").join(A)).unwrap();
    assert!(hub.cache.snapshot("gpt2", None).unwrap().ends_with(A));
    let nowhere = HubCache::at(hub.scratch.path().join("missing"));
    let error = nowhere.snapshot("org/name", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotCached);
}

#[test]
fn ids_and_revisions_follow_the_rules_of_the_hub() {
    for id in ["gpt2", "org/name", "Qwen/Qwen3-0.6B", "a_b/c.d", "_x/y_"] {
        check_id(id).unwrap();
    }
    let long = "a".repeat(97);
    for id in [
        "",
        "/",
        "org/",
        "/name",
        "a/b/c",
        "..",
        "org/..",
        "a--b",
        "a..b",
        "-a",
        "a.",
        "a b",
        "org/name.git",
        "é",
        "a\\b",
        &long,
    ] {
        let error = check_id(id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{id}");
    }
    let hub = Fixture::new(&[A], &[("main", A)]);
    for revision in ["", "..", "../main", "/etc/passwd", "a/../../b", "a\\b"] {
        let kind = hub.refuse(Some(revision)).kind();
        assert_eq!(kind, ErrorKind::InvalidArgument, "{revision}");
    }
}

#[test]
fn an_existing_path_wins_and_a_missing_one_is_not_an_id() {
    let hub = Fixture::new(&[A], &[("main", A)]);
    let path = hub.scratch.path().join("models--org--name");
    assert_eq!(hub.cache.resolve(&path, None).unwrap(), path);
    assert_eq!(super::super::resolve(&path, Some("main")).unwrap(), path);
    assert!(hub.cache.resolve("org/name", None).unwrap().ends_with(A));
    for missing in [
        "./org/name",
        "../name",
        "/no/such",
        "~/models",
        "a/b/c",
        "m.safetensors",
        "org/model.safetensors.index.json",
        "models/",
    ] {
        let error = hub.cache.resolve(missing, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{missing}");
        assert!(error.to_string().contains("does not exist"), "{error}");
    }
    let error = hub.cache.resolve("", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_nothing_is_written() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let hub = Fixture::new(&[A], &[("main", A)]);
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("hub");
    symlink(hub.scratch.path(), &link).unwrap();
    let mode = |mode| {
        for folder in ["models--org--name", "models--org--name/snapshots"] {
            let path = hub.scratch.path().join(folder);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    mode(0o555);
    let found = HubCache::at(&link).snapshot("org/name", None).unwrap();
    mode(0o755);
    assert!(found.starts_with(&link) && found.ends_with(A));
    assert_eq!(fs::read_dir(hub.scratch.path()).unwrap().count(), 1);
}

#[test]
fn variables_have_their_order_and_empty_ones_do_not_count() {
    let find = |set: &[(&str, &str)]| {
        let var = |name: &str| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        locate(var, Some("/home/u".into())).unwrap()
    };
    let all = [
        ("HF_HUB_CACHE", "/1"),
        ("HF_HOME", "/2"),
        ("XDG_CACHE_HOME", "/3"),
    ];
    assert_eq!(find(&all), Path::new("/1"));
    assert_eq!(find(&all[1..]), Path::new("/2/hub"));
    assert_eq!(find(&all[2..]), Path::new("/3/huggingface/hub"));
    let default = Path::new("/home/u/.cache/huggingface/hub");
    assert_eq!(find(&[]), default);
    assert_eq!(find(&[("HF_HUB_CACHE", ""), ("HF_HOME", "")]), default);
    assert_eq!(find(&[("HF_HOME", "~/hf")]), Path::new("/home/u/hf/hub"));
    let error = locate(|_| None, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
