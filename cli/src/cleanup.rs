//! Nothing is left behind: what an unfinished output has made is removed, also when a signal ends
//! the program.
//!
//! The library knows what it has made and removes it when an error or a panic ends the writing. A
//! signal ends the process while other threads still read and write; then this module asks for it.

use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tensora::converters::{Abandoned, OutputFolder};

/// The holder of the list looks at a folder that it is about to claim.
static CLAIMING: AtomicBool = AtomicBool::new(false);

/// Outputs that are being written.
static UNFINISHED: Mutex<Vec<OutputFolder>> = Mutex::new(Vec::new());

/// A folder that is being filled, by this process alone. Unless it is [kept](Self::keep), dropping
/// it removes the files that were made in it, and the folders that were made for it.
#[derive(Debug)]
pub struct Unfinished(OutputFolder);

impl Unfinished {
    /// Makes and locks `folder`, which must be empty or not there.
    pub fn claim_empty(folder: &Path) -> tensora::Result<Self> {
        Self::claim(|| OutputFolder::claim_empty(folder))
    }

    /// Takes the folder that `claim` makes and locks.
    pub fn claim(claim: impl FnOnce() -> tensora::Result<OutputFolder>) -> tensora::Result<Self> {
        // Held meanwhile: a signal waits until it is known what was made.
        let mut unfinished = lock();
        CLAIMING.store(true, Ordering::Release);
        let claimed = claim();
        CLAIMING.store(false, Ordering::Release);
        let folder = claimed?;
        unfinished.push(folder.clone());
        Ok(Self(folder))
    }

    /// Makes and locks `folder`; `None` while another process writes into it.
    pub fn try_claim(folder: &Path) -> tensora::Result<Option<Self>> {
        let mut unfinished = lock();
        let folder = OutputFolder::try_claim(folder)?;
        unfinished.extend(folder.clone());
        Ok(folder.map(Self))
    }

    /// The output is complete and stays.
    pub fn keep(self) -> tensora::Result<()> {
        self.release(|_| Ok(()))
    }

    /// The output is complete, and stays once `last` has put it into its place.
    pub fn release(self, last: impl FnOnce(&Path) -> tensora::Result<()>) -> tensora::Result<()> {
        self.0.release(last)
    }
}

impl Deref for Unfinished {
    type Target = OutputFolder;

    fn deref(&self) -> &OutputFolder {
        &self.0
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Held meanwhile: a signal waits until everything is gone.
        let mut unfinished = lock();
        // Nothing, after a release.
        drop(self.0.abandon());
        unfinished.retain(|folder| folder.path() != self.0.path());
    }
}

/// From now on Ctrl-C, a request to terminate and a hang-up end the process at once, and remove what
/// is unfinished. The exit code is 128 and the number of the signal, as shells have it.
/// Under `json`, nothing else was printed and an object says so.
pub fn on_interrupt(json: bool) {
    if let Err(error) = watch(json) {
        eprintln!("warning: signals may leave temporary files behind: {error}");
    }
}

#[cfg(unix)]
fn watch(json: bool) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = vec![SIGINT, SIGTERM];
    // Whoever started us with nohup wants it to stay ignored.
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    let mut signals = signal_hook::iterator::Signals::new(signals)?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(128 + signal, || {
                    if json {
                        crate::stdout::last_line(&crate::failure::Failed::by_signal(signal));
                    }
                });
            }
        })?;
    Ok(())
}

#[cfg(not(unix))]
fn watch(_json: bool) -> io::Result<()> {
    let handler = || end(crate::failure::INTERRUPTED.into(), || ());
    ctrlc::set_handler(handler).map_err(io::Error::other)
}

fn end(code: i32, last: impl FnOnce()) -> ! {
    // Both are held for good: nothing is finished any more, and no other thread gets as far as to
    // end the process with an exit code of its own.
    let unfinished = lock_unless_stuck();
    let outputs = unfinished.iter().flat_map(|folders| folders.iter());
    let _waiting: Vec<Abandoned<'_>> = outputs.map(OutputFolder::abandon).collect();
    last();
    std::process::exit(code)
}

/// `None` where a folder is being claimed that does not answer: nothing was written into it yet, and
/// whoever ends the program does not wait for it.
fn lock_unless_stuck() -> Option<MutexGuard<'static, Vec<OutputFolder>>> {
    for _ in 0..500 {
        match UNFINISHED.try_lock() {
            Ok(unfinished) => return Some(unfinished),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    match CLAIMING.load(Ordering::Acquire) {
        true => None,
        false => Some(lock()),
    }
}

/// Whether this process was started with a signal ignored. Only Linux says it without unsafe code.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn lock() -> MutexGuard<'static, Vec<OutputFolder>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_unfinished_output_goes_and_a_finished_one_and_files_of_others_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a/b");
        for keep in [false, true] {
            let unfinished = Unfinished::claim_empty(&path).unwrap();
            unfinished.file("config.json").unwrap().commit().unwrap();
            if keep {
                fs::write(path.join("tokenizer.json"), b"of others").unwrap();
                unfinished.keep().unwrap();
                assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
            } else {
                drop(unfinished);
                assert!(!scratch.path().join("a").exists());
            }
            assert!(lock().iter().all(|folder| folder.path() != path));
        }
    }
}
