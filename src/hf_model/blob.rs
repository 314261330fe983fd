//! One blob: its lock, its unfinished file, its bytes in ranges, its digest, its name.
//!
//! Ranges of one file come over several connections at once, and are written in order: the
//! unfinished file has no holes, so that its length alone says where to go on. What has come out of
//! order waits in memory, a few chunks at most.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap};
use reqwest::{Response, StatusCode, Url};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

use super::api::RemoteFile;
use super::client::{Event, Reporter};
use super::http::{Failure, Pauses, Refused, Session, accept, next_part};
use super::local::ModelFolder;
use super::lock::BlobLock;
use super::refusal::{self, Asked};
use super::writer::{Expected, Outcome, Writer};
use crate::error::{Error, ErrorKind, Result};

/// How often a file is fetched from the start before its digest is given up on.
const ROUNDS: usize = 2;

/// What the downloads of one snapshot share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) session: Session,
    pub(super) folder: ModelFolder,
    pub(super) id: String,
    pub(super) commit: String,
    pub(super) reporter: Reporter,
}

/// Puts a file into the snapshot, and gives how many bytes were downloaded for it.
pub(super) async fn fetch(context: &Arc<Context>, file: &RemoteFile) -> Result<u64> {
    let folder = &context.folder;
    let pointer = folder.pointer(&context.commit, &file.path);
    if pointer
        .metadata()
        .is_ok_and(|found| found.len() == file.size)
    {
        return Ok(0);
    }
    let lock_path = folder.lock(&file.etag);
    let _lock = BlobLock::take(
        &lock_path,
        context.session.pace.lock,
        || folder.downloaded(&file.etag),
        || {
            context.reporter.tell(Event::Waiting {
                path: &file.path,
                lock: &lock_path,
            });
        },
    )
    .await?;
    let blob = folder.blob(&file.etag);
    if blob.metadata().is_ok_and(|found| found.len() == file.size) {
        // Somebody else was faster, or another revision has the same file.
        folder.link(&file.etag, &pointer, &file.path, false)?;
        context.reporter.tell(Event::Finished { path: &file.path });
        return Ok(0);
    }
    let bytes = download(context, file).await?;
    folder.finish(&file.etag)?;
    folder.link(&file.etag, &pointer, &file.path, true)?;
    context.reporter.tell(Event::Finished { path: &file.path });
    Ok(bytes)
}

/// Downloads what the unfinished file lacks. When this returns it is whole, checked and on disk.
async fn download(context: &Arc<Context>, file: &RemoteFile) -> Result<u64> {
    let partial = context.folder.partial(&file.etag);
    let mut total = 0;
    let mut wrong = None;
    for _ in 0..ROUNDS {
        let expected = Expected {
            size: file.size,
            etag: file.etag.clone(),
            digest: file.digest(),
        };
        let mut writer = Writer::open(partial.clone(), expected).await?;
        let start = writer.start;
        let (came, ended) = transfer(context, file, &mut writer).await;
        total += came;
        let outcome = writer.finish().await?;
        match (ended, outcome) {
            (Ok(()), Outcome::Whole) => return Ok(total),
            // What another client had left may have been wrong; so may have been what came.
            (Ok(()), Outcome::Wrong { actual }) => {
                tracing::warn!(file = %crate::text::name(&file.path), "the digest is {actual}, not {}: the file is begun anew", file.etag);
                wrong = Some(actual);
            }
            (Ok(()), Outcome::Unfinished) | (Err(Stop::Failed(_)), Outcome::Wrong { .. }) => {
                return Err(Error::new(
                    ErrorKind::BadDownload,
                    "a download ended before its last byte",
                )
                .at(&partial));
            }
            (Err(Stop::Failed(error)), _) => return Err(error),
            // The server says that the file ends before the place where we wanted to go on, or has
            // another file now. If there was nothing to go on with, it is not our file's start.
            (Err(Stop::Changed(error)), _) => {
                tracing::warn!("{error:#}; the file is begun anew");
                if wrong.is_some() {
                    return Err(error);
                }
                wrong = Some(String::new());
            }
        }
        context.reporter.tell(Event::Restarted {
            path: &file.path,
            bytes: start + came,
        });
        remove(&partial)?;
    }
    let actual = wrong.filter(|actual| !actual.is_empty());
    let message = match actual {
        Some(actual) => format!(
            "{} of {} has the digest {actual}, but the Hub lists {}",
            file.path, context.id, file.etag
        ),
        None => format!(
            "{} of {} changes while it is downloaded",
            file.path, context.id
        ),
    };
    Err(Error::new(ErrorKind::BadDownload, message).help(
        "a proxy or mirror may be sending something else; try again, or from another network",
    ))
}

fn remove(partial: &std::path::Path) -> Result<()> {
    match std::fs::remove_file(partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove the unfinished download", partial, error))
        }
        _ => Ok(()),
    }
}

/// Why a transfer ended before the last byte.
enum Stop {
    Failed(Error),
    /// What has come so far and what comes now are not of one file.
    Changed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Why a range ended early.
enum RangeEnd {
    Stop(Stop),
    /// The server sends whole files only.
    NoRanges,
}

/// Where a file's bytes come from, once that is known.
struct Origin {
    file: RemoteFile,
    /// The address at the end of the redirects, so that the Hub is asked once for each file.
    address: Mutex<Option<Url>>,
    /// The tag that the storage gives it, which is its own business, but stays the same.
    tag: std::sync::Mutex<Option<String>>,
    whole_only: AtomicBool,
}

/// Brings the writer's file to its end. Gives the number of bytes that came, and how it ended.
async fn transfer(
    context: &Arc<Context>,
    file: &RemoteFile,
    writer: &mut Writer,
) -> (u64, Result<(), Stop>) {
    let origin = Arc::new(Origin {
        file: file.clone(),
        address: Mutex::default(),
        tag: std::sync::Mutex::default(),
        whole_only: AtomicBool::new(false),
    });
    let mut position = writer.start;
    let start = position;
    loop {
        match in_ranges(context, &origin, writer, &mut position).await {
            Ok(()) => return (position - start, Ok(())),
            Err(RangeEnd::NoRanges) if !origin.whole_only.swap(true, Ordering::Relaxed) => {
                tracing::info!(file = %crate::text::name(&file.path), "the server sends whole files only");
            }
            // It is known already, and allowed for.
            Err(RangeEnd::NoRanges) => {
                let message = "the server neither sends ranges nor whole files";
                let error = Error::new(ErrorKind::Network, message);
                return (position - start, Err(error.into()));
            }
            Err(RangeEnd::Stop(stop)) => return (position - start, Err(stop)),
        }
    }
}

/// A range that is being fetched; dropping it ends that.
struct Fetching {
    parts: mpsc::UnboundedReceiver<Bytes>,
    task: JoinHandle<Result<(), RangeEnd>>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn in_ranges(
    context: &Arc<Context>,
    origin: &Arc<Origin>,
    writer: &mut Writer,
    position: &mut u64,
) -> Result<(), RangeEnd> {
    let size = origin.file.size;
    let pace = &context.session.pace;
    let whole_only = origin.whole_only.load(Ordering::Relaxed);
    let (window, chunk) = match whole_only {
        true => (1, u64::MAX),
        false => (pace.window.max(1), pace.chunk_bytes.max(1)),
    };
    let mut next = *position;
    let mut flying: VecDeque<Fetching> = VecDeque::new();
    while *position < size {
        while flying.len() < window && next < size {
            let range = next..next.saturating_add(chunk).min(size);
            next = range.end;
            // Unbounded, and never more than a chunk long.
            let (sender, parts) = mpsc::unbounded_channel();
            let (context, origin) = (Arc::clone(context), Arc::clone(origin));
            let task =
                tokio::spawn(async move { fetch_range(&context, &origin, range, sender).await });
            flying.push_back(Fetching { parts, task });
        }
        let Some(mut first) = flying.pop_front() else {
            break;
        };
        while let Some(part) = first.parts.recv().await {
            let stop = |error: Error| RangeEnd::Stop(error.into());
            context.session.check_cancelled().map_err(stop)?;
            let len = part.len() as u64;
            writer.write(part).await.map_err(stop)?;
            *position += len;
            context.reporter.tell(Event::Advanced {
                path: &origin.file.path,
                bytes: len,
            });
        }
        match (&mut first.task).await {
            Ok(ended) => ended?,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {
                let error = Error::new(ErrorKind::Cancelled, "the download was cancelled");
                return Err(RangeEnd::Stop(error.into()));
            }
        }
    }
    Ok(())
}

/// Fetches a range, going on after every break, until it is complete or nothing comes any more.
async fn fetch_range(
    context: &Context,
    origin: &Origin,
    range: Range<u64>,
    parts: mpsc::UnboundedSender<Bytes>,
) -> Result<(), RangeEnd> {
    let session = &context.session;
    let mut pauses = Pauses::new(&session.pace, session.pace.tries);
    let mut position = range.start;
    let mut refused_before = false;
    while position < range.end {
        let before = position;
        let ended = {
            // Not held while waiting for another try: others may use the connection.
            let _connection = session.connections.acquire().await;
            stream_once(context, origin, &mut position, range.end, &parts).await
        };
        if position > before {
            pauses.reset();
        }
        match ended {
            Ok(()) => {}
            Err(Once::Range(end)) => return Err(end),
            Err(Once::Failure(Failure::Passing(error, wait))) => {
                let stop = |error: Error| RangeEnd::Stop(error.into());
                let pause = pauses.next(error, wait).map_err(stop)?;
                session.pause(pause).await.map_err(stop)?;
            }
            Err(Once::Failure(Failure::Final(error))) => return Err(RangeEnd::Stop(error.into())),
            // A signed address is good for a while only: the Hub gives a new one.
            Err(Once::Stale(address, _)) if !refused_before || position > before => {
                refused_before = true;
                let mut known = origin.address.lock().await;
                // Unless somebody else has a new one already.
                if known.as_ref() == Some(&*address) {
                    *known = None;
                }
            }
            Err(Once::Failure(Failure::Refused(refused)) | Once::Stale(_, refused)) => {
                let asked = Asked {
                    endpoint: session.endpoint.as_str(),
                    id: &context.id,
                    revision: &context.commit,
                    file: Some(&origin.file.path),
                    has_token: session.has_token(),
                };
                let error = refusal::explain(&refused, asked);
                return Err(RangeEnd::Stop(error.into()));
            }
        }
    }
    Ok(())
}

enum Once {
    Failure(Failure),
    /// An address that was good before is refused.
    Stale(Box<Url>, Refused),
    Range(RangeEnd),
}

impl From<Failure> for Once {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

fn changed(message: String) -> Once {
    let error = Error::new(ErrorKind::BadDownload, message);
    Once::Range(RangeEnd::Stop(Stop::Changed(error)))
}

/// One request, and what comes of it.
async fn stream_once(
    context: &Context,
    origin: &Origin,
    position: &mut u64,
    end: u64,
    parts: &mpsc::UnboundedSender<Bytes>,
) -> Result<(), Once> {
    let size = origin.file.size;
    let Answer {
        response,
        url,
        known,
    } = respond(context, origin, *position..end).await?;
    if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
        return Err(changed(format!(
            "{} has no byte {position}, though {size} bytes are declared",
            origin.file.path
        )));
    }
    let mut response = match (accept(response, &url), known) {
        (Ok(response), _) => response,
        (Err(Failure::Refused(refused)), Some(known)) => {
            return Err(Once::Stale(Box::new(known), refused));
        }
        (Err(failure), _) => return Err(failure.into()),
    };
    let bad = |message: String| {
        let error = Error::new(ErrorKind::BadDownload, message);
        Once::Failure(Failure::Final(error.help(
            "a proxy or mirror may be sending something else; try again, or from another network",
        )))
    };
    let headers = response.headers();
    same_tag(origin, headers)?;
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        return Err(bad(format!("{} comes compressed", origin.file.path)));
    }
    // Bytes that come before those that are wanted.
    let mut skip = 0;
    if response.status() == StatusCode::PARTIAL_CONTENT {
        let (first, of) = content_range(headers)
            .ok_or_else(|| bad(format!("{} comes without its range", origin.file.path)))?;
        if of.is_some_and(|of| of != size) {
            return Err(changed(format!(
                "{} has {} bytes now, and {size} are declared",
                origin.file.path,
                of.unwrap_or_default()
            )));
        }
        if first != *position {
            return Err(bad(format!(
                "{} comes from byte {first}, and byte {position} was asked for",
                origin.file.path
            )));
        }
    } else {
        let declared = headers.get(CONTENT_LENGTH);
        let declared = declared.and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
        if let Some(declared) = declared
            && declared != size
        {
            return Err(bad(format!(
                "{} has {declared} bytes, and {size} are declared",
                origin.file.path
            )));
        }
        if (*position > 0 || end < size) && !origin.whole_only.load(Ordering::Relaxed) {
            return Err(Once::Range(RangeEnd::NoRanges));
        }
        skip = *position;
    }
    while let Some(mut part) = next_part(&mut response, &url, context.session.pace.stall).await? {
        if skip > 0 {
            let ahead = part.len().min(usize::try_from(skip).unwrap_or(usize::MAX));
            let _ = part.split_to(ahead);
            skip -= ahead as u64;
        }
        if part.len() as u64 > end - *position {
            return Err(bad(format!(
                "{} goes on after the end of what was asked for (byte {end} of {size})",
                origin.file.path
            )));
        }
        if part.is_empty() {
            continue;
        }
        *position += part.len() as u64;
        if parts.send(part).is_err() {
            // Nobody waits for it any more.
            return Ok(());
        }
    }
    if *position < end {
        let message = format!(
            "{} broke off at byte {position} of {size}",
            origin.file.path
        );
        let error = Error::new(ErrorKind::Network, message);
        return Err(Failure::Passing(error, None).into());
    }
    Ok(())
}

/// An answer, of whatever status.
struct Answer {
    response: Response,
    url: Url,
    /// The address that was asked, if it was known from before.
    known: Option<Url>,
}

/// The answer to a request for a range, from the address that is known or through the Hub.
async fn respond(context: &Context, origin: &Origin, range: Range<u64>) -> Result<Answer, Failure> {
    let session = &context.session;
    let whole = range.start == 0 && range.end == origin.file.size;
    let header = format!("bytes={}-{}", range.start, range.end - 1);
    let header = (!whole).then_some(&*header);
    let mut address = origin.address.lock().await;
    if let Some(known) = address.clone() {
        drop(address);
        let (response, url) = session
            .get(&known, header, session.pace.stall, |_| Ok(()))
            .await?;
        return Ok(Answer {
            response,
            url,
            known: Some(known),
        });
    }
    // Held meanwhile: the others wait for the address, and do not all ask the Hub.
    let id = context.id.split('/');
    let path = ["resolve", &*context.commit].into_iter();
    let url = session.url(id.chain(path).chain(origin.file.path.split('/')));
    let announced = |headers: &HeaderMap| announced(&origin.file, headers);
    let (response, url) = session
        .get(&url, header, session.pace.stall, announced)
        .await?;
    if matches!(response.status().as_u16(), 200 | 206) {
        *address = Some(url.clone());
    }
    Ok(Answer {
        response,
        url,
        known: None,
    })
}

/// What the Hub says about the file has to be what its list says.
fn announced(file: &RemoteFile, headers: &HeaderMap) -> Result<(), Failure> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let wrong = |what: &str, found: &str, listed: &dyn std::fmt::Display| {
        let message = format!(
            "{} has the {what} {}, but the Hub lists {listed}",
            file.path,
            crate::text::quoted(found)
        );
        let error = Error::new(ErrorKind::BadDownload, message);
        Err(Failure::Final(error.help(
            "a proxy or mirror may be behind; try again later, or without it",
        )))
    };
    if let Some(etag) = header("x-linked-etag").map(plain_tag)
        && !etag.eq_ignore_ascii_case(&file.etag)
    {
        return wrong("tag", etag, &file.etag);
    }
    if let Some(size) = header("x-linked-size")
        && size.trim().parse() != Ok(file.size)
    {
        return wrong("size", size, &file.size);
    }
    Ok(())
}

/// Two ranges of one file have one tag.
fn same_tag(origin: &Origin, headers: &HeaderMap) -> Result<(), Once> {
    let Some(tag) = headers.get(ETAG).and_then(|tag| tag.to_str().ok()) else {
        return Ok(());
    };
    let mut known = origin
        .tag
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*known {
        Some(known) if known != tag => Err(changed(format!(
            "{} changed while it was downloaded: its tag was {} and is {}",
            origin.file.path,
            crate::text::quoted(known),
            crate::text::quoted(tag),
        ))),
        Some(_) => Ok(()),
        None => {
            *known = Some(tag.to_owned());
            Ok(())
        }
    }
}

/// A tag without quotes and weakness.
fn plain_tag(tag: &str) -> &str {
    tag.trim().trim_start_matches("W/").trim_matches('"')
}

/// First byte, and the size of the whole where it is known, of `bytes 5-9/10`.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, of) = text.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let (first, _) = range.split_once('-')?;
    let of = match of.trim() {
        "*" => None,
        of => Some(of.parse().ok()?),
    };
    Some((first.trim().parse().ok()?, of))
}

/// The start of a file as it is on the Hub, for a look at its header: `len` bytes from `start`.
pub(super) async fn peek(
    context: &Arc<Context>,
    file: &RemoteFile,
    range: Range<u64>,
) -> Result<Vec<u8>> {
    let origin = Arc::new(Origin {
        file: file.clone(),
        address: Mutex::default(),
        tag: std::sync::Mutex::default(),
        whole_only: AtomicBool::new(false),
    });
    let (sender, mut parts) = mpsc::unbounded_channel();
    let ended = fetch_range(context, &origin, range, sender).await;
    match ended {
        Ok(()) => {}
        Err(RangeEnd::Stop(Stop::Failed(error) | Stop::Changed(error))) => return Err(error),
        Err(RangeEnd::NoRanges) => {
            let message = "the server sends whole files only, so that their tensors are not known";
            return Err(
                Error::new(ErrorKind::Network, message).help("download the whole model instead")
            );
        }
    }
    let mut bytes = Vec::new();
    while let Some(part) = parts.recv().await {
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_answers_are_read_or_refused() {
        let range = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, text.parse().unwrap());
            content_range(&headers)
        };
        assert_eq!(range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(range("bytes 5-9/*"), Some((5, None)));
        for bad in [
            "bytes */10",
            "5-9/10",
            "bytes 5-9",
            "bytes -9/10",
            "bytes a-b/c",
        ] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }

    #[test]
    fn tags_are_compared_without_quotes() {
        for tag in ["\"ab\"", "W/\"ab\"", "ab", " \"ab\" "] {
            assert_eq!(plain_tag(tag), "ab");
        }
    }
}
