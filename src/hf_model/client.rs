//! The client: what it was told, and what can be asked of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::Url;

use super::cache::{self, HubCache};
use super::env::Environment;
use super::event::{Event, Reporter};
use super::http::{Session, Token, shown};
use super::pace::Pace;
use super::pull::{Pull, Snapshot};
use super::snapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::load::CancelToken;

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
                // Without its text, which may have a password in it.
                "the endpoint of the Hub is no http or https address",
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
                let pulled = self.pull(&pull).map_err(|error| match error.kind() {
                    ErrorKind::Network
                    | ErrorKind::NotFound
                    | ErrorKind::NotCached
                    | ErrorKind::Denied => {
                        let mut help = "no file or folder has this name here, so it was taken for the id of a model".to_owned();
                        if let Some(remedy) = error.remedy() {
                            help = format!("{remedy}; {help}");
                        }
                        error.help(help)
                    }
                    _ => error,
                });
                Ok(pulled?.path)
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
