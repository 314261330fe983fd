//! One blob: its lock, its unfinished file, its bytes in ranges, its digest, its name.
//!
//! Ranges of one file come over several connections at once, and are written in order: the
//! unfinished file has no holes, so that its length alone says where to go on. What has come out of
//! order waits in memory, a few chunks at most.

use std::sync::Arc;

use super::api::RemoteFile;
use super::context::Context;
use super::event::Event;
use super::local::is_of_size;
use super::lock::BlobLock;
use super::range::Stop;
use super::transfer::transfer;
use super::writer::{Expected, Outcome, Writer};
use crate::error::{Error, ErrorKind, Result};

/// How often a file is fetched from the start before its digest is given up on.
const ROUNDS: usize = 2;

/// Puts a file into the snapshot, and gives how many bytes were downloaded for it.
pub(super) async fn fetch(context: &Arc<Context>, file: &RemoteFile) -> Result<u64> {
    let folder = &context.folder;
    let pointer = folder.pointer(&context.commit, &file.path);
    if folder.holds(&context.commit, file) {
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
    if is_of_size(&folder.blob(&file.etag), file.size) {
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
