//! How long to wait before another try.

use std::time::{Duration, SystemTime};

use super::client::Pace;
use crate::error::{Error, Result};

/// The longest pause between two tries that is not the server's wish.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The pauses between tries: twice as long each time, and as long as the server asks for.
#[derive(Debug)]
pub(super) struct Pauses {
    first: Duration,
    patience: Duration,
    tries: u32,
    done: u32,
}

impl Pauses {
    pub(super) fn new(pace: &Pace, tries: u32) -> Self {
        Self {
            first: pace.backoff,
            patience: pace.retry_after,
            tries,
            done: 0,
        }
    }

    /// Something has come: the count begins again.
    pub(super) fn reset(&mut self) {
        self.done = 0;
    }

    /// How long to wait before the next try, or the error where there is none.
    pub(super) fn next(&mut self, error: Error, wish: Option<Duration>) -> Result<Duration> {
        if self.done >= self.tries {
            return Err(error);
        }
        self.done += 1;
        if let Some(wish) = wish {
            if wish > self.patience {
                let message = format!("try again in {} s, as the server asks", wish.as_secs());
                return Err(error.help(message));
            }
            tracing::warn!(
                "{}; trying again in {wish:?}, as the server asks",
                why(&error)
            );
            return Ok(wish);
        }
        let pause = self.first.saturating_mul(1 << (self.done - 1).min(16));
        let pause = pause.min(MAX_PAUSE).mul_f64(jitter());
        tracing::warn!("{}; trying again in {pause:.1?}", why(&error));
        Ok(pause)
    }
}

/// The error and the last of its causes, which is what the system said.
fn why(error: &Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    match std::error::Error::source(error) {
        Some(_) => crate::text::message(&format!("{error:#}: {last}")).into_owned(),
        None => format!("{error:#}"),
    }
}

/// Between 0.75 and 1.25, so that many who were refused together do not come back together.
fn jitter() -> f64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let mixed = u64::from(now.subsec_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ u64::from(std::process::id()).wrapping_mul(0xff51_afd7_ed55_8ccd);
    0.75 + 0.5 * ((mixed >> 40) as f64 / f64::from(1 << 24))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn pauses_grow_begin_again_and_end() {
        let pace = Pace::default();
        let error = || Error::new(ErrorKind::Network, "no");
        let mut pauses = Pauses::new(&pace, 2);
        let first = pauses.next(error(), None).unwrap();
        let second = pauses.next(error(), None).unwrap();
        assert!(second > first);
        assert!(pauses.next(error(), None).is_err());
        pauses.reset();
        let wish = Duration::from_secs(7);
        assert_eq!(pauses.next(error(), Some(wish)).unwrap(), wish);
        let long = Some(pace.retry_after + Duration::from_secs(1));
        let error = pauses.next(error(), long).unwrap_err();
        assert!(error.remedy().unwrap().contains("as the server asks"));
    }
}
