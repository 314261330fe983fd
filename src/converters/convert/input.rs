//! What is read: how to tell that it is what was read before, and that it is not the output.

use std::path::{Path, PathBuf};

use super::companions::Companion;
use super::journal::Fingerprint;
use super::target::Target;
use crate::checkpoint::Checkpoint;
use crate::converters::links::{folder_of, way_from};
use crate::converters::names::METADATA_FILE;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Layout;
use crate::formats::serverlessllm::INDEX_FILE;

/// Everything that the output depends on, and what tells that the input is the same.
pub(super) fn fingerprint(
    checkpoint: &Checkpoint,
    target: &Target,
    companions: &[Companion],
) -> Fingerprint {
    let mut print = Fingerprint::new();
    for source in checkpoint.sources() {
        let identity = source.identity();
        print.add(&identity.len.to_le_bytes());
        print.add(&identity.mtime_ns.to_le_bytes());
        if source.local().is_some() {
            add_file(&mut print, source.path());
        }
    }
    for file in &target.plan.files {
        print.add(file.name.as_bytes());
        print.add(&file.head);
        print.add(&file.len.to_le_bytes());
    }
    for place in &target.plan.placements {
        print.add(&place.offset.to_le_bytes());
        print.add(&place.file.to_le_bytes());
    }
    print.add(target.plan.index.as_ref().map_or(&[], |index| &index.bytes));
    print.add(target.metadata_file.as_deref().unwrap_or_default());
    for companion in companions {
        print.add(companion.name.as_bytes());
        print.add(&companion.len.to_le_bytes());
        add_file(&mut print, &companion.path);
    }
    print
}

/// Which file it is, and when it was last touched. Lengths and modification times alone are equal
/// between models of one architecture whose times an archive or a package manager has set.
fn add_file(print: &mut Fingerprint, path: &Path) {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    print.add(real.as_os_str().as_encoded_bytes());
    #[cfg(unix)]
    if let Some(stamp) = Stamp::of(&real) {
        print.add(&stamp.place.0.to_le_bytes());
        print.add(&stamp.place.1.to_le_bytes());
        for time in stamp.times {
            print.add(&time.to_le_bytes());
        }
    }
}

/// The files that a conversion reads, and how they were when it was planned.
#[derive(Debug)]
pub(super) struct Input {
    files: Vec<(PathBuf, Option<Stamp>)>,
    root: PathBuf,
}

impl Input {
    pub(super) fn of(checkpoint: &Checkpoint, companions: &[Companion]) -> Self {
        let root = checkpoint.root();
        let sources = checkpoint.sources().iter();
        // What has no path is in memory.
        let sources = sources.filter(|source| source.local().is_some());
        let mut files: Vec<PathBuf> = sources
            .map(|source| source.path().to_owned())
            .chain(companions.iter().map(|file| file.path.clone()))
            .chain(checkpoint.safetensors_index().map(Path::to_owned))
            .collect();
        if !root.as_os_str().is_empty() {
            // Where the name has a link that leads nowhere, too.
            let index = (checkpoint.layout() == Layout::ServerlessLlm).then_some(INDEX_FILE);
            let beside = index.into_iter().chain([METADATA_FILE]);
            let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
            files.extend(beside.map(|name| root.join(name)).filter(is_there));
        }
        let files = files.into_iter().map(|file| {
            let stamp = Stamp::of(&file);
            (file, stamp)
        });
        Self {
            files: files.collect(),
            root: root.to_owned(),
        }
    }

    /// Refuses what was read if any of it may have been written to since the plan, also by somebody
    /// who has set the modification time back.
    pub(super) fn refuse_changed(&self) -> Result<()> {
        let changed = |(file, stamp): &&(PathBuf, Option<Stamp>)| Stamp::of(file) != *stamp;
        match self.files.iter().find(changed) {
            Some((file, _)) => Err(Error::new(
                ErrorKind::SourceChanged,
                "this file was touched or replaced while it was converted",
            )
            .at(file)
            .help("convert again, with the option force where an interrupted conversion is in the way")),
            None => Ok(()),
        }
    }

    /// Refuses a folder that holds the input, or a link on the way to it: it would be replaced while
    /// it is read.
    pub(super) fn refuse_as_output(&self, out: &Path) -> Result<()> {
        let Some(wanted) = FolderId::of(out) else {
            return Ok(());
        };
        let files = self.files.iter().map(|(file, _)| file);
        let real = files.clone().filter_map(|file| file.canonicalize().ok());
        // Where the names lie, and where each link leads to.
        let ways = files.flat_map(|file| way_from(file));
        let mut folders: Vec<PathBuf> = real
            .chain(ways)
            .map(|file| folder_of(&file).to_owned())
            .collect();
        // The index lies there, if there is one; shards may lie in folders below.
        folders.push(self.root.clone());
        folders.sort_unstable();
        folders.dedup();
        let is_wanted = |folder: &PathBuf| FolderId::of(folder) == Some(wanted.clone());
        match folders.iter().any(is_wanted) {
            true => Err(Error::new(
                ErrorKind::InvalidArgument,
                "the output folder is the one that is read from",
            )
            .at(out)
            .help("choose another folder")),
            false => Ok(()),
        }
    }
}

/// Which file it is, and when it was last touched.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    #[cfg(unix)]
    place: (u64, u64),
    /// Modified and changed, each in seconds and nanoseconds.
    #[cfg(unix)]
    times: [i64; 4],
    #[cfg(not(unix))]
    modified: Option<std::time::SystemTime>,
}

impl Stamp {
    /// Links are followed.
    fn of(path: &Path) -> Option<Self> {
        let found = path.metadata().ok()?;
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt as _;
        Some(Self {
            len: found.len(),
            #[cfg(unix)]
            place: (found.dev(), found.ino()),
            #[cfg(unix)]
            times: [
                found.mtime(),
                found.mtime_nsec(),
                found.ctime(),
                found.ctime_nsec(),
            ],
            #[cfg(not(unix))]
            modified: found.modified().ok(),
        })
    }
}

/// The same for every path of a folder, bind mounts included.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FolderId {
    #[cfg(unix)]
    place: (u64, u64),
    #[cfg(not(unix))]
    place: PathBuf,
}

impl FolderId {
    fn of(folder: &Path) -> Option<Self> {
        // What no path was given for is in memory; a file of the current folder has a path to it.
        if folder.as_os_str().is_empty() {
            return None;
        }
        #[cfg(unix)]
        let place = {
            use std::os::unix::fs::MetadataExt as _;
            let found = folder.metadata().ok()?;
            (found.dev(), found.ino())
        };
        #[cfg(not(unix))]
        let place = folder.canonicalize().ok()?;
        Some(Self { place })
    }
}
