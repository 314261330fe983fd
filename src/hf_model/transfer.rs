//! The bytes of one file, in ranges: several at once, written in order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::api::RemoteFile;
use super::context::Context;
use super::event::Event;
use super::http::{Failure, shown};
use super::pauses::Pauses;
use super::range::{Once, Origin, RangeEnd, Stop, stream_once};
use super::refusal::{self, Asked};
use super::writer::Writer;
use crate::error::{Error, ErrorKind, Result};

/// Brings the writer's file to its end. Gives the number of bytes that came, and how it ended.
pub(super) async fn transfer(
    context: &Arc<Context>,
    file: &RemoteFile,
    writer: &mut Writer,
) -> (u64, Result<(), Stop>) {
    let origin = Arc::new(Origin::of(file));
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
                let endpoint = shown(&session.endpoint);
                let asked = Asked {
                    endpoint: &endpoint,
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

/// The start of a file as it is on the Hub, for a look at its header: `len` bytes from `start`.
pub(super) async fn peek(
    context: &Arc<Context>,
    file: &RemoteFile,
    range: Range<u64>,
) -> Result<Vec<u8>> {
    let origin = Arc::new(Origin::of(file));
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
