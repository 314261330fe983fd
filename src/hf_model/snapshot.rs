//! A model made complete: what the cache has, what the Hub says, what is fetched, what is noted.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::api::{self, RemoteFile};
use super::blob;
use super::cache::{check_id, check_revision, is_commit, not_cached};
use super::client::Client;
use super::context::Context;
use super::event::Event;
use super::files;
use super::http::Session;
use super::is_side_file;
use super::local::{ModelFolder, Need};
use super::pull::{Pull, PulledFile, Snapshot};
use crate::converters::folder::require_space;
use crate::error::{Error, ErrorKind, Result};

/// How many missing files a message lists.
const LISTED: usize = 3;

/// A snapshot that needs no request: a commit that is complete, or whatever there is when offline.
pub(super) fn cached(client: &Client, pull: &Pull) -> Result<Option<Snapshot>> {
    check_id(&pull.id)?;
    check_revision(pull.revision_or_main())?;
    let found = match client.cache.snapshot(&pull.id, pull.revision.as_deref()) {
        Ok(path) => path,
        Err(error) if error.kind() != ErrorKind::NotCached => return Err(error),
        Err(error) if client.offline => {
            return Err(error.help(
                "no request is made offline (HF_HUB_OFFLINE or the option offline): run once without it, or name a commit, a path or another HF_HUB_CACHE",
            ));
        }
        Err(_) => return Ok(None),
    };
    let commit = found.file_name().unwrap_or_default();
    let commit = commit.to_string_lossy().into_owned();
    if !client.offline && !is_commit(pull.revision_or_main()) {
        return Ok(None);
    }
    let folder = ModelFolder::new(&client.cache, &pull.id, client.symlinks);
    let need = folder.need(&commit, pull)?;
    match (need.is_met(), client.offline) {
        (true, _) => Ok(Some(snapshot(&folder, commit, &need))),
        (false, false) => Ok(None),
        // What there may be beside it cannot be asked for.
        (false, true) if need.is_usable() => Ok(Some(snapshot(&folder, commit, &need))),
        (false, true) => Err(incomplete(pull, &commit, &need).at(found)),
    }
}

fn incomplete(pull: &Pull, commit: &str, need: &Need) -> Error {
    let what = match need.missing.as_deref() {
        None | Some([]) => "it has no complete set of weights".to_owned(),
        Some(missing) => {
            let shown = missing[..missing.len().min(LISTED)].join(", ");
            let count = crate::text::counted(missing.len() as u64, "file");
            let more = if missing.len() > LISTED { ", ..." } else { "" };
            format!("{count} of {} missing: {shown}{more}", need.files.len())
        }
    };
    not_cached(format!(
        "the snapshot of {} at {commit} is not complete: {what}",
        pull.id
    ))
    .help("run once without HF_HUB_OFFLINE and the option offline: the download goes on where it stopped")
}

/// A complete snapshot of the cache.
fn snapshot(folder: &ModelFolder, commit: String, need: &Need) -> Snapshot {
    let mut files: Vec<PulledFile> = need
        .files
        .iter()
        .map(|path| PulledFile {
            size: folder
                .pointer(&commit, path)
                .metadata()
                .map_or(0, |found| found.len()),
            path: path.clone(),
            downloaded: 0,
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Snapshot {
        path: folder.snapshot(&commit),
        commit,
        files,
    }
}

/// Asks the Hub, and fetches what is not there.
pub(super) async fn pull(client: &Client, pull: &Pull, session: Session) -> Result<Snapshot> {
    let context = Context {
        session,
        folder: ModelFolder::new(&client.cache, &pull.id, client.symlinks),
        id: pull.id.clone(),
        commit: String::new(),
        reporter: client.reporter.clone(),
    };
    let fallback = complete_before(client, pull, &context.folder);
    let revision = pull.revision_or_main();
    let commit = match is_commit(revision) {
        true => Ok(revision.to_ascii_lowercase()),
        // What would do as well is not waited for long.
        false => {
            let tries = fallback.as_ref().map_or(context.session.pace.tries, |_| 0);
            let asked = api::commit(&context.session, &pull.id, revision, tries);
            context.session.unless_cancelled(asked).await
        }
    };
    let commit = match (commit, fallback) {
        (Ok(commit), Some(Fallback { found, whole: true })) if commit == found.commit => {
            // Best effort: the cache may be read-only, and the snapshot is complete.
            let _ = context.folder.write_ref(revision, &commit);
            return Ok(found);
        }
        (Ok(commit), fallback) => (commit, fallback),
        (Err(error), Some(fallback)) if error.kind() != ErrorKind::Cancelled => {
            return Ok(fallback.instead(&error, pull));
        }
        (Err(error), _) => return Err(error),
    };
    let (commit, fallback) = commit;
    let context = Arc::new(Context {
        commit: commit.clone(),
        ..context
    });
    let work = fetch_all(&context, pull);
    let files = match (context.session.unless_cancelled(work).await, fallback) {
        (Ok(files), _) => files,
        // A cache that cannot be written to, or a full disk, still has what it has; and without the
        // Hub, the weights of this very commit do without side files that nobody knows of.
        (Err(error), Some(fallback))
            if error.kind() == ErrorKind::Io
                || error.kind() == ErrorKind::Network && fallback.found.commit == commit =>
        {
            return Ok(fallback.instead(&error, pull));
        }
        (Err(error), _) => return Err(error),
    };
    context.folder.write_ref(revision, &commit)?;
    Ok(Snapshot {
        path: context.folder.snapshot(&commit),
        commit,
        files,
    })
}

/// What the cache has of a revision, if it can be loaded.
struct Fallback {
    found: Snapshot,
    /// Nothing has to be asked to know that it is complete.
    whole: bool,
}

impl Fallback {
    fn instead(self, error: &Error, pull: &Pull) -> Snapshot {
        let commit = &self.found.commit;
        tracing::warn!(
            "{error:#}; {} is loaded from the cache, at commit {commit}",
            pull.id
        );
        self.found
    }
}

fn complete_before(client: &Client, pull: &Pull, folder: &ModelFolder) -> Option<Fallback> {
    let found = client.cache.snapshot(&pull.id, pull.revision.as_deref());
    let found = found.ok()?;
    let commit = found.file_name()?.to_str()?.to_owned();
    let need = folder.need(&commit, pull).ok()?;
    need.is_usable().then(|| Fallback {
        found: snapshot(folder, commit, &need),
        whole: need.is_met(),
    })
}

async fn fetch_all(context: &Arc<Context>, pull: &Pull) -> Result<Vec<PulledFile>> {
    let listing = api::files(&context.session, &pull.id, &context.commit).await?;
    if listing.is_empty() {
        let message = format!("{} has no files at {}", pull.id, context.commit);
        return Err(Error::new(ErrorKind::NoWeights, message)
            .help("name another revision, or another model"));
    }
    let folder = &context.folder;
    folder.prepare(&context.commit)?;
    let chosen = files::choose(context, &listing, pull).await?;
    let absent: Vec<&RemoteFile> = chosen
        .files
        .iter()
        .filter(|file| !folder.holds(&context.commit, file))
        .collect();
    let begun = |file: &&RemoteFile| {
        let here = [folder.blob(&file.etag), folder.partial(&file.etag)];
        let len = here
            .iter()
            .filter_map(|path| Some(path.metadata().ok()?.len()));
        len.max().unwrap_or(0).min(file.size)
    };
    let sum = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0, u64::saturating_add);
    let bytes = sum(&mut absent.iter().map(|file| file.size));
    let present = sum(&mut absent.iter().map(begun));
    context.reporter.tell(Event::Planned {
        files: absent.len() as u64,
        bytes,
        present,
    });
    require_space(&folder.snapshot(&context.commit), bytes - present)?;
    let mut pulled = fetch_each(context, &chosen.files).await?;
    if let Some((path, bytes)) = chosen.index
        && let Some(index) = pulled.iter_mut().find(|file| file.path == path)
    {
        index.downloaded += bytes;
    }
    pulled.sort_by(|a, b| a.path.cmp(&b.path));
    if pull.selection.is_none() {
        let weights = chosen.files.iter().filter(|file| !is_side_file(&file.path));
        let weights: Vec<RemoteFile> = weights.cloned().collect();
        folder.write_weights(&context.commit, &weights)?;
    }
    if pull.side_files {
        // Only now: with the list, a later run takes its side files for complete.
        folder.write_listing(&context.commit, &listing)?;
    }
    Ok(pulled)
}

/// Some files at once; the first error ends all, and what has come of the others is kept.
async fn fetch_each(context: &Arc<Context>, files: &[RemoteFile]) -> Result<Vec<PulledFile>> {
    let at_once = context.session.pace.files.max(1);
    let mut waiting = files.iter();
    let mut flying: JoinSet<Result<PulledFile>> = JoinSet::new();
    let mut pulled = Vec::with_capacity(files.len());
    loop {
        while flying.len() < at_once
            && let Some(file) = waiting.next()
        {
            let (context, file) = (Arc::clone(context), file.clone());
            flying.spawn(async move {
                let downloaded = blob::fetch(&context, &file).await?;
                Ok(PulledFile {
                    path: file.path,
                    size: file.size,
                    downloaded,
                })
            });
        }
        match flying.join_next().await {
            None => return Ok(pulled),
            Some(Ok(done)) => pulled.push(done?),
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Some(Err(_)) => {
                let message = "the download was cancelled";
                return Err(Error::new(ErrorKind::Cancelled, message));
            }
        }
    }
}
