//! What was made in a folder, so that exactly this can be removed, and what killed processes left.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::converters::names::{is_written_here, temporary};
use crate::error::{Error, Result};
use crate::facts::process::is_of_running;

/// Everything that was made through a folder.
#[derive(Debug, Default)]
pub(super) struct Made {
    files: HashSet<PathBuf>,
    /// Folders that did not exist before, outermost first.
    folders: Vec<PathBuf>,
}

impl Made {
    /// Makes a folder and those above it, and remembers those that did not exist.
    pub(super) fn make_folder(&mut self, folder: &Path) -> Result<()> {
        let made = &mut self.folders;
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.is_dir();
        let missing: Vec<&Path> = folder.ancestors().take_while(missing).collect();
        for folder in missing.into_iter().rev() {
            match std::fs::create_dir(folder) {
                Ok(()) if made.iter().any(|known| known == folder) => {}
                Ok(()) => made.push(folder.to_owned()),
                Err(_) if folder.is_dir() => {}
                Err(error) => return Err(Error::io("make the folder", folder, error)),
            }
        }
        Ok(())
    }

    /// Remembers a file that was made.
    pub(super) fn add_file(&mut self, file: PathBuf) {
        self.files.insert(file);
    }

    /// Whether the file was remembered, until now.
    pub(super) fn forget_file(&mut self, file: &Path) -> bool {
        self.files.remove(file)
    }

    /// The folders that were made.
    pub(super) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Everything stays.
    pub(super) fn keep_all(&mut self) {
        *self = Self::default();
    }

    /// Removes the files that can be removed; there is nobody left to report the rest to.
    pub(super) fn remove_files(&mut self) {
        for file in self.files.drain() {
            let _ = std::fs::remove_file(file);
        }
    }

    /// Removes the folders, but for those where somebody else has put something.
    pub(super) fn remove_folders(&mut self) {
        for folder in self.folders.drain(..).rev() {
            // Fails, as it should, where something is.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Removes the temporary files of processes that were killed. Only under the lock: nobody else is
/// writing here, but for single files, which need no lock. So what a living process may be writing
/// stays, and what has a name that nobody here gives.
pub(super) fn remove_leftovers(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((name, pid)) = temporary(&name) else {
            continue;
        };
        let Ok(found) = entry.metadata() else {
            continue;
        };
        let is_left = |modified| !is_of_running(pid, modified);
        if found.is_file() && is_written_here(name) && found.modified().is_ok_and(is_left) {
            tracing::debug!(file = %entry.path().display(), "left behind by a killed process");
            // One that cannot be removed is in nobody's way.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
