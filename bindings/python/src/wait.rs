//! Long calls: the interpreter is released, and Ctrl-C ends them.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;
use tensora::{CancelToken, ErrorKind};

use crate::errors::checked;

/// How often signals are looked at: half of what a person notices.
const GLANCE: Duration = Duration::from_millis(50);

/// Ends, from another thread, the calls that it was given to.
#[pyclass(frozen, module = "tensora_py._native")]
#[derive(Default, Clone)]
pub struct Cancel(pub CancelToken);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

/// Does `work` on a thread with the interpreter released. A signal handler that raises, as that of
/// Ctrl-C does, cancels `token`; the exception is raised when the work has ended.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    token: &CancelToken,
    work: impl FnOnce() -> tensora::Result<T> + Send,
) -> PyResult<T> {
    let outcome = py.detach(|| {
        std::thread::scope(|scope| {
            let (send, receive) = channel();
            let worker = std::thread::Builder::new().spawn_scoped(scope, move || {
                // The receiver is there until this thread was joined.
                let _ = send.send(work());
            });
            let worker = match worker {
                Ok(worker) => worker,
                Err(error) => {
                    let what = "cannot start a thread";
                    return Ok(Err(tensora::Error::new(ErrorKind::Io, what)
                        .because(error)
                        .help("raise the limit on processes and threads (ulimit -u)")));
                }
            };
            loop {
                match receive.recv_timeout(GLANCE) {
                    Ok(result) => return Ok(result),
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(raised) = Python::attach(|py| py.check_signals()) {
                            token.cancel();
                            let _ = worker.join();
                            return Err(raised);
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => match worker.join() {
                        Err(panic) => std::panic::resume_unwind(panic),
                        Ok(()) => unreachable!("it has sent its result"),
                    },
                }
            }
        })
    })?;
    checked(py, outcome)
}
