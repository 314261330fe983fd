//! Which parts of a file are in the page cache, as data.

use std::ops::Range;

use serde::Serialize;

/// The page size of facts that come from no machine.
const NEUTRAL_PAGE: u64 = 4096;

/// The parts of a source that were in the page cache when it was probed.
///
/// Only what was probed is known; everything else counts as absent. A wrong answer costs time and
/// never correctness: the cache changes under us anyway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Residency {
    /// Sorted, disjoint, not touching, page-aligned, each within one probed range.
    resident: Vec<Range<u64>>,
    /// Sorted, disjoint, not touching, page-aligned.
    probed: Vec<Range<u64>>,
    /// Bytes per page, a power of two.
    page: u64,
    /// Whether the system told us.
    known: bool,
}

impl Residency {
    /// Nothing is resident.
    pub fn none() -> Self {
        Self {
            resident: Vec::new(),
            probed: Vec::new(),
            page: NEUTRAL_PAGE,
            known: true,
        }
    }

    /// All of a source of `len` bytes is resident.
    pub fn all(len: u64) -> Self {
        let whole = aligned(&(0..len), NEUTRAL_PAGE);
        Self::from_ranges(NEUTRAL_PAGE, [whole.clone()], [whole])
    }

    /// The system does not tell of a source of `len` bytes: all of it counts as resident, since
    /// reads through the page cache are right either way.
    pub fn unknown(len: u64) -> Self {
        Self {
            known: false,
            ..Self::all(len)
        }
    }

    /// The ranges `resident` were found in the cache when the ranges `probed` were looked at, in
    /// pages of `page` bytes. Ranges may come in any order and overlap; they are widened to whole
    /// pages, and what is resident outside of `probed` is left out.
    ///
    /// # Panics
    /// When `page` is not a power of two.
    pub fn from_ranges(
        page: u64,
        probed: impl IntoIterator<Item = Range<u64>>,
        resident: impl IntoIterator<Item = Range<u64>>,
    ) -> Self {
        assert!(page.is_power_of_two(), "a page of {page} bytes");
        let probed = merged(probed, page);
        let resident = intersection(&merged(resident, page), &probed);
        Self {
            resident,
            probed,
            page,
            known: true,
        }
    }

    /// The resident ranges in bytes: sorted, disjoint, page-aligned, so that the last one may end
    /// beyond the source.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.resident
    }

    /// Whether the system told what is resident, or [`Residency::unknown`] stands in.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Bytes per page.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// How many bytes of `range` are resident.
    pub fn resident_bytes(&self, range: Range<u64>) -> u64 {
        self.overlapping(&range)
            .map(|resident| resident.end.min(range.end) - resident.start.max(range.start))
            .sum()
    }

    /// Cuts `range` into resident (`true`) and absent (`false`) parts, in order, without holes and
    /// without two neighbours of one kind. An empty range gives no parts.
    pub fn split(&self, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        for resident in self.overlapping(&range) {
            let (start, end) = (resident.start.max(at), resident.end.min(range.end));
            if at < start {
                parts.push((at..start, false));
            }
            parts.push((start..end, true));
            at = end;
        }
        if at < range.end {
            parts.push((at..range.end, false));
        }
        parts
    }

    /// The same with resident islands of less than `min_bytes` counted as absent, where they lie
    /// beside absent pages that were probed too: reading around such an island would cost more than
    /// reading it again. A probed range that is wholly resident stays so, however short it is.
    #[must_use]
    pub fn absorb_islands(&self, min_bytes: u64) -> Self {
        let resident = self
            .resident
            .iter()
            .filter(|island| island.end - island.start >= min_bytes || self.probed.contains(island))
            .cloned()
            .collect();
        Self {
            resident,
            ..self.clone()
        }
    }

    /// The resident ranges that share bytes with `range`.
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let first = self
            .resident
            .partition_point(|resident| resident.end <= range.start);
        let end = range.end;
        let wanted = range.start < end;
        self.resident[first..]
            .iter()
            .take_while(move |resident| wanted && resident.start < end)
    }
}

/// `range` widened to whole pages. The very last page of the 64-bit range is cut to whole pages.
pub(super) fn aligned(range: &Range<u64>, page: u64) -> Range<u64> {
    let end = range
        .end
        .checked_next_multiple_of(page)
        .unwrap_or(u64::MAX - (page - 1));
    range.start / page * page..end
}

/// The union as sorted ranges of whole pages that do not touch.
fn merged(ranges: impl IntoIterator<Item = Range<u64>>, page: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = ranges
        .into_iter()
        .filter(|range| range.start < range.end)
        .map(|range| aligned(&range, page))
        .filter(|range| range.start < range.end)
        .collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut union: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match union.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => union.push(range),
        }
    }
    union
}

/// What is in both lists, each sorted and disjoint.
fn intersection(left: &[Range<u64>], right: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut i, mut j) = (0, 0);
    let mut both = Vec::new();
    while i < left.len() && j < right.len() {
        let (a, b) = (&left[i], &right[j]);
        let (start, end) = (a.start.max(b.start), a.end.min(b.end));
        if start < end {
            both.push(start..end);
        }
        if a.end < b.end {
            i += 1;
        } else {
            j += 1;
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 16;

    /// The same as one flag per page: slow and obvious.
    struct Bitmap {
        resident: [bool; 64],
        probed: [bool; 64],
    }

    impl Bitmap {
        fn new(probed: &[Range<u64>], resident: &[Range<u64>]) -> Self {
            let covers = |ranges: &[Range<u64>], page: u64| {
                ranges.iter().any(|range| {
                    range.start < (page + 1) * PAGE
                        && page * PAGE < range.end
                        && range.start < range.end
                })
            };
            let probed = std::array::from_fn(|page| covers(probed, page as u64));
            let resident =
                std::array::from_fn(|page| probed[page] && covers(resident, page as u64));
            Self { resident, probed }
        }

        fn at(&self, byte: u64) -> bool {
            self.resident
                .get((byte / PAGE) as usize)
                .copied()
                .unwrap_or(false)
        }

        fn absorb(&mut self, min_bytes: u64) {
            let mut page = 0;
            while page < 64 {
                let end = (page..64).find(|&p| !self.resident[p]).unwrap_or(64);
                let short = ((end - page) as u64) * PAGE < min_bytes;
                let left = page > 0 && self.probed[page - 1];
                let right = end < 64 && self.probed[end];
                if short && (left || right) {
                    self.resident[page..end].fill(false);
                }
                page = end.max(page) + 1;
            }
        }
    }

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec(
            (0..1000u64, 0..300u64).prop_map(|(start, len)| start..(start + len).min(1024)),
            0..8,
        )
    }

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(
            probed in ranges(),
            resident in ranges(),
            start in 0..1200u64,
            len in 0..1200u64,
            min_bytes in 0..200u64,
        ) {
            let range = start..start + len;
            let mut naive = Bitmap::new(&probed, &resident);
            let mut residency = Residency::from_ranges(PAGE, probed, resident);
            for absorbed in [false, true] {
                if absorbed {
                    naive.absorb(min_bytes);
                    residency = residency.absorb_islands(min_bytes);
                }
                for pair in residency.ranges().windows(2) {
                    prop_assert!(pair[0].end < pair[1].start);
                }
                for range in residency.ranges() {
                    prop_assert!(range.start < range.end);
                    prop_assert!(range.start % PAGE == 0 && range.end % PAGE == 0);
                }
                let count = range.clone().filter(|&byte| naive.at(byte)).count() as u64;
                prop_assert_eq!(residency.resident_bytes(range.clone()), count);

                let parts = residency.split(range.clone());
                let mut at = range.start;
                for (part, is_resident) in &parts {
                    prop_assert_eq!(part.start, at);
                    prop_assert!(part.start < part.end);
                    prop_assert!(part.clone().all(|byte| naive.at(byte) == *is_resident));
                    at = part.end;
                }
                prop_assert_eq!(at, range.end);
                prop_assert!(parts.windows(2).all(|pair| pair[0].1 != pair[1].1));
            }
        }
    }

    #[test]
    fn a_short_file_that_is_all_there_is_no_island() {
        let file = Residency::all(10_000);
        assert_eq!(file.absorb_islands(1 << 20), file);
        assert_eq!(file.resident_bytes(0..10_000), 10_000);
    }

    #[test]
    fn the_last_page_of_64_bits_does_not_overflow() {
        let residency = Residency::all(u64::MAX);
        assert_eq!(residency.split(0..100), [(0..100, true)]);
        assert_eq!(Residency::none().split(0..u64::MAX), [(0..u64::MAX, false)]);
    }
}
