//! Merging of neighbouring byte ranges: one large read instead of many small ones.

use std::ops::Range;

use crate::tensor::Extent;

/// Ranges that were merged into one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The bytes from the first member's start to the furthest member's end, gaps included.
    pub extent: Extent,
    /// Which of the input's ranges went into it.
    pub members: Range<usize>,
}

/// Merges ranges of one source that overlap, touch, or leave at most `gap_limit` bytes between
/// them. `sorted` must be in the order of [`Extent`]: by source, offset and length.
///
/// The results are sorted, do not overlap, and lie more than `gap_limit` bytes apart. Every range
/// is a member of exactly one of them. Linear in the number of ranges.
pub fn coalesce(sorted: &[Extent], gap_limit: u64) -> Vec<Merged> {
    debug_assert!(sorted.is_sorted(), "coalesce takes sorted ranges");
    let mut merged: Vec<Merged> = Vec::new();
    for (index, range) in sorted.iter().enumerate() {
        if let Some(last) = merged.last_mut()
            && last.extent.source == range.source
            && range.offset.saturating_sub(last.extent.end()) <= gap_limit
        {
            last.extent.len = last.extent.end().max(range.end()) - last.extent.offset;
            last.members.end = index + 1;
            continue;
        }
        merged.push(Merged {
            extent: *range,
            members: index..index + 1,
        });
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(source: u32, offset: u64, len: u64) -> Extent {
        Extent {
            source,
            offset,
            len,
        }
    }

    fn extents(ranges: &[Extent], gap_limit: u64) -> Vec<Extent> {
        coalesce(ranges, gap_limit)
            .into_iter()
            .map(|merged| merged.extent)
            .collect()
    }

    /// Marks every byte that is covered or lies in a gap to be bridged, then reads the runs off.
    fn naive(ranges: &[Extent], gap_limit: u64) -> Vec<Extent> {
        let mut result = Vec::new();
        for source in 0..4 {
            let mut marks = [false; 256];
            for range in ranges.iter().filter(|range| range.source == source) {
                marks[range.offset as usize..range.end() as usize].fill(true);
            }
            let mut previous: Option<usize> = None;
            for byte in 0..marks.len() {
                if !marks[byte] {
                    continue;
                }
                if let Some(before) = previous
                    && (byte - before - 1) as u64 <= gap_limit
                {
                    marks[before..byte].fill(true);
                }
                previous = Some(byte);
            }
            let mut byte = 0;
            while byte < marks.len() {
                let len = marks[byte..].iter().take_while(|mark| **mark).count();
                if len > 0 {
                    result.push(at(source, byte as u64, len as u64));
                }
                byte += len + 1;
            }
        }
        result
    }

    #[test]
    fn gaps_up_to_the_limit_are_bridged_and_sources_are_not() {
        let ranges = [at(0, 0, 10), at(0, 12, 3), at(0, 18, 2), at(1, 20, 5)];
        assert_eq!(extents(&ranges, 0), ranges);
        assert_eq!(
            extents(&ranges, 2),
            [at(0, 0, 15), at(0, 18, 2), at(1, 20, 5)]
        );
        assert_eq!(extents(&ranges, 3), [at(0, 0, 20), at(1, 20, 5)]);
        assert!(extents(&[], 3).is_empty());
    }

    #[test]
    fn touching_and_nested_ranges_merge_without_a_gap_limit() {
        let ranges = [at(0, 0, 10), at(0, 2, 3), at(0, 10, 5), at(0, 16, 1)];
        let merged = coalesce(&ranges, 0);
        assert_eq!(merged[0].extent, at(0, 0, 15));
        assert_eq!(merged[0].members, 0..3);
        assert_eq!(merged[1].members, 3..4);
    }

    #[test]
    fn the_end_of_the_number_range_does_not_wrap() {
        let ranges = [at(0, 0, 1), at(0, u64::MAX - 1, 1)];
        assert_eq!(extents(&ranges, u64::MAX - 3), ranges);
        assert_eq!(extents(&ranges, u64::MAX - 2), [at(0, 0, u64::MAX)]);
    }

    proptest! {
        #[test]
        fn agrees_with_marking_bytes(
            mut ranges in prop::collection::vec((0_u32..4, 0_u64..200, 1_u64..40), 0..24),
            gap_limit in 0_u64..30,
        ) {
            ranges.sort_unstable();
            let ranges: Vec<Extent> =
                ranges.into_iter().map(|(source, offset, len)| at(source, offset, len)).collect();
            let merged = coalesce(&ranges, gap_limit);
            let found: Vec<Extent> = merged.iter().map(|merged| merged.extent).collect();
            prop_assert_eq!(found, naive(&ranges, gap_limit));
            let members: Vec<usize> = merged.iter().flat_map(|merged| merged.members.clone()).collect();
            prop_assert_eq!(members, (0..ranges.len()).collect::<Vec<_>>());
        }
    }
}
