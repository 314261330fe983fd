//! Models that are named by their ids: in the cache of the Hub, or downloaded into it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use clap::Args;
use tensora::hf_model::{self, Client, Event, Pull};
use tensora::{Error, ErrorKind, text};

use crate::progress::Progress;

/// How the model of an id is found.
#[derive(Debug, Clone, Default, Args)]
pub struct Hub {
    /// Branch, tag or commit of a model that is named by its id
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Make no request: take what is in the Hub cache, as with HF_HUB_OFFLINE=1
    #[arg(long)]
    offline: bool,
}

impl Hub {
    pub fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// The path that a name stands for: itself where it exists, else the snapshot of a model, which
    /// is downloaded where it is not in the cache. `adjust` says what is wanted beside its weights.
    pub fn find(&self, name: &Path, adjust: impl FnOnce(Pull) -> Pull) -> Result<PathBuf> {
        let revision = self.revision.as_deref();
        // A path needs nothing that the environment says about the Hub.
        if is_path(name) {
            return Ok(hf_model::resolve(name, revision)?);
        }
        let client = self.client(false)?;
        let found = client.resolve(name, revision, adjust);
        Ok(found.map_err(|error| no_path_either(error, name))?)
    }

    /// The client that the environment and these arguments ask for. It shows its progress on a
    /// terminal, unless `quiet` or `HF_HUB_DISABLE_PROGRESS_BARS` say otherwise.
    pub fn client(&self, quiet: bool) -> Result<Client> {
        let client = Client::from_env()?;
        let offline = self.offline || client.is_offline();
        let client = client.offline(offline);
        let no_bars = std::env::var("HF_HUB_DISABLE_PROGRESS_BARS")
            .is_ok_and(|value| ["1", "ON", "YES", "TRUE"].contains(&&*value.to_ascii_uppercase()));
        if quiet || no_bars {
            return Ok(client);
        }
        let bar = Bar::default();
        Ok(client.on_event(move |event| bar.show(event)))
    }
}

/// Whether a name is a path that is there, a dangling link included.
pub fn is_path(name: &Path) -> bool {
    name.symlink_metadata().is_ok()
}

/// A name may be a mistyped path: a model that cannot be had is only half of what to say.
fn no_path_either(error: Error, name: &Path) -> Error {
    let about_the_model = matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::NotCached | ErrorKind::Network | ErrorKind::Denied
    );
    // One with a path speaks of that path.
    if !about_the_model || error.path() == Some(name) {
        return error;
    }
    let name = text::quoted(&name.to_string_lossy());
    let remedy = match error.remedy() {
        Some(remedy) => format!("there is no file or folder {name} here, either; {remedy}"),
        None => format!("there is no file or folder {name} here, either"),
    };
    error.help(remedy)
}

/// The bar of one download at a time.
#[derive(Clone, Default)]
struct Bar(Arc<Mutex<Shown>>);

#[derive(Default)]
struct Shown {
    progress: Option<Progress>,
    files: u64,
}

impl Bar {
    fn show(&self, event: Event<'_>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Planned {
                files,
                bytes,
                present,
            } if files > 0 => {
                let progress = Progress::download(bytes);
                progress.start_at(present);
                *shown = Shown {
                    progress: Some(progress),
                    files,
                };
            }
            Event::Finished { .. } => {
                shown.files = shown.files.saturating_sub(1);
                if shown.files == 0 {
                    // The line goes away, and what the program prints takes its place.
                    shown.progress = None;
                }
            }
            Event::Advanced { bytes, .. } => {
                if let Some(progress) = &shown.progress {
                    progress.add(bytes);
                }
            }
            Event::Restarted { bytes, .. } => {
                if let Some(progress) = &shown.progress {
                    progress.take_back(bytes);
                }
            }
            Event::Waiting { path, .. } => {
                eprintln!(
                    "note: waiting for another process, which downloads {}",
                    text::name(path)
                );
            }
            _ => {}
        }
    }
}
