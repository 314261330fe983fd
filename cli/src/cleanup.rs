//! Nothing is left behind: what an unfinished output has written is removed, also on Ctrl-C.
//!
//! The library removes its temporary files when an error or a panic ends the writing. A signal ends
//! the process while other threads still read and write; then this module removes them.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::failure::INTERRUPTED;

/// Outputs that are being written.
static UNFINISHED: Mutex<Vec<Output>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Output {
    folder: PathBuf,
    /// What the folder held before.
    before: HashSet<OsString>,
    /// Folders that did not exist before, innermost first.
    made: Vec<PathBuf>,
    /// Whether a file name is one that we write.
    ours: fn(&OsStr) -> bool,
}

/// A folder that is being filled. Unless it is [kept](Self::keep), dropping it removes the files
/// that were written into it, and the folders that were made for it.
#[derive(Debug)]
pub struct Unfinished {
    folder: PathBuf,
}

impl Unfinished {
    /// Looks at `folder`, which need not exist, before anything is written. `ours` tells the names
    /// of files that we write.
    pub fn new(folder: &Path, ours: fn(&OsStr) -> bool) -> io::Result<Self> {
        let before = match std::fs::read_dir(folder) {
            Ok(entries) => entries
                .map(|entry| Ok(entry?.file_name()))
                .collect::<io::Result<_>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => HashSet::new(),
            Err(error) => return Err(error),
        };
        let missing =
            |path: &&Path| !path.as_os_str().is_empty() && path.symlink_metadata().is_err();
        let made = folder.ancestors().take_while(missing).map(Path::to_owned);
        let output = Output {
            folder: folder.to_owned(),
            before,
            made: made.collect(),
            ours,
        };
        lock().push(output);
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// The output is complete and stays.
    pub fn keep(self) {
        lock().retain(|output| output.folder != self.folder);
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        lock().retain(|output| {
            let is_this = output.folder == self.folder;
            if is_this {
                output.remove();
            }
            !is_this
        });
    }
}

/// From now on Ctrl-C ends the process at once, and removes what is unfinished.
pub fn on_interrupt() {
    let handler = || {
        // Held for good: nothing is finished any more.
        let outputs = lock();
        outputs.iter().for_each(Output::remove);
        std::process::exit(INTERRUPTED.into());
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        eprintln!("warning: Ctrl-C may leave temporary files behind: {error}");
    }
}

impl Output {
    /// Removes what can be removed; there is nobody left to report the rest to.
    fn remove(&self) {
        // On Ctrl-C other threads may still be making files.
        while self.remove_files() > 0 {}
        for folder in &self.made {
            // Fails, as it should, where somebody else has put something.
            let _ = std::fs::remove_dir(folder);
        }
    }

    /// How many files were removed in one pass.
    fn remove_files(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return 0;
        };
        let is_ours =
            |name: &OsStr| !self.before.contains(name) && (is_temporary(name) || (self.ours)(name));
        entries
            .flatten()
            .filter(|entry| is_ours(&entry.file_name()))
            .filter(|entry| std::fs::remove_file(entry.path()).is_ok())
            .count()
    }
}

/// Whether a name is that of a temporary file of this process's writers.
fn is_temporary(name: &OsStr) -> bool {
    let mark = format!(".tmp-{}-", std::process::id());
    name.as_encoded_bytes().starts_with(b".") && name.to_string_lossy().contains(&mark)
}

fn lock() -> std::sync::MutexGuard<'static, Vec<Output>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn ours(name: &OsStr) -> bool {
        name == "config.json"
    }

    #[test]
    fn an_unfinished_output_takes_its_files_and_folders_along() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("a/b");
        let unfinished = Unfinished::new(&folder, ours).unwrap();
        fs::create_dir_all(&folder).unwrap();
        let temporary = format!(".x.tmp-{}-7", std::process::id());
        fs::write(folder.join(&temporary), b"x").unwrap();
        fs::write(folder.join("config.json"), b"x").unwrap();
        drop(unfinished);
        assert!(!scratch.path().join("a").exists());
    }

    #[test]
    fn files_of_others_and_finished_outputs_stay() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("config.json"), b"x").unwrap();
        let unfinished = Unfinished::new(scratch.path(), ours).unwrap();
        for name in ["other.txt", ".x.tmp-1-2"] {
            fs::write(scratch.path().join(name), b"x").unwrap();
        }
        drop(unfinished);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 3);

        let kept = scratch.path().join("kept");
        let unfinished = Unfinished::new(&kept, ours).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("config.json"), b"x").unwrap();
        unfinished.keep();
        assert!(kept.join("config.json").exists());
    }
}
