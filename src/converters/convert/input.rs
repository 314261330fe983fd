//! What is read: how to tell that it is what was read before, and that it is not the output.

use std::path::{Path, PathBuf};

use super::companions::Companion;
use super::journal::Fingerprint;
use super::target::Target;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};

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
    if let Ok(found) = real.metadata() {
        use std::os::unix::fs::MetadataExt as _;
        print.add(&found.dev().to_le_bytes());
        print.add(&found.ino().to_le_bytes());
        for time in [
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec(),
        ] {
            print.add(&time.to_le_bytes());
        }
    }
}

/// Refuses a folder that holds the input: its files would be replaced while they are read.
pub(super) fn refuse_as_output(
    checkpoint: &Checkpoint,
    companions: &[Companion],
    out: &Path,
) -> Result<()> {
    let Some(wanted) = FolderId::of(out) else {
        return Ok(());
    };
    let sources = checkpoint.sources().iter().map(|source| source.path());
    let files = sources.chain(companions.iter().map(|file| &*file.path));
    // Where the names lie, and where links lead to.
    let real = files.clone().filter_map(|file| file.canonicalize().ok());
    let given = files.map(Path::to_owned);
    let mut folders: Vec<PathBuf> = real
        .chain(given)
        .filter_map(|file| file.parent().map(Path::to_owned))
        .collect();
    // The index lies there, if there is one; shards may lie in folders below.
    folders.push(checkpoint.root().to_owned());
    folders.sort_unstable();
    folders.dedup();
    match folders
        .iter()
        .any(|folder| FolderId::of(folder) == Some(wanted.clone()))
    {
        true => Err(Error::new(
            ErrorKind::InvalidArgument,
            "the output folder is the one that is read from",
        )
        .at(out)
        .help("choose another folder")),
        false => Ok(()),
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
