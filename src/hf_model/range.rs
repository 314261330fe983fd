//! One request for a range of a file, and everything that can be wrong with its answer.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap};
use reqwest::{Response, StatusCode, Url};
use tokio::sync::{Mutex, mpsc};

use super::api::RemoteFile;
use super::context::Context;
use super::http::{Failure, Refused, accept, next_part};
use crate::error::{Error, ErrorKind};

/// Why a transfer ended before the last byte.
pub(super) enum Stop {
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
pub(super) enum RangeEnd {
    Stop(Stop),
    /// The server sends whole files only.
    NoRanges,
}

/// Where a file's bytes come from, once that is known.
pub(super) struct Origin {
    pub(super) file: RemoteFile,
    /// The address at the end of the redirects, so that the Hub is asked once for each file.
    pub(super) address: Mutex<Option<Url>>,
    /// The tag that the storage gives it, which is its own business, but stays the same.
    tag: std::sync::Mutex<Option<String>>,
    pub(super) whole_only: AtomicBool,
}

impl Origin {
    pub(super) fn of(file: &RemoteFile) -> Self {
        Self {
            file: file.clone(),
            address: Mutex::default(),
            tag: std::sync::Mutex::default(),
            whole_only: AtomicBool::new(false),
        }
    }
}

pub(super) enum Once {
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
pub(super) async fn stream_once(
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
