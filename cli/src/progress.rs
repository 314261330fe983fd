//! Progress on stderr, where that is a terminal; elsewhere nothing is printed.

use indicatif::{ProgressBar, ProgressStyle};

/// A line that goes away when it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// Bytes out of `total`.
    pub fn bytes(what: &'static str, total: u64) -> Self {
        let template =
            "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
        Self::new(ProgressBar::new(total), template, what.to_owned())
    }

    /// Bytes out of `total` that come from afar, so that the end is worth foretelling.
    pub fn download(total: u64) -> Self {
        let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";
        Self::new(ProgressBar::new(total), template, "downloading".to_owned())
    }

    /// Something whose end is not known.
    pub fn waiting(what: String) -> Self {
        let progress = Self::new(ProgressBar::new_spinner(), "{spinner} {msg}", what);
        progress
            .0
            .enable_steady_tick(std::time::Duration::from_millis(100));
        progress
    }

    /// So many more bytes are done.
    pub fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// What was there before: it does not count for the rate.
    pub fn start_at(&self, bytes: u64) {
        self.0.set_position(bytes);
        self.0.reset_eta();
    }

    /// So many bytes do not count any more.
    pub fn take_back(&self, bytes: u64) {
        self.0.set_position(self.0.position().saturating_sub(bytes));
    }

    fn new(bar: ProgressBar, template: &str, message: String) -> Self {
        bar.set_style(
            ProgressStyle::with_template(template).expect("the templates above are valid"),
        );
        bar.set_message(message);
        Self(bar)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
