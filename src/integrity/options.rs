//! How digests are computed.

use crate::checkpoint::Checkpoint;
use crate::load::{CancelToken, Loader};
use crate::settings::{Order, Settings};
use crate::trace::Trace;

/// Bytes in memory where nothing else is said.
const DEFAULT_BUDGET: u64 = 512 << 20;

/// How to hash.
#[derive(Debug, Clone, Default)]
pub struct HashOptions {
    /// How to read. The budget is that of all bytes in memory, those that are being hashed
    /// included, and 512 MiB where it is `None`. Order and alignment are of no account.
    pub settings: Settings,
    /// Ends it from another thread.
    pub cancel: CancelToken,
    /// Records the loads that it takes: one of whole tensors, one of pieces.
    pub trace: Option<Trace>,
}

impl HashOptions {
    pub(super) fn budget(&self) -> u64 {
        self.settings.budget.unwrap_or(DEFAULT_BUDGET)
    }

    /// A loader of `checkpoint` with these options and another budget.
    pub(super) fn loader(&self, checkpoint: &Checkpoint, budget: u64, order: Order) -> Loader {
        let settings = Settings {
            budget: Some(budget),
            order,
            align: None,
            ..self.settings.clone()
        };
        let loader = checkpoint
            .loader()
            .settings(settings)
            .cancel_with(self.cancel.clone());
        match &self.trace {
            Some(trace) => loader.trace(trace),
            None => loader,
        }
    }
}
