//! Requests: one session for one call, redirects by hand, retries, and bodies that end in time.
//!
//! Redirects are followed here and not by the HTTP library, because the token goes to the
//! endpoint's own origin (scheme, host and port) and to nobody else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER,
};
use reqwest::{Response, StatusCode, Url};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::sync::Semaphore;

use super::client::Pace;
use super::pauses::Pauses;
use super::refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::load::CancelToken;
use crate::text;

/// Redirects that are followed for one answer.
const MAX_REDIRECTS: usize = 10;

/// How often a wait looks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// A token: sent to the endpoint, shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token(HeaderValue);

impl Token {
    pub(super) fn new(token: &str) -> Result<Self> {
        let visible = token.bytes().all(|byte| byte.is_ascii_graphic());
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .ok()
            .filter(|_| visible && !token.is_empty())
            .ok_or_else(|| {
                let message = "the token of the Hugging Face Hub has spaces, line ends or \
                               characters that no token has";
                Error::new(ErrorKind::InvalidArgument, message)
                    .help("set HF_TOKEN to the token alone, which begins with hf_")
            })?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    #[cfg(test)]
    pub(super) fn expose(&self) -> &str {
        self.0.to_str().unwrap().strip_prefix("Bearer ").unwrap()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// An address as messages show it: signed addresses have secrets in their queries.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Fail only for addresses that have no host, which have no secrets in these places either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// Worth another try, after a pause that the server may have asked for.
    Passing(Error, Option<Duration>),
    /// The server has answered, and the answer is no.
    Refused(Refused),
    /// Nothing that another try would change.
    Final(Error),
}

/// A status that says no, with what the Hub's headers add to it.
#[derive(Debug, Clone)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) code: String,
    pub(super) url: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// The end of a call: what to report of a failure that no further try can mend.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Passing(error, _) | Failure::Final(error) => error,
            Failure::Refused(refused) => refusal::plain(&refused),
        }
    }
}

/// What one call needs to make requests.
#[derive(Debug)]
pub(super) struct Session {
    http: reqwest::Client,
    pub(super) endpoint: Url,
    token: Option<Token>,
    pub(super) pace: Pace,
    /// The caller's, and the one for a caller who does not wait any more.
    cancel: [CancelToken; 2],
    /// Requests for data that are in flight at once.
    pub(super) connections: Arc<Semaphore>,
}

impl Session {
    pub(super) fn new(
        endpoint: Url,
        token: Option<Token>,
        pace: Pace,
        proxies: bool,
        cancel: [CancelToken; 2],
    ) -> Result<Self> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            Error::new(ErrorKind::Network, "cannot prepare requests to the Hub").because(error)
        };
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("tensora/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(pace.connect);
        http = http.tls_backend_preconfigured(tls(endpoint.scheme() == "https").map_err(failed)?);
        if !proxies {
            http = http.no_proxy();
        }
        Ok(Self {
            http: http.build().map_err(|error| failed(error.into()))?,
            endpoint,
            token,
            connections: Arc::new(Semaphore::new(pace.connections.max(1))),
            pace,
            cancel,
        })
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// An address below the endpoint. Each part is one component, whatever it is made of.
    pub(super) fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    /// One answer to GET, of any status that is no redirect, whose headers have come in time, and
    /// the address that gave it. `seen` gets the headers of every answer on the way.
    pub(super) async fn get(
        &self,
        url: &Url,
        range: Option<&str>,
        patience: Duration,
        mut seen: impl FnMut(&HeaderMap) -> Result<(), Failure>,
    ) -> Result<(Response, Url), Failure> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get_once(&url, range, patience).await?;
            seen(response.headers())?;
            if !is_redirect(response.status()) {
                return Ok((response, url));
            }
            let next = response.headers().get(LOCATION);
            let next = next.and_then(|next| next.to_str().ok());
            let next = next.and_then(|next| url.join(next).ok());
            let wrong = |what: &str| {
                let message = format!("{} redirects {what}", shown(&url));
                Failure::Final(Error::new(ErrorKind::Network, message).help(
                    "a proxy or mirror may be in the way; look at HF_ENDPOINT and the proxy settings",
                ))
            };
            let Some(next) = next.filter(|next| matches!(next.scheme(), "http" | "https")) else {
                return Err(wrong("to nowhere"));
            };
            if url.scheme() == "https" && next.scheme() == "http" {
                return Err(wrong("from https to plain http"));
            }
            url = next;
        }
        let message = format!("{} redirects without an end", shown(&url));
        Err(Failure::Final(Error::new(ErrorKind::Network, message)))
    }

    async fn get_once(
        &self,
        url: &Url,
        range: Option<&str>,
        patience: Duration,
    ) -> Result<Response, Failure> {
        let mut request = self
            .http
            .get(url.clone())
            // Sizes and ranges are those of the file.
            .header(ACCEPT_ENCODING, "identity");
        if let Some(token) = self.token.as_ref().filter(|_| self.is_own(url)) {
            request = request.header(AUTHORIZATION, token.0.clone());
        }
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        tracing::trace!(url = shown(url), range, "GET");
        let passing = |message: String| {
            Error::new(ErrorKind::Network, message)
                .help("look at the network, the proxy settings and HF_ENDPOINT; what is in the cache loads with HF_HUB_OFFLINE=1")
        };
        match tokio::time::timeout(patience, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let what = if error.is_connect() {
                    "cannot connect to"
                } else {
                    "no answer from"
                };
                // Without the address in it, which may be a signed one.
                let untrusted = has_bad_certificate(&error);
                let error = passing(format!("{what} {}", shown(url))).because(error.without_url());
                match untrusted {
                    // It stays what it is, however often it is looked at.
                    true => Err(Failure::Final(error.help(
                        "its certificate is not trusted here: a proxy may be in the way, whose certificate SSL_CERT_FILE can name",
                    ))),
                    false => Err(Failure::Passing(error, None)),
                }
            }
            Err(_) => Err(Failure::Passing(
                passing(format!("no answer from {} in {patience:?}", shown(url))),
                None,
            )),
        }
    }

    /// Whether an address belongs to the endpoint, to which alone the token goes.
    pub(super) fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    /// A whole body of at most `limit` bytes, with retries: for answers that are data about files.
    pub(super) async fn body(
        &self,
        url: &Url,
        limit: u64,
        tries: u32,
    ) -> Result<(Vec<u8>, HeaderMap), Failure> {
        let patience = self.pace.answer;
        let mut pauses = Pauses::new(&self.pace, tries);
        loop {
            let outcome = async {
                let (response, url) = self.get(url, None, patience, |_| Ok(())).await?;
                let response = accept(response, &url)?;
                let headers = response.headers().clone();
                let body = read_to_end(response, &url, limit, self.pace.stall).await?;
                Ok((body, headers))
            };
            match outcome.await {
                Err(Failure::Passing(error, wait)) => {
                    self.pause(pauses.next(error, wait)?).await?;
                }
                other => return other,
            }
        }
    }

    /// Waits, unless the call is cancelled.
    pub(super) async fn pause(&self, pause: Duration) -> Result<()> {
        tokio::time::sleep(pause).await;
        self.check_cancelled()
    }

    pub(super) fn check_cancelled(&self) -> Result<()> {
        match self.cancel.iter().any(CancelToken::is_cancelled) {
            true => Err(cancelled()),
            false => Ok(()),
        }
    }

    /// Runs until the end, or until the call is cancelled.
    pub(super) async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut work = Box::pin(work);
        loop {
            match tokio::time::timeout(CANCEL_INTERVAL, &mut work).await {
                Ok(result) => return result,
                Err(_) => self.check_cancelled()?,
            }
        }
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the download was cancelled")
        .help("what has come so far is kept, and the next download goes on from there")
}

/// TLS that trusts whom the system trusts. A machine without certificates can still use an endpoint
/// that has no TLS: `needed` says whether the endpoint has.
fn tls(needed: bool) -> Result<rustls::ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    // Given to each client: a provider for the whole process is not ours to choose.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?;
    Ok(match builder.clone().with_platform_verifier() {
        Ok(trusting) => trusting.with_no_client_auth(),
        Err(error) if needed => return Err(error.into()),
        Err(_) => builder
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth(),
    })
}

/// Whether a connection failed because the other side is not trusted.
fn has_bad_certificate(error: &reqwest::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
            return true;
        }
        // What an error of the system wraps is no source of it, but in its place.
        let wrapped = error.downcast_ref::<std::io::Error>();
        cause = match wrapped.and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// An answer of status 200 or 206; everything else is a failure of its kind.
pub(super) fn accept(response: Response, url: &Url) -> Result<Response, Failure> {
    let status = response.status();
    if matches!(status.as_u16(), 200 | 206) {
        return Ok(response);
    }
    let header = |name: &str| {
        let value = response.headers().get(name)?.to_str().ok()?;
        Some(text::plain(value).into_owned())
    };
    if matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504) {
        let what = match status.as_u16() {
            429 => "asks for fewer requests",
            _ => "cannot answer at the moment",
        };
        let error = Error::new(
            ErrorKind::Network,
            format!("{} {what} (status {})", shown(url), status.as_u16()),
        )
        .help("try again later; what has come so far is kept");
        let after = response.headers().get(RETRY_AFTER);
        let after = after.and_then(|after| after.to_str().ok()?.trim().parse().ok());
        return Err(Failure::Passing(error, after.map(Duration::from_secs)));
    }
    Err(Failure::Refused(Refused {
        status,
        code: header("x-error-code").unwrap_or_default(),
        url: shown(url),
    }))
}

/// The next part of a body; a body that stops coming is one that has broken off.
pub(super) async fn next_part(
    response: &mut Response,
    url: &Url,
    stall: Duration,
) -> Result<Option<bytes::Bytes>, Failure> {
    let broken = |message: String| Error::new(ErrorKind::Network, message);
    match tokio::time::timeout(stall, response.chunk()).await {
        Ok(Ok(part)) => Ok(part),
        Ok(Err(error)) => {
            let message = format!("the connection to {} broke off", shown(url));
            let error = broken(message).because(error.without_url());
            Err(Failure::Passing(error, None))
        }
        Err(_) => {
            let message = format!("{} has sent nothing for {stall:?}", shown(url));
            Err(Failure::Passing(broken(message), None))
        }
    }
}

async fn read_to_end(
    mut response: Response,
    url: &Url,
    limit: u64,
    stall: Duration,
) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(part) = next_part(&mut response, url, stall).await? {
        if (body.len() + part.len()) as u64 > limit {
            let message = format!("{} sends more than {limit} bytes", shown(url));
            return Err(Error::new(ErrorKind::BadDownload, message).into());
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(endpoint: &str) -> Session {
        let token = Some(Token::new("hf_secret").unwrap());
        let endpoint = Url::parse(endpoint).unwrap();
        Session::new(endpoint, token, Pace::default(), false, Default::default()).unwrap()
    }

    #[test]
    fn the_token_belongs_to_one_origin_and_is_never_shown() {
        let session = session("http://127.0.0.1:8080/mirror/");
        for (url, own) in [
            ("http://127.0.0.1:8080/api", true),
            ("http://127.0.0.1:8081/api", false),
            ("https://127.0.0.1:8080/api", false),
            ("http://localhost:8080/api", false),
        ] {
            assert_eq!(session.is_own(&Url::parse(url).unwrap()), own, "{url}");
        }
        assert!(!format!("{session:?}").contains("hf_secret"));
        let url = "https://user:word@cdn.example/a/b?X-Signature=hf_secret#x";
        assert_eq!(shown(&Url::parse(url).unwrap()), "https://cdn.example/a/b");
        for bad in ["", "a b", "a\nb", "é"] {
            assert!(Token::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn parts_of_an_address_stay_parts() {
        let session = session("http://h/mirror/");
        let url = session.url(["api", "models", "a", "revision", "refs/pr/1"]);
        assert_eq!(url.path(), "/mirror/api/models/a/revision/refs%2Fpr%2F1");
        let url = session.url(["a", "resolve", "x?y#z", "é.json"]);
        assert_eq!(url.path(), "/mirror/a/resolve/x%3Fy%23z/%C3%A9.json");
    }
}
