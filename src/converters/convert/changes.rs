//! What a conversion finds in its folder, and what becomes of it: told before anything is touched.
//!
//! In the end a reader of the folder has to find the new checkpoint and no other. So the reader's own
//! rules say what the earlier checkpoint is, and, of the names that are going to be there, whether
//! they are clear. What is not part of a checkpoint that is replaced belongs to the user, and stays.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};

use super::journal;
use super::parts::name_of_part;
use crate::checkpoint::Parts;
use crate::converters::OutputPlan;
use crate::converters::names::{is_companion, is_output, is_written_here, read_file};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::index::{MAX_INDEX_BYTES, ShardIndex};
use crate::formats::serverlessllm::INDEX_FILE;
use crate::formats::{INCOMPLETE_FILE, JOURNAL_FILE};
use crate::text;

/// What a commit does to the files that are there before it.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Files of an earlier checkpoint that go, indexes first.
    pub(super) obsolete: Vec<String>,
    /// Names that get another file.
    pub(super) taken: Vec<String>,
    /// Files like those of configuration and tokenizers that are not this conversion's, and stay.
    pub(super) kept: Vec<String>,
}

impl Changes {
    /// Of a conversion by `plan`, with `others` beside the data files.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what stands in the way: something that is no file under a
    /// name that is needed, or files that readers would take for the checkpoint or for another one.
    pub(super) fn of(folder: &Path, plan: &OutputPlan, others: &[String]) -> Result<Self> {
        let entries = Entries::read(folder)?;
        let planned = planned(plan, others);
        entries.refuse_obstacles(folder, &planned)?;
        let mark = folder.join(INCOMPLETE_FILE);
        let earlier = match mark.symlink_metadata() {
            // Half of the earlier checkpoint may be gone: what is left says nothing any more.
            Ok(_) => journal::obsolete(&mark),
            Err(_) => entries.earlier(folder),
        };
        let earlier: HashSet<String> = earlier.into_iter().collect();
        let there = || entries.files.iter().filter_map(|name| name.to_str());
        let mut obsolete: Vec<String> = there()
            .filter(|name| !planned.contains(name))
            .filter(|name| is_output(name) || earlier.contains(*name))
            .map(str::to_owned)
            .collect();
        // Without an index, the rest is no checkpoint.
        obsolete.sort_by_key(|name| !name.ends_with(".json"));
        let is_kept =
            |name: &&str| is_companion(name) && !planned.contains(name) && !earlier.contains(*name);
        let changes = Self {
            taken: there()
                .filter(|name| planned.contains(name))
                .map(str::to_owned)
                .collect(),
            kept: there().filter(is_kept).map(str::to_owned).collect(),
            obsolete,
        };
        entries.refuse_unclear(folder, plan, &planned, &changes.obsolete)?;
        Ok(changes)
    }
}

/// Refuses what cannot be replaced or removed, or what to open would wait for another process, under
/// a name that is needed. Before anything in the folder is opened.
pub(super) fn refuse_obstacles(folder: &Path, plan: &OutputPlan, others: &[String]) -> Result<()> {
    Entries::read(folder)?.refuse_obstacles(folder, &planned(plan, others))
}

/// All names that a conversion gives.
fn planned<'p>(plan: &'p OutputPlan, others: &'p [String]) -> HashSet<&'p str> {
    let data = plan.files.iter().map(|file| &file.name);
    let index = plan.index.iter().map(|index| &index.name);
    let names = data.chain(index).chain(others);
    names.map(String::as_str).collect()
}

/// What lies in a folder.
#[derive(Debug, Default)]
struct Entries {
    kinds: Vec<(OsString, FileType)>,
    /// Everything that is not a folder, nor a link to one, sorted.
    files: Vec<OsString>,
    folders: Vec<OsString>,
}

impl Entries {
    fn read(folder: &Path) -> Result<Self> {
        let failed = |error: io::Error| Error::io("list", folder, error);
        let mut found = Self::default();
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            other => other.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            let is_folder = kind.is_dir() || kind.is_symlink() && entry.path().is_dir();
            match is_folder {
                true => found.folders.push(entry.file_name()),
                false => found.files.push(entry.file_name()),
            }
            found.kinds.push((entry.file_name(), kind));
        }
        found.files.sort_unstable();
        found.folders.sort_unstable();
        Ok(found)
    }

    /// Only a file or a link to one can be replaced or removed. A folder under a name of a checkpoint
    /// would confuse readers even where this one has no use for the name.
    fn refuse_obstacles(&self, folder: &Path, planned: &HashSet<&str>) -> Result<()> {
        // Neither can go.
        #[cfg(target_os = "linux")]
        let mounted = crate::facts::mounts::points_in(folder);
        #[cfg(not(target_os = "linux"))]
        let mounted: Vec<PathBuf> = Vec::new();
        let is_mounted = |name: &OsStr| mounted.iter().any(|at| at.file_name() == Some(name));
        for (name, kind) in &self.kinds {
            let Some(plain) = name.to_str() else {
                continue;
            };
            // What is written to under the name that it has: through a link, this would be elsewhere.
            let is_worked_on = plain == JOURNAL_FILE
                || plain == INCOMPLETE_FILE
                || name_of_part(plain).is_some_and(is_written_here);
            if !is_worked_on && !planned.contains(plain) && !is_output(plain) {
                continue;
            }
            let path = folder.join(name);
            let what = match kind {
                kind if kind.is_dir() => "a folder",
                _ if is_mounted(name) => "a file that is mounted here",
                kind if kind.is_file() => continue,
                kind if kind.is_symlink() && is_worked_on => "a symbolic link",
                kind if kind.is_symlink() => match path.metadata() {
                    Ok(to) if to.is_dir() => "a symbolic link to a folder",
                    Ok(to) if !to.is_file() => "a symbolic link to a special file",
                    // The link alone is replaced, wherever it leads to.
                    Ok(_) | Err(_) => continue,
                },
                _ => "a special file",
            };
            let message = format!("this is {what}, and the conversion needs the name");
            return Err(Error::new(ErrorKind::InvalidArgument, message)
                .at(path)
                .help("move it elsewhere, or choose another folder"));
        }
        Ok(())
    }

    /// The files of the SafeTensors checkpoint that a reader would find in the folder. Partitions
    /// have the names that conversions give.
    fn earlier(&self, folder: &Path) -> Vec<String> {
        let found = Parts::of_listing(folder, self.files.clone(), self.folders.clone(), None);
        let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
        match found {
            Ok(Parts::Files(files)) => files.iter().filter_map(|file| name(file)).collect(),
            Ok(Parts::Index(index)) => {
                let mut names = shards_of(&index);
                names.extend(name(&index));
                names
            }
            // None, or it is not clear which. What stays is looked at later.
            Ok(Parts::Partitions(_)) | Err(_) => Vec::new(),
        }
    }

    /// Refuses to leave a folder in which a reader would not find the new checkpoint.
    fn refuse_unclear(
        &self,
        folder: &Path,
        plan: &OutputPlan,
        planned: &HashSet<&str>,
        obsolete: &[String],
    ) -> Result<()> {
        let stays = |name: &&OsString| {
            let name = name.to_str();
            name.is_none_or(|name| !planned.contains(name) && !obsolete.iter().any(|o| o == name))
        };
        let staying: Vec<OsString> = self.files.iter().filter(stays).cloned().collect();
        let mut files = staying.clone();
        files.extend(planned.iter().map(OsString::from));
        let folders = self.folders.iter().filter(stays).cloned().collect();
        let wanted: Vec<PathBuf> = match &plan.index {
            Some(index) => vec![folder.join(&index.name)],
            None => plan.files.iter().map(|f| folder.join(&f.name)).collect(),
        };
        let found = match Parts::of_listing(folder, files, folders, None) {
            Ok(Parts::Files(files)) => files == wanted,
            Ok(Parts::Index(index) | Parts::Partitions(index)) => [index] == wanted[..],
            Err(_) => false,
        };
        if found {
            return Ok(());
        }
        let names: Vec<String> = staying
            .iter()
            .map(|name| name.to_string_lossy())
            .filter(|name| name.contains(".safetensors") || *name == INDEX_FILE)
            .map(|name| text::name(&name).into_owned())
            .collect();
        let shown = names[..names.len().min(3)].join(", ");
        let more = if names.len() > 3 { ", ..." } else { "" };
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "it is not clear which files are the earlier checkpoint, and readers would not find \
                 the new one beside {shown}{more}"
            ),
        )
        .at(folder)
        .help("move these files elsewhere, or choose another folder"))
    }
}

/// The shards that an index names beside it; none where it cannot be read.
fn shards_of(index: &Path) -> Vec<String> {
    let is_small = |path: &Path| path.metadata().is_ok_and(|m| m.len() <= MAX_INDEX_BYTES);
    let bytes = is_small(index).then(|| read_file(index).ok()).flatten();
    let parsed = bytes.and_then(|bytes| ShardIndex::parse(&bytes).ok());
    let shards = parsed.iter().flat_map(|parsed| parsed.shards());
    let beside =
        shards.filter(|shard| Path::new(&***shard).file_name() == Some((***shard).as_ref()));
    beside.map(|shard| shard.to_string()).collect()
}
