//! The local Hugging Face cache: from an id and a revision to a snapshot folder.
//!
//! Resolving reads a few small files and names of the cache. It takes no lock, writes nothing and
//! asks no server, so it works on read-only, shared and copied caches, and offline. Whether a
//! snapshot is complete is judged when its checkpoint is opened, by what the index asks for.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// The revision that is meant when none is named.
pub(super) const MAIN: &str = "main";

/// What the folders of models begin with.
pub(super) const MODELS: &str = "models--";

/// The Hub's limit on the length of a model id.
const MAX_ID_LEN: usize = 96;

/// How many revisions or snapshots a message lists.
const LISTED: usize = 8;

/// A Hugging Face Hub cache: `models--ORG--NAME/{refs/REVISION, snapshots/COMMIT}` in one folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubCache {
    root: PathBuf,
}

impl HubCache {
    /// The cache at `root`, the folder that holds `models--*`. It need not exist.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The cache that the environment names: `HF_HUB_CACHE`, else `HF_HOME/hub`, else
    /// `XDG_CACHE_HOME/huggingface/hub`, else `~/.cache/huggingface/hub`. Empty variables count as
    /// unset, and a leading `~` as the home folder.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when no variable is set and the home folder is unknown.
    pub fn from_env() -> Result<Self> {
        locate(|name| std::env::var_os(name), std::env::home_dir()).map(Self::at)
    }

    /// The folder of this cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of model `id`, which need not exist.
    pub(super) fn model(&self, id: &str) -> PathBuf {
        self.root.join(folder_name(id))
    }

    /// A path that exists is taken as it is; anything else is the id of a model in this cache.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when it looks like a path (it begins with `.`, `/` or `~`, has
    /// several slashes, or ends in `.safetensors` or `.json`) and does not exist,
    /// [`ErrorKind::Io`] when the system does not tell; else as [`snapshot`](Self::snapshot).
    pub fn resolve(
        &self,
        name_or_path: impl AsRef<Path>,
        revision: Option<&str>,
    ) -> Result<PathBuf> {
        let name = name_or_path.as_ref();
        if let Some(path) = existing(name, revision) {
            return Ok(path);
        }
        match name.to_str() {
            Some(id) if !looks_like_a_path(id) => {
                self.snapshot(id, revision)
                    .map_err(|error| match name.symlink_metadata() {
                        Err(hidden) if hidden.kind() == io::ErrorKind::PermissionDenied => {
                            cannot_look_at(name, hidden)
                        }
                        _ => error,
                    })
            }
            text => {
                match name.symlink_metadata() {
                    Err(error) if !is_absent(&error) => return Err(cannot_look_at(name, error)),
                    _ => {}
                }
                let error = Error::new(ErrorKind::NotFound, "this path does not exist").at(name);
                Err(match text {
                    Some(text) if text.starts_with('~') => {
                        error.help("the shell expands ~ only where it is not quoted")
                    }
                    _ => error.help("check the path; the id of a model looks like org/name"),
                })
            }
        }
    }

    /// The snapshot folder of model `id` (`org/name`, or `gpt2`) at `revision`: a branch, a tag,
    /// or a full commit; `main` when none is named.
    ///
    /// A cache that was filled by commit has no `main`: then the only snapshot is taken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for ids and revisions that the Hub does not have,
    /// [`ErrorKind::NotCached`] when this cache lacks the model or the revision (or has no `main`
    /// and several snapshots, which are listed), [`ErrorKind::Io`] when it cannot be read.
    pub fn snapshot(&self, id: &str, revision: Option<&str>) -> Result<PathBuf> {
        check_id(id)?;
        if let Some(revision) = revision {
            check_revision(revision)?;
        }
        let model = self.model(id);
        if !is_dir(&model)? {
            return Err(not_cached(format!(
                "model {id} is not in the Hugging Face cache"
            ))
            .at(&self.root)
            .help("give the path of a folder or file instead, or set HF_HUB_CACHE to another cache"));
        }
        let wanted = revision.unwrap_or(MAIN);
        let snapshots = model.join("snapshots");
        // A revision that is itself a commit needs no ref.
        if is_commit(wanted) && snapshots.join(wanted).is_dir() {
            return Ok(snapshots.join(wanted));
        }
        if let Some(commit) = read_ref(&model.join("refs").join(wanted))? {
            let snapshot = snapshots.join(&commit);
            if snapshot.is_dir() {
                return Ok(snapshot);
            }
            return Err(not_cached(format!(
                "revision {wanted} of {id} is commit {commit}, whose files are not here"
            ))
            .at(snapshot)
            .help(others(&names(&snapshots)?)));
        }
        let available = names(&snapshots)?;
        match available.as_slice() {
            [only] if wanted == MAIN => Ok(snapshots.join(only)),
            [] => Err(not_cached(format!("the cache has no snapshot of {id}"))
                .at(&model)
                .help("give the path of a folder or file instead")),
            _ if wanted == MAIN => Err(not_cached(format!(
                "{id} has no refs/{MAIN} and {} snapshots in the cache",
                available.len()
            ))
            .at(&model)
            .help(others(&available))),
            _ => Err(
                not_cached(format!("the cache has no revision {wanted} of {id}"))
                    .at(&model)
                    .help(others(&available)),
            ),
        }
    }
}

/// `models--ORG--NAME`; ids hold no `--`, so that the name leads back to the id.
pub(super) fn folder_name(id: &str) -> String {
    format!("{MODELS}{}", id.replace('/', "--"))
}

pub(super) fn not_cached(message: String) -> Error {
    Error::new(ErrorKind::NotCached, message)
}

/// The remedy that names the snapshots that are there.
fn others(available: &[String]) -> String {
    if available.is_empty() {
        return "give the path of a folder or file instead".to_owned();
    }
    let mut text = format!(
        "name one of these commits as the revision: {}",
        available[..available.len().min(LISTED)].join(", ")
    );
    if available.len() > LISTED {
        text.push_str(&format!(" and {} more", available.len() - LISTED));
    }
    text
}

/// Any path that is there, a dangling link included: opening it names the missing target.
pub(super) fn existing(name: &Path, revision: Option<&str>) -> Option<PathBuf> {
    if name.as_os_str().is_empty() || name.symlink_metadata().is_err() {
        return None;
    }
    if let Some(revision) = revision {
        tracing::warn!(path = %crate::text::path(name), revision, "an existing path has no revisions; it is taken as it is");
    }
    Some(name.to_owned())
}

/// A folder on the way that may not be searched hides whether a path exists.
fn cannot_look_at(path: &Path, error: io::Error) -> Error {
    Error::io("look at this path", path, error)
}

/// Whether a folder is there, as far as we may know.
fn is_dir(path: &Path) -> Result<bool> {
    match path.metadata() {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(Error::io("look for the model in the cache", path, error)),
    }
}

pub(super) fn looks_like_a_path(name: &str) -> bool {
    name.starts_with(['.', '/', '~'])
        || name.matches('/').count() > 1
        || name.contains('\\')
        || name.ends_with('/')
        || [".safetensors", ".json"]
            .iter()
            .any(|ending| name.to_ascii_lowercase().ends_with(ending))
}

/// The Hub's rules for ids: one or two parts of letters, digits, `-`, `_` and `.`, which neither
/// begin nor end with `-` or `.`; no `--`, no `..`, no `.git` at the end, 96 bytes at most.
pub(super) fn check_id(id: &str) -> Result<()> {
    let part_is_good = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    let good = id.len() <= MAX_ID_LEN
        && id.split('/').count() <= 2
        && id.split('/').all(part_is_good)
        && !id.contains("--")
        && !id.contains("..")
        && !id.ends_with(".git");
    if good {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "{} is neither an existing path nor a model id",
            crate::text::quoted(id)
        ),
    )
    .help(
        "ids are NAME or ORG/NAME, of letters, digits, '-', '_' and '.', and 96 characters at most",
    ))
}

/// A revision may have slashes (`refs/pr/1`), but stays within the folder of refs.
pub(super) fn check_revision(revision: &str) -> Result<()> {
    let path = Path::new(revision);
    let within = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if within && !revision.is_empty() && !revision.contains(['\\', '\0']) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("{} is not a revision", crate::text::quoted(revision)),
    )
    .help("a revision is a branch, a tag or a commit"))
}

pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The commit that a ref names; `None` where there is no such ref. Copied caches have refs with a
/// line end.
pub(super) fn read_ref(path: &Path) -> Result<Option<String>> {
    let mut text = String::new();
    let read = std::fs::File::open(path)
        // A commit has 40 characters; what is longer than this is no ref.
        .and_then(|file| file.take(1024).read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(Error::io("read the ref", path, error)),
    }
    let commit = text.trim();
    if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(
            not_cached(format!("this ref holds {commit:?}, which is no commit"))
                .at(path)
                .help("name a commit as the revision, or fetch the model again"),
        );
    }
    Ok(Some(commit.to_owned()))
}

/// Whether there is nothing at a path, or a folder where a file was looked for: revision `refs`
/// beside `refs/pr/1`.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
    )
}

/// Folders within `folder`, sorted; none where it does not exist.
pub(super) fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", folder, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", folder, error))?;
        if let Ok(name) = entry.file_name().into_string()
            && !name.starts_with('.')
            && entry.path().is_dir()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

pub(super) fn locate(
    var: impl Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
) -> Result<PathBuf> {
    let folder = |name: &str| {
        let value = PathBuf::from(var(name).filter(|value| !value.is_empty())?);
        match (value.strip_prefix("~"), &home) {
            (Ok(rest), Some(home)) => Some(home.join(rest)),
            _ => Some(value),
        }
    };
    if let Some(hub) = folder("HF_HUB_CACHE") {
        return Ok(hub);
    }
    if let Some(hf_home) = folder("HF_HOME") {
        return Ok(hf_home.join("hub"));
    }
    let cache = folder("XDG_CACHE_HOME").or_else(|| home.as_ref().map(|home| home.join(".cache")));
    cache
        .map(|cache| cache.join("huggingface").join("hub"))
        .ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "the home folder is unknown, and with it the Hugging Face cache",
            )
            .help("set HF_HUB_CACHE to the folder of the cache")
        })
}

#[cfg(test)]
mod tests {
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
}
