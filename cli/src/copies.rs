//! Copies of models of the Hub in the ServerlessLLM layout: each is made once, in our cache folder, and
//! checked before each use.
//!
//! ```text
//!  look --good--------------------------------------------------------> use it, without a write
//!    |no                                                                    ^
//!  lock (wait while another process has it) --look again--good--------------|
//!    |no                                                                    |
//!  convert, or go on with a conversion that was interrupted --look again--good
//! ```

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tensora::converters::{Conversion, ConvertOptions, OutputFolder, RECOMMENDED_PARTITION_BYTES};
use tensora::formats::serverlessllm::Dialect;
use tensora::formats::{INCOMPLETE_FILE, JOURNAL_FILE};
use tensora::{Checkpoint, Error, Layout, TensorMeta, text};

use crate::args::DialectName;
use crate::cleanup::Unfinished;
use crate::progress::Progress;
use crate::{cache, size};

/// How often a folder is asked for that another process has.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// What a copy is of, and how it is stored: all that its bytes depend on.
#[derive(Debug, Clone, Copy)]
struct Key<'a> {
    id: &'a str,
    commit: &'a str,
    dialect: Dialect,
    partitions: u64,
}

impl fmt::Display for Key<'_> {
    /// The name of a folder. Ids never hold `--`, so replacing the slash by it keeps different ids
    /// apart; and neither ids nor commits hold `@` or `+`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slug = self.id.replace('/', "--");
        let dialect = DialectName(self.dialect);
        write!(f, "{slug}@{}+{dialect}-{}", self.commit, self.partitions)
    }
}

/// The folder of the copy of model `id`, whose snapshot is opened as `original`; made now where it is
/// not there, or is not what it should be.
pub fn cached(
    id: &str,
    snapshot: &Path,
    dialect: Dialect,
    original: &Checkpoint,
) -> Result<PathBuf> {
    let commit = snapshot.file_name().and_then(|name| name.to_str());
    let partitions = original
        .total_bytes()
        .div_ceil(RECOMMENDED_PARTITION_BYTES)
        .max(1);
    let key = Key {
        id,
        commit: commit.context("the snapshot of a model is named by its commit")?,
        dialect,
        partitions,
    };
    let parent = cache::root()?.join(key.to_string());
    let folder = parent.join(Layout::ServerlessLlm.name());
    // Without the lock at first: a cache that may not be written to does for a good copy.
    if objection(&folder, original).is_some() {
        let made = make(&key, &folder, original);
        if made.is_err() {
            // Fails, as it should, where something is that can be continued.
            let _ = std::fs::remove_dir(&folder).and_then(|()| std::fs::remove_dir(&parent));
        }
        made?;
    }
    Ok(folder)
}

fn make(key: &Key<'_>, folder: &Path, original: &Checkpoint) -> Result<()> {
    let unfinished = claim(key.id, folder).map_err(cache::advise)?;
    // Whoever had the folder has made it.
    let Some(why) = objection(folder, original) else {
        return Ok(());
    };
    let options = ConvertOptions {
        partitions: Some(u32::try_from(key.partitions).unwrap_or(u32::MAX)),
        dialect: key.dialect,
        // Which of them lie beside the weights depends on what was downloaded so far.
        companions: false,
        resume: true,
        // What cannot be continued is only a copy.
        force: true,
        ..ConvertOptions::default()
    };
    let conversion = Conversion::plan(original, &options)?;
    let total = conversion.total_bytes();
    let what = if is_interrupted(folder) {
        format!(
            "going on with the conversion of {} that was interrupted",
            key.id
        )
    } else if clear(folder).map_err(cache::advise)? {
        format!(
            "converting {} again, as its copy is no good ({why})",
            key.id
        )
    } else {
        format!("converting {} to the ServerlessLLM layout, once", key.id)
    };
    eprintln!(
        "note: {what}: {} into {}",
        size::bytes(total),
        text::path(folder)
    );
    let progress = Progress::bytes("converting", total);
    let done = conversion.run(&unfinished, &|bytes| progress.add(bytes));
    done.map_err(cache::advise)?;
    drop(progress);
    if let Some(why) = objection(folder, original) {
        bail!(
            "{}: this copy was just made, and is no good: {why}",
            text::path(folder)
        );
    }
    Ok(unfinished.keep()?)
}

/// Locks the folder, once nobody else has it. The lock is the kernel's, so that nobody waits for a
/// process that was killed.
fn claim(id: &str, folder: &Path) -> tensora::Result<Unfinished> {
    let mut is_said = false;
    loop {
        if let Some(claimed) = Unfinished::try_claim(folder)? {
            return Ok(claimed);
        }
        if !is_said {
            eprintln!("note: waiting for another process, which converts {id}");
            is_said = true;
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Whether a conversion into the folder has begun and not come to its end.
fn is_interrupted(folder: &Path) -> bool {
    let marks = [JOURNAL_FILE, INCOMPLETE_FILE];
    marks
        .iter()
        .any(|mark| folder.join(mark).symlink_metadata().is_ok())
}

/// Removes what is in a folder that we have locked, and says whether there was anything: a copy that
/// is no good only takes the space that a new one needs.
fn clear(folder: &Path) -> tensora::Result<bool> {
    let failed = |error| Error::io("list", folder, error);
    let mut removed = false;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name() == OutputFolder::LOCK_NAME {
            continue;
        }
        let path = entry.path();
        let gone = match entry.file_type().map_err(failed)?.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        gone.map_err(|error| Error::io("remove", &path, error))?;
        removed = true;
    }
    Ok(removed)
}

/// What is wrong with a copy: it has to open, and to hold the tensors of its original, as far as
/// headers, indexes and sizes tell. `None` for one that is good.
fn objection(copy: &Path, original: &Checkpoint) -> Option<String> {
    let copy = match open(copy) {
        Ok(copy) => copy,
        Err(error) => return Some(format!("{error:#}")),
    };
    let same = |ours: &TensorMeta, theirs: &TensorMeta| {
        (ours.dtype, &ours.shape) == (theirs.dtype, &theirs.shape)
    };
    let differs = original.tensors().iter().find(|ours| {
        let theirs = copy.tensor(&ours.name);
        theirs.is_none_or(|theirs| !same(ours, theirs))
    });
    let (found, wanted) = (copy.tensors().len(), original.tensors().len());
    match differs {
        Some(tensor) => Some(format!(
            "its {} is missing, or has another type or shape",
            text::name(&tensor.name)
        )),
        None if found != wanted => Some(format!("it holds {found} tensors, not {wanted}")),
        None => None,
    }
}

fn open(copy: &Path) -> tensora::Result<Checkpoint> {
    let options = Checkpoint::options().layout(Layout::ServerlessLlm);
    options.open(copy)
}

/// A copy that is there, as its folder's name has it.
#[derive(Debug, Serialize)]
pub struct Copied {
    pub id: String,
    pub commit: String,
    /// As `convert --dialect` has it. Copies of the first versions do not say it.
    pub dialect: Option<String>,
    pub partitions: Option<u64>,
    pub path: PathBuf,
    /// What it takes on disk.
    pub bytes: u64,
    /// Whether it can be opened; otherwise its conversion was interrupted, or is under way.
    pub complete: bool,
}

/// The copies that are there, sorted; none where the folder does not exist.
pub fn list() -> Result<Vec<Copied>> {
    let root = cache::root()?;
    let failed = |error| Error::io("list", &root, error);
    let entries = match std::fs::read_dir(&root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut copies = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        copies.extend(name.to_str().and_then(|name| copied(name, &entry.path())));
    }
    copies.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(copies)
}

/// The copy in a folder of this name; `None` where there is none.
fn copied(name: &str, parent: &Path) -> Option<Copied> {
    let (slug, rest) = name.split_once('@')?;
    let (commit, form) = match rest.split_once('+') {
        Some((commit, form)) => (commit, form.rsplit_once('-')),
        None => (rest, None),
    };
    let path = parent.join(Layout::ServerlessLlm.name());
    let files: Vec<Metadata> = std::fs::read_dir(&path)
        .ok()?
        .flatten()
        .filter(|file| file.file_name() != OutputFolder::LOCK_NAME)
        .filter_map(|file| file.metadata().ok())
        .collect();
    if files.is_empty() {
        return None;
    }
    let complete = open(&path).is_ok();
    let size = |file: &Metadata| match complete {
        true => file.len(),
        false => allocated(file),
    };
    Some(Copied {
        id: slug.replacen("--", "/", 1),
        commit: commit.to_owned(),
        dialect: form.map(|(dialect, _)| dialect.to_owned()),
        partitions: form.and_then(|(_, partitions)| partitions.parse().ok()),
        bytes: files.iter().map(size).sum(),
        path,
        complete,
    })
}

/// Bytes of a file that are there: one that is being written has its full length from the start.
fn allocated(file: &Metadata) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        file.len().min(file.blocks().saturating_mul(512))
    }
    #[cfg(not(unix))]
    file.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_commits_dialects_and_partitions_do_not_collide() {
        use Dialect::{Global, Local};
        let names = [
            ("a/b-c", "1", Local, 1),
            ("a-b/c", "1", Local, 1),
            ("a/b-c", "2", Local, 1),
            ("a-b-c", "1", Local, 1),
            ("a/b-c", "1", Local, 2),
            ("a/b-c", "1", Local, 11),
            ("a/b-c", "1", Global, 1),
        ]
        .map(|(id, commit, dialect, partitions)| {
            let key = Key {
                id,
                commit,
                dialect,
                partitions,
            };
            key.to_string()
        });
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
        }
        assert_eq!(names[4], "a--b-c@1+tensora-2");
        assert_eq!(names[6], "a--b-c@1+store-1");
    }

    #[test]
    fn names_of_copies_are_read_back() {
        let scratch = tempfile::tempdir().unwrap();
        let copy = |name: &str| {
            let parent = scratch.path().join(name);
            let folder = parent.join("serverlessllm");
            std::fs::create_dir_all(&folder).unwrap();
            assert!(copied(name, &parent).is_none(), "it is empty");
            std::fs::write(folder.join("tensor.data_0"), b"1234").unwrap();
            let copy = copied(name, &parent).unwrap();
            assert!(!copy.complete, "it has no index");
            (copy.id, copy.commit, copy.dialect, copy.partitions)
        };
        let store = Some("store".to_owned());
        let texts = |id: &str, commit: &str| (id.to_owned(), commit.to_owned());
        let (id, commit) = texts("a/b-c", "1f");
        assert_eq!(copy("a--b-c@1f+store-12"), (id, commit, store, Some(12)));
        let (id, commit) = texts("gpt2", "2e");
        assert_eq!(copy("gpt2@2e"), (id, commit, None, None));
    }
}
