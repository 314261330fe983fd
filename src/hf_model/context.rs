//! What the downloads of one snapshot share.

use super::event::Reporter;
use super::http::Session;
use super::local::ModelFolder;

/// What the downloads of one snapshot share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) session: Session,
    pub(super) folder: ModelFolder,
    pub(super) id: String,
    pub(super) commit: String,
    pub(super) reporter: Reporter,
}
