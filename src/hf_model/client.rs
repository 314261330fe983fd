//! The client: what it was told, what is asked of it, what it gives back and says meanwhile.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;

use super::cache::{self, HubCache};
use super::env::Environment;
use super::http::{Session, Token, shown};
use super::snapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Layout;
use crate::load::CancelToken;
use crate::plan::Selection;

/// The Hub.
const ENDPOINT: &str = "https://huggingface.co";

/// Downloads models into a [`HubCache`], and finds those that are there. Cheap to clone.
///
/// Calls are independent of each other: each has its own connections, and ends with them. They may
/// be made from any thread, also from one that runs an async executor.
#[derive(Debug, Clone)]
pub struct Client {
    pub(super) cache: HubCache,
    pub(super) endpoint: Url,
    pub(super) token: Option<Token>,
    pub(super) offline: bool,
    pub(super) symlinks: bool,
    pub(super) proxies: bool,
    pub(super) pace: Pace,
    pub(super) cancel: CancelToken,
    pub(super) reporter: Reporter,
}

/// How patient a client is, and how much it does at once.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pace {
    /// Until a connection is there; 10 s.
    pub connect: Duration,
    /// Until an answer about a model is there; 10 s, as in the Hub's own tools.
    pub answer: Duration,
    /// How long a download may bring nothing before it is begun again where it stopped; 30 s.
    pub stall: Duration,
    /// Tries after the first one that may fail in a row; 5. Every byte that comes begins the count
    /// again.
    pub tries: u32,
    /// The pause before the second try, which doubles with each further one up to 30 s; 0.5 s.
    pub backoff: Duration,
    /// The longest pause that a server may ask for (`Retry-After`); 5 minutes.
    pub retry_after: Duration,
    /// How long the holder of a lock may get nowhere; 10 minutes, as a digest of a large file
    /// takes its time, too.
    pub lock: Duration,
    /// Files at once; 4.
    pub files: usize,
    /// Requests for data at once, all files together; 8.
    pub connections: usize,
    /// Ranges of one file at once; 4. With [`chunk_bytes`](Self::chunk_bytes) and
    /// [`files`](Self::files) it bounds the memory for what comes out of order: 128 MiB.
    pub window: usize,
    /// The length of a range, in bytes; 8 MiB.
    pub chunk_bytes: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            tries: 5,
            backoff: Duration::from_millis(500),
            retry_after: Duration::from_secs(300),
            lock: Duration::from_secs(600),
            files: 4,
            connections: 8,
            window: 4,
            chunk_bytes: 8 << 20,
        }
    }
}

/// What happens during a download. Sent from the thread of the call, often; a listener that takes
/// its time holds the download up.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// So many files are not here yet, with so many bytes, of which some are here from before.
    Planned {
        /// Files that are not complete.
        files: u64,
        /// Their sizes together, in bytes.
        bytes: u64,
        /// Bytes of them that an earlier download has left.
        present: u64,
    },
    /// Bytes of a file have come, and are written in their turn.
    Advanced {
        /// Of the file, in the repository.
        path: &'a str,
        /// How many came just now.
        bytes: u64,
    },
    /// A file is begun anew: what was there of it does not count.
    Restarted {
        /// Of the file, in the repository.
        path: &'a str,
        /// How many bytes do not count any more.
        bytes: u64,
    },
    /// Another process downloads this file; it is waited for.
    Waiting {
        /// Of the file, in the repository.
        path: &'a str,
        /// The lock that it holds.
        lock: &'a Path,
    },
    /// A file is complete and checked.
    Finished {
        /// Of the file, in the repository.
        path: &'a str,
    },
}

/// Who is told about events.
#[derive(Clone)]
pub(super) struct Reporter(Arc<dyn Fn(Event<'_>) + Send + Sync>);

impl Reporter {
    pub(super) fn tell(&self, event: Event<'_>) {
        (self.0)(event);
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter(..)")
    }
}

/// What is wanted of a model: by default the files that a load of it reads.
#[derive(Debug, Clone)]
pub struct Pull {
    pub(super) id: String,
    pub(super) revision: Option<String>,
    pub(super) layout: Option<Layout>,
    pub(super) side_files: bool,
    pub(super) selection: Option<Selection>,
}

impl Pull {
    /// The weights of model `id` (`org/name`) at `main`, with their index.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            revision: None,
            layout: None,
            side_files: false,
            selection: None,
        }
    }

    /// At a branch, a tag or a commit.
    #[must_use]
    pub fn revision(mut self, revision: Option<&str>) -> Self {
        self.revision = revision.map(str::to_owned);
        self
    }

    /// In this layout, where a repository has both.
    #[must_use]
    pub fn layout(mut self, layout: Option<Layout>) -> Self {
        self.layout = layout;
        self
    }

    /// Also the files for tokenizer and configuration ([`is_side_file`](super::is_side_file)).
    #[must_use]
    pub fn side_files(mut self, wanted: bool) -> Self {
        self.side_files = wanted;
        self
    }

    /// Only the files that hold a selected tensor. Slices make no difference: files are whole.
    #[must_use]
    pub fn select(mut self, selection: Selection) -> Self {
        self.selection = Some(selection);
        self
    }

    pub(super) fn revision_or_main(&self) -> &str {
        self.revision.as_deref().unwrap_or(cache::MAIN)
    }

    pub(super) fn picks(&self, tensor: &str) -> bool {
        self.selection
            .as_ref()
            .is_none_or(|selection| selection.picks(tensor))
    }
}

/// A model in the cache, complete as far as it was asked for.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(super) path: PathBuf,
    pub(super) commit: String,
    pub(super) files: Vec<PulledFile>,
}

/// A file of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledFile {
    /// Relative to the snapshot, with `/` between components.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Bytes that were downloaded now; 0 for a file that was there.
    pub downloaded: u64,
}

impl Snapshot {
    /// The folder, to be opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The commit that it is of.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// The files that were asked for, sorted by path.
    pub fn files(&self) -> &[PulledFile] {
        &self.files
    }
}

impl Client {
    /// A client of the Hub that fills `cache`: with no token, and without the proxies of the
    /// environment.
    pub fn new(cache: HubCache) -> Self {
        Self {
            cache,
            endpoint: Url::parse(ENDPOINT).expect("the constant above is an address"),
            token: None,
            offline: false,
            symlinks: true,
            proxies: false,
            pace: Pace::default(),
            cancel: CancelToken::default(),
            reporter: Reporter(Arc::new(|_| {})),
        }
    }

    /// The client that the environment asks for: `HF_ENDPOINT`; `HF_TOKEN`, else the file that
    /// `HF_TOKEN_PATH` names, else `HF_HOME/token`; `HF_HUB_OFFLINE`; `HF_HUB_DISABLE_SYMLINKS`;
    /// the proxies (`HTTPS_PROXY` and its like); and the cache of [`HubCache::from_env`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an endpoint that is no address and for a token that is
    /// none, [`ErrorKind::Io`] for a token file that cannot be read; those of
    /// [`HubCache::from_env`].
    pub fn from_env() -> Result<Self> {
        let environment = Environment::read()?;
        let mut client = Self::new(HubCache::from_env()?);
        if let Some(endpoint) = &environment.endpoint {
            client = client.endpoint(endpoint)?;
        }
        client.token = environment.token;
        client.offline = environment.offline;
        client.symlinks = environment.symlinks;
        client.proxies = true;
        Ok(client)
    }

    /// Asks this server: `https://huggingface.co`, or a mirror.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] unless it is an `http` or `https` address.
    pub fn endpoint(mut self, endpoint: &str) -> Result<Self> {
        let url = Url::parse(endpoint)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(mut url) = url else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the endpoint {} is no address",
                    crate::text::quoted(endpoint)
                ),
            )
            .help("set HF_ENDPOINT to an address such as https://huggingface.co"));
        };
        url.set_query(None);
        url.set_fragment(None);
        self.endpoint = url;
        Ok(self)
    }

    /// Sends this token to the endpoint, and to nobody else.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for text that no token is made of.
    pub fn token(mut self, token: &str) -> Result<Self> {
        self.token = Some(Token::new(token)?);
        Ok(self)
    }

    /// Makes no request: what is not in the cache is an error.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Whether no request is made.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// Links from snapshots to blobs, the default; else the files themselves lie in the snapshot,
    /// as they do where links are impossible.
    #[must_use]
    pub fn symlinks(mut self, links: bool) -> Self {
        self.symlinks = links;
        self
    }

    /// Takes the proxies of the environment and of the system.
    #[must_use]
    pub fn system_proxies(mut self, proxies: bool) -> Self {
        self.proxies = proxies;
        self
    }

    /// How patient it is, and how much it does at once.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Ends calls when this token is cancelled; what came so far is kept.
    #[must_use]
    pub fn cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// Tells about downloads.
    #[must_use]
    pub fn on_event(mut self, listener: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        self.reporter = Reporter(Arc::new(listener));
        self
    }

    /// The cache that it fills.
    pub fn cache(&self) -> &HubCache {
        &self.cache
    }

    /// Makes a model complete in the cache, as far as it is asked for.
    ///
    /// Of a model that is complete there, nothing is asked when the revision is a commit, or
    /// offline: then there is no lock and no write either, and a read-only cache does. A branch or
    /// a tag costs one request, for its commit; where that has no answer, or a refusal, the
    /// complete snapshot of the cache is taken, with a warning.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for ids and revisions that the Hub cannot have;
    /// [`ErrorKind::NotCached`] offline, for what is not there or not complete;
    /// [`ErrorKind::NotFound`] for a model, revision or file that the Hub does not have, and
    /// [`ErrorKind::Denied`] where it refuses; [`ErrorKind::Network`] for servers that do not
    /// answer, and [`ErrorKind::BadDownload`] for what they send; [`ErrorKind::NoWeights`],
    /// [`ErrorKind::MissingShard`], [`ErrorKind::UnsafePath`] and [`ErrorKind::BadIndex`] for
    /// repositories that nothing can be loaded from; [`ErrorKind::NoSuchTensor`] for a selection
    /// that matches nothing; [`ErrorKind::Io`], a full disk among it; [`ErrorKind::Cancelled`].
    pub fn pull(&self, pull: &Pull) -> Result<Snapshot> {
        if let Some(snapshot) = snapshot::cached(self, pull)? {
            return Ok(snapshot);
        }
        // A thread of its own: the caller's may run an executor, within which no other can run.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("tensora-hub".into());
            let work = || self.run(pull);
            let thread = thread.spawn_scoped(scope, work).map_err(no_thread)?;
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// As [`pull`](Self::pull), for async callers on any executor. Dropping the future cancels the
    /// download; what came so far is kept.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub async fn pull_async(&self, pull: &Pull) -> Result<Snapshot> {
        let (client, pull) = (self.clone(), pull.clone());
        let (tell, told) = tokio::sync::oneshot::channel();
        let dropped = CancelToken::default();
        let _ends_with_us = CancelOnDrop(dropped.clone());
        let thread = std::thread::Builder::new().name("tensora-hub".into());
        let work = move || {
            let outcome = match snapshot::cached(&client, &pull) {
                Ok(Some(snapshot)) => Ok(snapshot),
                Ok(None) => client.run_until(&pull, &dropped),
                Err(error) => Err(error),
            };
            // Nobody listens any more where the future was dropped.
            let _ = tell.send(outcome);
        };
        thread.spawn(work).map_err(no_thread)?;
        told.await.unwrap_or_else(|_| {
            let message = "the download ended without a result";
            Err(Error::new(ErrorKind::Io, message))
        })
    }

    /// A checkpoint's path from what a user typed: a path that exists, else a model that is found
    /// in the cache or downloaded. `adjust` says what is wanted of it, beside its weights.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for what looks like a path and does not exist; else as
    /// [`pull`](Self::pull).
    pub fn resolve(
        &self,
        name_or_path: impl AsRef<Path>,
        revision: Option<&str>,
        adjust: impl FnOnce(Pull) -> Pull,
    ) -> Result<PathBuf> {
        let name = name_or_path.as_ref();
        if let Some(path) = cache::existing(name, revision) {
            return Ok(path);
        }
        match name.to_str() {
            Some(id) if !cache::looks_like_a_path(id) => {
                let pull = adjust(Pull::new(id).revision(revision));
                Ok(self.pull(&pull)?.path)
            }
            // The same words as without a client.
            _ => self.cache.resolve(name, revision),
        }
    }

    fn run(&self, pull: &Pull) -> Result<Snapshot> {
        self.run_until(pull, &CancelToken::default())
    }

    fn run_until(&self, pull: &Pull, dropped: &CancelToken) -> Result<Snapshot> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start the runtime for downloads").because(error)
            })?;
        tracing::debug!(
            id = pull.id,
            endpoint = shown(&self.endpoint),
            "asking the Hub"
        );
        let session = Session::new(
            self.endpoint.clone(),
            self.token.clone(),
            self.pace.clone(),
            self.proxies,
            [self.cancel.clone(), dropped.clone()],
        )?;
        runtime.block_on(snapshot::pull(self, pull, session))
    }
}

fn no_thread(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "cannot start a thread for the download").because(error)
}

struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
