//! Destination memory: the one place that decides how it is allocated.
//!
//! Anonymous mappings, so that no pass zeroes them and dropped pages can go back one by one;
//! 2 MiB-aligned with huge pages asked for, because page faults and not copies are what a warm
//! load pays for (`docs/architecture.md` has the figures).
#![allow(unsafe_code)]

use std::io;

use memmap2::{MmapOptions, MmapRaw};

use crate::storage::PAGE;

/// Alignment that lets the system back memory with transparent huge pages, in bytes.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// A zeroed, readable and writable stretch of private memory.
#[derive(Debug)]
pub(crate) struct Arena {
    map: MmapRaw,
    /// Bytes from the start of the mapping to the aligned base.
    skip: usize,
    len: usize,
}

impl Arena {
    /// Reserves `len` bytes (at least one page). Nothing is touched: pages appear as they are
    /// written to.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let len = len
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let huge = len >= HUGE_PAGE;
        let slack = if huge { HUGE_PAGE } else { 0 };
        let total = len.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut options = MmapOptions::new();
        options.len(total);
        if !cfg!(miri) {
            options.no_reserve_swap();
        }
        let map = MmapRaw::from(options.map_anon()?);
        let skip = if huge {
            map.as_ptr().align_offset(HUGE_PAGE)
        } else {
            0
        };
        #[cfg(all(target_os = "linux", not(miri)))]
        if huge {
            // Whole huge pages only: the tail stays on small pages, or it would cost up to 2 MiB.
            // Systems without huge pages refuse; that costs speed and nothing else.
            let whole = len - len % HUGE_PAGE;
            let _ = map.advise_range(memmap2::Advice::HugePage, skip, whole);
        }
        Ok(Self { map, skip, len })
    }

    /// The aligned base.
    pub(crate) fn base(&self) -> *mut u8 {
        // SAFETY: `skip` is at most one huge page and the mapping is longer by as much.
        unsafe { self.map.as_mut_ptr().add(self.skip) }
    }

    /// Usable bytes from the base, a whole number of pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Gives whole pages back to the system; reading them again gives zeros.
    ///
    /// # Safety
    /// Nobody may hold a reference into `offset..offset + len`.
    pub(crate) unsafe fn discard(&self, offset: usize, len: usize) {
        #[cfg(all(target_os = "linux", not(miri)))]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the caller vouches that the pages are not referenced any more.
            let _ = unsafe {
                self.map
                    .unchecked_advise_range(advice, self.skip + offset, len)
            };
        }
        #[cfg(not(all(target_os = "linux", not(miri))))]
        let _ = (offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_arenas_are_aligned_for_huge_pages_and_start_zeroed() {
        let arena = Arena::new(HUGE_PAGE + 1).unwrap();
        assert_eq!(arena.base().align_offset(HUGE_PAGE), 0);
        assert_eq!(arena.len(), HUGE_PAGE + PAGE);
        // SAFETY: the last byte is inside of the arena.
        let last = unsafe { arena.base().add(arena.len() - 1) };
        // SAFETY: mapped, initialised by the system, and ours alone.
        assert_eq!(unsafe { last.read() }, 0);
        // SAFETY: as above.
        unsafe { last.write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 7);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(Arena::new(usize::MAX).is_err());
        assert!(Arena::new(usize::MAX / 2).is_err());
    }
}
