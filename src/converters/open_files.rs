//! Files of an output that are open for writing: the ones used last, and few of them.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;

/// Handles by the number of their file, the one used last at the end.
#[derive(Debug)]
pub(super) struct OpenFiles {
    most: usize,
    handles: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl OpenFiles {
    /// At most `most` are open, however many files there are.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            handles: Mutex::default(),
        }
    }

    /// The handle of a file, which `open` makes where there is none.
    pub(super) fn get(
        &self,
        file: usize,
        open: impl FnOnce() -> Result<File>,
    ) -> Result<Arc<File>> {
        let mut handles = self.lock();
        if let Some(at) = handles.iter().position(|entry| entry.0 == file)
            && let Some(entry) = handles.remove(at)
        {
            let handle = Arc::clone(&entry.1);
            handles.push_back(entry);
            return Ok(handle);
        }
        let handle = Arc::new(open()?);
        while handles.len() >= self.most {
            handles.pop_front();
        }
        handles.push_back((file, Arc::clone(&handle)));
        Ok(handle)
    }

    /// Closes a file, once those who write to it are done.
    pub(super) fn close(&self, file: usize) {
        self.lock().retain(|entry| entry.0 != file);
    }

    /// Closes all.
    pub(super) fn close_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(usize, Arc<File>)>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
