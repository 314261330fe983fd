//! Ending loads from outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::load::delivery::Delivery;

/// Ends loads from another thread, or from a signal handler's thread. One token may serve several
/// loads, one after the other or at once.
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    inner: Arc<TokenState>,
}

#[derive(Debug, Default)]
struct TokenState {
    cancelled: AtomicBool,
    loads: Mutex<Vec<Weak<Delivery>>>,
}

impl CancelToken {
    /// Ends the loads that this token was given to, and refuses those to come. Reads in flight
    /// are drained before the load returns its error.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::SeqCst);
        let loads = self
            .inner
            .loads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loads
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|load| load.end_from_outside());
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::SeqCst)
    }

    /// Ends the load behind `delivery` when the token is cancelled, or has been.
    pub(super) fn watch(&self, delivery: &Arc<Delivery>) {
        let mut loads = self
            .inner
            .loads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loads.retain(|load| load.strong_count() > 0);
        loads.push(Arc::downgrade(delivery));
        drop(loads);
        // Looked at after the list has the load: a cancel in between is seen by one or the other.
        if self.is_cancelled() {
            delivery.end_from_outside();
        }
    }
}
