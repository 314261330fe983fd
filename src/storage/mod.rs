//! Where bytes come from, where they go, and who moves them.

mod arena;
pub(crate) mod backends;
pub(crate) mod crew;
mod fault;
pub(crate) mod job;
pub(crate) mod kind;
pub(crate) mod local;
pub(crate) mod progress;
pub(crate) mod region;
pub(crate) mod source;
pub(crate) mod staging;
#[cfg(test)]
mod testing;

pub use fault::{Fault, FaultSource};
pub use kind::{BackendKind, UnavailableReason, UnknownBackend};
pub use local::{Access, DescriptorCache, LocalFile};
pub use source::{Identity, MemorySource, Source, read_exact_at};

/// Granularity of mappings and of pages that go back to the system, in bytes. Systems with larger
/// pages refuse the advice for a part of a page and keep the memory until the region goes.
pub(crate) const PAGE: usize = 4096;
