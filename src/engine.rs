//! The engine: what loads share. Cheap to clone.

use std::sync::{Arc, OnceLock};

use crate::storage::DescriptorCache;

/// Owns what loads share: the cache of open descriptors, worker threads, and what was probed of
/// this machine. Clones are handles to the same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    descriptors: Arc<DescriptorCache>,
}

impl Engine {
    /// A fresh engine, for callers that do not want to share the default one.
    pub fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                descriptors: Arc::new(DescriptorCache::for_this_process()),
            }),
        }
    }

    /// The lazily made engine that the convenience functions use: the only global of the library.
    pub fn shared() -> Self {
        static SHARED: OnceLock<Engine> = OnceLock::new();
        SHARED.get_or_init(Engine::new).clone()
    }

    /// The bounded cache of open files.
    pub fn descriptors(&self) -> &Arc<DescriptorCache> {
        &self.inner.descriptors
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self::shared()
    }
}
