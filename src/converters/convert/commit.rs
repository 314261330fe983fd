//! From parts to a checkpoint: the order of renames and removals, each step of which a crash may
//! follow.
//!
//! 1. The journal lists what is to be removed, and becomes [`INCOMPLETE_FILE`]: from here on readers
//!    refuse the folder.
//! 2. What an earlier checkpoint left, and the new one has no use for, is removed.
//! 3. Every file gets its name, the index last, with the folder flushed before and after it.
//! 4. [`INCOMPLETE_FILE`] goes: the checkpoint is there.
//!
//! All bytes are on disk before the first step, so that whoever continues has only to rename. A
//! signal waits until the last one.

use std::fs::File;
use std::io;
use std::path::Path;

use super::changes::Changes;
use super::journal;
use super::parts::{name_of_part, part_path};
use crate::converters::OutputPlan;
use crate::converters::folder::{OutputFolder, Renames, sync_folder};
use crate::converters::names::is_written_here;
use crate::error::{Error, Result};
use crate::formats::{INCOMPLETE_FILE, JOURNAL_FILE};

/// Puts every file of `plan`, and `others` before its index, into place. What is made so far stays
/// when this fails, if it was to be `kept` or nothing else is left.
pub(super) fn commit(
    folder: &OutputFolder,
    plan: &OutputPlan,
    others: &[String],
    changes: &Changes,
    kept: bool,
) -> Result<()> {
    let path = folder.path();
    let (journal, mark) = (path.join(JOURNAL_FILE), path.join(INCOMPLETE_FILE));
    folder.in_one_go(|renames| {
        let mut replacing = Replacing {
            path,
            renames,
            replaces: !changes.obsolete.is_empty() || !changes.taken.is_empty(),
            // Then something may be gone already.
            begun: mark.symlink_metadata().is_ok(),
        };
        let marked = journal.symlink_metadata().is_ok();
        if marked {
            let mut file = File::options()
                .append(true)
                .open(&journal)
                .map_err(|error| Error::io("write", &journal, error))?;
            journal::add_obsolete(&mut file, &journal, &changes.obsolete)?;
            replacing.renames.rename(&journal, &mark)?;
            sync_folder(path)?;
        }
        replacing
            .all(plan, others, &changes.obsolete)
            .map_err(|error| {
                if marked && !replacing.begun {
                    // The folder is what it was: it need not look any worse.
                    let _ = replacing.renames.rename(&mark, &journal);
                    return error;
                }
                match kept || replacing.replaces {
                true => error.help(
                    "until this is mended, the folder is marked as incomplete, and readers refuse \
                     it; then the same conversion with the option resume finishes it",
                ),
                false => error,
            }
            })?;
        remove(&mark)?;
        sync_folder(path)
    })?;
    folder.sync_itself()
}

/// The folder while its mark is there.
struct Replacing<'a, 'r> {
    path: &'a Path,
    renames: &'a mut Renames<'r>,
    /// Something is there that has to go.
    replaces: bool,
    /// Something is gone or has its place already.
    begun: bool,
}

impl Replacing<'_, '_> {
    fn all(&mut self, plan: &OutputPlan, others: &[String], obsolete: &[String]) -> Result<()> {
        for name in obsolete {
            self.remove(name)?;
        }
        let index = plan.index.iter().map(|index| &index.name);
        for name in index.clone() {
            // Readers that do not know the mark see no index of files that are being replaced.
            if part_path(self.path, name).symlink_metadata().is_ok() {
                self.remove(name)?;
            }
        }
        let data = plan.files.iter().map(|file| &file.name);
        for name in data.chain(others) {
            self.place(name)?;
        }
        sync_folder(self.path)?;
        for name in index {
            self.place(name)?;
        }
        sync_folder(self.path)
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        if remove(&self.path.join(name))? {
            self.begin();
        }
        Ok(())
    }

    fn place(&mut self, name: &str) -> Result<()> {
        let (part, target) = (part_path(self.path, name), self.path.join(name));
        // A run before this one may have come as far as here.
        if part.symlink_metadata().is_err() && target.symlink_metadata().is_ok() {
            return Ok(());
        }
        self.renames.rename(&part, &target)?;
        self.begin();
        Ok(())
    }

    fn begin(&mut self) {
        self.begun = true;
        if self.replaces {
            // To take the new files back would leave less than there was.
            self.renames.leave();
        }
    }
}

/// Whether everything that a commit was interrupted with still lies in the folder, as parts or in
/// place, as far as lengths tell.
pub(super) fn is_all_there(folder: &Path, plan: &OutputPlan, others: &[String]) -> bool {
    let len = |name: &str| {
        let part = part_path(folder, name).metadata();
        let found = part.or_else(|_| folder.join(name).metadata());
        found.ok().map(|found| found.len())
    };
    let index = plan.index.iter();
    plan.files
        .iter()
        .all(|file| len(&file.name) == Some(file.len))
        && index
            .map(|index| &index.name)
            .chain(others)
            .all(|name| len(name).is_some())
}

/// Removes parts and journals of an earlier conversion that is not continued.
pub(super) fn forget_earlier(folder: &Path) -> Result<()> {
    for name in parts_and_journal(folder)? {
        remove(&folder.join(name))?;
    }
    Ok(())
}

/// Names of parts and journals, of whichever conversion; none where there is no folder. Parts of
/// names that no conversion gives are the user's own.
pub(super) fn parts_and_journal(folder: &Path) -> Result<Vec<String>> {
    let failed = |error: io::Error| Error::io("list", folder, error);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // What is not UTF-8 is not ours.
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string()
            && (name_of_part(&name).is_some_and(is_written_here) || name == JOURNAL_FILE)
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Whether there was something to remove.
fn remove(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("remove", path, error)),
    }
}
