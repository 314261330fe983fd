//! The local Hugging Face cache: from an id and a revision to a snapshot folder.
//!
//! Resolving reads a few small files and names of the cache. It takes no lock, writes nothing and
//! asks no server, so it works on read-only, shared and copied caches, and offline. Whether a
//! snapshot is complete is judged when its checkpoint is opened, by what the index asks for.

#[cfg(test)]
mod tests;

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

    /// The cache that the environment names: `HF_HUB_CACHE` (formerly
    /// `HUGGINGFACE_HUB_CACHE`), else `HF_HOME/hub`, else
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
    /// A cache that was filled by commit has no refs at all: then its only snapshot is `main`, too.
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
            [only] if wanted == MAIN && !has_refs(&model) => Ok(snapshots.join(only)),
            [] => Err(not_cached(format!("the cache has no snapshot of {id}"))
                .at(&model)
                .help("give the path of a folder or file instead")),
            _ if wanted == MAIN => Err(not_cached(format!(
                "{id} has no refs/{MAIN} and {} in the cache",
                crate::text::counted(available.len() as u64, "snapshot")
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

fn has_refs(model: &Path) -> bool {
    std::fs::read_dir(model.join("refs")).is_ok_and(|mut refs| refs.next().is_some())
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
    // The second is the name that it had before.
    if let Some(hub) = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE")) {
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
