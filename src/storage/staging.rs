//! Staging buffers: where bytes wait that are not read into their tensors.
//!
//! A load makes a buffer when a staged read finds none at rest, so there are never more than reads
//! in flight, and uses it again until the load ends: page faults are paid once for each buffer, not
//! for each read. What was used last is used next, while it is in the processor's caches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::storage::arena::HUGE_PAGE;
use crate::storage::region::Region;

/// Buffers from this length on are rounded up to whole huge pages. Faulting one in takes about
/// 0.1 ms, as long as 80 small pages; from 512 KiB on that is less than half of what they take.
const WORTH_A_HUGE_PAGE: u64 = 512 << 10;

/// Bytes of a buffer for reads of at most `longest` bytes.
pub(crate) fn buffer_bytes(longest: u64) -> u64 {
    if longest < WORTH_A_HUGE_PAGE {
        longest
    } else {
        longest.next_multiple_of(HUGE_PAGE as u64)
    }
}

/// The buffers of a load.
#[derive(Debug)]
pub(crate) struct Staging {
    /// The length of each.
    bytes: u64,
    buffers: Mutex<Buffers>,
}

#[derive(Debug, Default)]
struct Buffers {
    at_rest: Vec<Arc<Region>>,
    /// So many exist, at rest or in use.
    #[cfg(test)]
    made: usize,
}

impl Staging {
    /// Buffers of `bytes` each, none of them made yet.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            bytes,
            buffers: Mutex::default(),
        }
    }

    /// A buffer that nobody uses: one at rest, or one of so many bytes by `make`.
    pub(crate) fn take(
        &self,
        make: impl FnOnce(u64) -> Result<Arc<Region>>,
    ) -> Result<Arc<Region>> {
        if let Some(buffer) = self.locked().at_rest.pop() {
            return Ok(buffer);
        }
        let buffer = make(self.bytes)?;
        #[cfg(test)]
        {
            self.locked().made += 1;
        }
        Ok(buffer)
    }

    /// A buffer whose user is done with it.
    pub(crate) fn give_back(&self, buffer: Arc<Region>) {
        self.locked().at_rest.push(buffer);
    }

    /// Buffers made so far.
    #[cfg(test)]
    pub(crate) fn made(&self) -> usize {
        self.locked().made
    }

    fn locked(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    #[test]
    fn long_buffers_end_with_a_huge_page_and_short_ones_where_they_end() {
        let huge = HUGE_PAGE as u64;
        for (longest, bytes) in [
            (0, 0),
            (5000, 5000),
            (WORTH_A_HUGE_PAGE - 1, WORTH_A_HUGE_PAGE - 1),
            (WORTH_A_HUGE_PAGE, huge),
            (huge, huge),
            (4 * huge - 14_336, 4 * huge),
            (4 * huge + 1, 5 * huge),
        ] {
            assert_eq!(buffer_bytes(longest), bytes);
        }
    }

    #[test]
    fn buffers_are_used_again_and_made_only_for_want_of_one() {
        let staging = Staging::new(10_000);
        let make = |bytes: u64| Ok(Region::arena(bytes as usize, &[]).unwrap());
        let (first, second) = (staging.take(make).unwrap(), staging.take(make).unwrap());
        let last = Arc::as_ptr(&second);
        for buffer in [first, second] {
            staging.give_back(buffer);
        }
        for _ in 0..10 {
            let buffer = staging.take(make).unwrap();
            assert_eq!(Arc::as_ptr(&buffer), last, "the one that was used last");
            staging.give_back(buffer);
        }
        assert_eq!(staging.made(), 2);
    }

    #[test]
    fn a_buffer_that_cannot_be_had_is_not_counted() {
        let staging = Staging::new(10_000);
        let refused = staging.take(|_| Err(Error::new(ErrorKind::OutOfMemory, "none")));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(staging.made(), 0);
    }
}
