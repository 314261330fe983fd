//! The standard output, of which a signal has to know whether anything was written to it.

use std::io::{self, StdoutLock, Write};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Whether something was written. Held while it is.
static BEGUN: Mutex<bool> = Mutex::new(false);

/// The standard output, for the one thread that writes to it.
#[derive(Debug)]
pub struct Stdout(StdoutLock<'static>);

impl Stdout {
    pub fn lock() -> Self {
        Self(io::stdout().lock())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        *begun = true;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes `record` as the only line of the output, from any thread of a process that is about to
/// end: nobody writes any more after it. Does nothing where something was written before.
#[cfg(unix)]
pub fn last_line(record: &impl Serialize) {
    use std::os::fd::AsFd as _;
    let Ok(begun) = BEGUN.try_lock() else {
        return;
    };
    if *begun {
        return;
    }
    // Whoever writes waits until the process is gone.
    std::mem::forget(begun);
    let Ok(mut line) = serde_json::to_vec(record) else {
        return;
    };
    line.push(b'\n');
    // Around the lock, which is held for as long as the command runs.
    if let Ok(stdout) = io::stdout().as_fd().try_clone_to_owned() {
        let _ = std::fs::File::from(stdout).write_all(&line);
    }
}
