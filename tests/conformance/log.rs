//! What the library says through `tracing`, for children that check it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Messages of this process from now on.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Starts listening, once in a process.
    pub fn listen() -> Self {
        let log = Self::default();
        tracing::subscriber::set_global_default(log.clone()).unwrap();
        log
    }

    /// What was said since the last call, as far as it has `part` in it.
    pub fn take(&self, part: &str) -> Vec<String> {
        let mut messages = std::mem::take(&mut *self.0.lock().unwrap());
        messages.retain(|message| message.contains(part));
        messages
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tensora")
    }

    fn event(&self, event: &Event<'_>) {
        struct Message<'a>(&'a mut String);
        impl Visit for Message<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                if field.name() == "message" {
                    *self.0 = format!("{value:?}");
                }
            }
        }
        let mut text = String::new();
        event.record(&mut Message(&mut text));
        self.0.lock().unwrap().push(text);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
