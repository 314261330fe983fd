//! The engine: what loads share. Cheap to clone.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, Result};
use crate::facts::{IoUringAvailability, Observer};
use crate::policy::Profile;
use crate::storage::backends::{Backend, MmapBackend, SyncBackend, TokioBackend, UringBackend};
use crate::storage::crew::Crew;
use crate::storage::{BackendKind, DescriptorCache};

/// Threads that drive tasks of the async backend. They only hand out work; reading happens on
/// blocking threads.
const DRIVERS: usize = 2;

/// Upper limit of blocking threads, over all loads at once. They end after some idle seconds.
const BLOCKING_THREADS: usize = 512;

/// Owns what loads share: the cache of open descriptors, threads, a private Tokio runtime, and what was
/// probed of this machine. Clones are handles to the same engine.
///
/// Nothing is started before it is needed: an engine that never loads with the async backend has
/// no runtime. After a `fork`, the child makes its own.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    descriptors: Arc<DescriptorCache>,
    runtime: Mutex<Option<PrivateRuntime>>,
    observer: Observer,
    crew: Arc<Crew>,
    profile: Profile,
}

impl Engine {
    /// A fresh engine, for callers that do not want to share the default one.
    pub fn new() -> Self {
        Self::with_profile(Profile::default())
    }

    /// A fresh engine whose loads are decided with the constants of `profile` where it applies.
    ///
    /// The library looks for no profile by itself: [`Profile::load`] reads the file that a caller
    /// names, and the programs read the one that `tensora calibrate` wrote.
    pub fn with_profile(profile: Profile) -> Self {
        Self {
            inner: Arc::new(Inner {
                descriptors: Arc::new(DescriptorCache::for_this_process()),
                runtime: Mutex::new(None),
                observer: Observer::default(),
                crew: Arc::default(),
                profile,
            }),
        }
    }

    /// The lazily made engine that the convenience functions use: the only global of the library.
    pub fn shared() -> Self {
        static SHARED: OnceLock<Engine> = OnceLock::new();
        SHARED.get_or_init(Engine::new).clone()
    }

    /// The bounded cache of open files.
    pub fn descriptors(&self) -> &Arc<DescriptorCache> {
        &self.inner.descriptors
    }

    /// Whether io_uring can be used; probed once.
    pub fn io_uring(&self) -> IoUringAvailability {
        self.inner.observer.io_uring()
    }

    /// What observes the machine for loads, and keeps what stays as it is.
    pub fn observer(&self) -> &Observer {
        &self.inner.observer
    }

    /// The constants that loads are decided with.
    pub fn profile(&self) -> &Profile {
        &self.inner.profile
    }

    /// The threads that loads share.
    pub(crate) fn crew(&self) -> &Arc<Crew> {
        &self.inner.crew
    }

    /// The backend that executes schedules decided for `kind`.
    pub(crate) fn backend(&self, kind: BackendKind) -> Result<Box<dyn Backend>> {
        Ok(match kind {
            BackendKind::Sync | BackendKind::Default => {
                Box::new(SyncBackend::new(Arc::clone(self.crew())))
            }
            BackendKind::Async => Box::new(TokioBackend::new(self.runtime()?)),
            BackendKind::IoUring => Box::new(UringBackend::new(Arc::clone(self.crew()))),
            BackendKind::Mmap => Box::new(MmapBackend::eager(Arc::clone(self.crew()))),
        })
    }

    fn runtime(&self) -> Result<Handle> {
        let mut runtime = self
            .inner
            .runtime
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        if runtime.as_ref().is_some_and(|runtime| runtime.pid != pid) {
            // We are a forked child: the threads stayed with the parent, and waiting for them
            // would take for ever. What is left of the runtime is leaked.
            std::mem::forget(runtime.take());
        }
        if runtime.is_none() {
            let made = PrivateRuntime::start(pid).map_err(|error| {
                Error::new(
                    crate::ErrorKind::Io,
                    "cannot start the threads of the async backend",
                )
                .because(error)
            })?;
            *runtime = Some(made);
        }
        let handle = runtime
            .as_ref()
            .and_then(|made| made.runtime.as_ref())
            .map(Runtime::handle);
        Ok(handle.expect("just made").clone())
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self::shared()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("observer", &self.inner.observer)
            .field("profile", &self.inner.profile)
            .finish_non_exhaustive()
    }
}

struct PrivateRuntime {
    runtime: Option<Runtime>,
    pid: u32,
}

impl PrivateRuntime {
    fn start(pid: u32) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(DRIVERS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("tensora-async")
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
            pid,
        })
    }
}

impl Drop for PrivateRuntime {
    fn drop(&mut self) {
        // The runtime's own drop would wait for its threads, and panic on a thread of another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
