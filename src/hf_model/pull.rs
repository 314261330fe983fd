//! What is asked of the client, and what it gives back.

use std::path::{Path, PathBuf};

use super::cache;
use crate::formats::Layout;
use crate::plan::Selection;

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
