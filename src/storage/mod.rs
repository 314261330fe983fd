//! Where bytes come from, where they go, and who moves them.

pub(crate) mod kind;
pub(crate) mod local;
pub(crate) mod source;

pub use kind::{BackendKind, UnavailableReason, UnknownBackend};
pub use local::{Access, DescriptorCache, LocalFile};
pub use source::{Identity, MemorySource, Source, read_exact_at};
