//! From a model id to bytes: the Hugging Face Hub's cache, and downloads into it.
//!
//! [`HubCache`] is the cache that the Hub's own tools keep, and looks things up in it: no lock, no
//! write, no request. A [`Client`] adds what is missing: [`Client::pull`] looks into the cache
//! first, and asks the Hub only where the cache does not have the answer.
//!
//! ```no_run
//! use tensora::hf_model::{Client, Pull};
//!
//! fn main() -> tensora::Result<()> {
//!     let client = Client::from_env()?;
//!     let snapshot = client.pull(&Pull::new("Qwen/Qwen3-0.6B"))?;
//!     let checkpoint = tensora::Checkpoint::open(snapshot.path())?;
//!     println!("{} bytes", checkpoint.total_bytes());
//!     Ok(())
//! }
//! ```
//!
//! What is downloaded lies as `huggingface_hub` for Python lays it out (blobs, snapshots, refs),
//! and is locked with the same lock files, so that both can share a cache at the same time. Neither
//! relies on the locks: file systems without working locks cost a second download, never a
//! damaged blob.
//!
//! The environment is read by the `from_env` functions, and nowhere else.

mod api;
mod blob;
mod cache;
mod client;
mod context;
mod env;
mod event;
mod files;
mod http;
mod local;
mod lock;
mod models;
mod pace;
mod pauses;
mod pull;
mod range;
mod refusal;
mod snapshot;
mod transfer;
mod writer;

use std::path::{Path, PathBuf};

use crate::error::Result;

pub use cache::HubCache;
pub use client::Client;
pub use event::Event;
pub use models::{CachedModel, CachedSnapshot};
pub use pace::Pace;
pub use pull::{Pull, PulledFile, Snapshot};

/// Whether a file name is that of a configuration or tokenizer file, and not of weights or of an
/// index of them: exactly what a conversion copies along.
pub fn is_side_file(name: &str) -> bool {
    crate::converters::is_companion(name)
}

/// A checkpoint's path from what a user typed: a path that exists, else a model id that is looked
/// up in the cache of [`HubCache::from_env`]. Asks no server; [`Client::resolve`] does.
///
/// # Errors
/// As [`HubCache::resolve`]; [`NotFound`](crate::ErrorKind::NotFound) when the environment tells no
/// cache folder.
pub fn resolve(name_or_path: impl AsRef<Path>, revision: Option<&str>) -> Result<PathBuf> {
    let name = name_or_path.as_ref();
    // A path needs no cache, and so no environment that tells where it would be.
    match cache::existing(name, revision) {
        Some(path) => Ok(path),
        None => HubCache::from_env()?.resolve(name, revision),
    }
}
