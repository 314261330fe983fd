//! Finding out which parts of a file are in the page cache, without touching them.
//!
//! `cachestat(2)` counts pages and needs no mapping, so it answers the common cases (all or nothing)
//! at once. Where a range is partly resident, `mincore(2)` over a short-lived mapping that is never
//! read says which pages. Either may be missing or evasive:
//!
//! - no `cachestat` before Linux 6.5, under gVisor, or, since 6.14, for files that the caller may
//!   neither write nor owns: `mincore` alone;
//! - `mincore` says "resident" of every page of a file that the caller may neither write nor owns
//!   (since 5.2): recognised where the counts say otherwise, and then blocks are counted instead;
//! - neither: unknown, and the caller takes everything as resident, since buffered reads are
//!   always right.

use std::fs::File;
use std::io;
use std::ops::Range;

use memmap2::MmapOptions;

use super::ffi;
use super::residency::{Residency, aligned};

/// Ranges with smaller holes between them are looked at together: walking the page cache over a
/// hole of this size costs about as much as one more system call.
const MERGE_GAP: u64 = 256 << 10;

/// How much is mapped and looked at page by page at once. 64 MiB are 16,384 flags.
const WINDOW: u64 = 64 << 20;

/// The resolution where pages can be counted but not told apart.
const BLOCK: u64 = 1 << 20;

/// Which of the two system calls may be used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    /// `cachestat`. Not on stacked filesystems: it looks at the upper file, which has no pages.
    pub count: bool,
    /// `mincore`.
    pub map: bool,
}

impl Ways {
    pub const BOTH: Self = Self {
        count: true,
        map: true,
    };
}

/// Which pages of `ranges` (any order, clamped to the file) are in the page cache; `None` where the
/// system does not say.
pub(super) fn probe(file: &File, ways: Ways, ranges: &[Range<u64>]) -> Option<Residency> {
    let page = rustix::param::page_size() as u64;
    let len = file.metadata().ok()?.len();
    let probed = worth_probing(ranges, len, page);
    let mut eye = Eye {
        file,
        ways,
        page,
        len,
        flags: Vec::new(),
        resident: Vec::new(),
    };
    for range in &probed {
        eye.look(range.clone()).ok()?;
    }
    Some(Residency::from_ranges(page, probed, eye.resident))
}

/// The ranges within a file of `len` bytes, as whole pages, with small holes filled.
fn worth_probing(ranges: &[Range<u64>], len: u64, page: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = ranges
        .iter()
        .map(|range| range.start..range.end.min(len))
        .filter(|range| range.start < range.end)
        .map(|range| aligned(&range, page))
        .collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by(|next, last| {
        let near = next.start <= last.end.saturating_add(MERGE_GAP);
        if near {
            last.end = last.end.max(next.end);
        }
        near
    });
    ranges
}

/// One file being looked at.
struct Eye<'a> {
    file: &'a File,
    ways: Ways,
    page: u64,
    len: u64,
    /// The buffer of `mincore`, kept between windows.
    flags: Vec<u8>,
    resident: Vec<Range<u64>>,
}

/// What a count of pages says about a range.
#[derive(Debug, PartialEq, Eq)]
enum Count {
    None,
    All,
    /// This many pages.
    Some(u64),
}

impl Eye<'_> {
    /// Looks at one range of whole pages.
    fn look(&mut self, range: Range<u64>) -> io::Result<()> {
        if self.ways.count {
            match self.count(&range) {
                Ok(Count::None) => return Ok(()),
                Ok(Count::All) => {
                    self.resident.push(range);
                    return Ok(());
                }
                Ok(Count::Some(_)) => {}
                Err(error) if self.ways.map => {
                    tracing::debug!(%error, "no cachestat here: mincore alone");
                    self.ways.count = false;
                }
                Err(error) => return Err(error),
            }
        }
        for window in pieces(&range, WINDOW) {
            self.look_closely(window)?;
        }
        Ok(())
    }

    /// Looks at one window of a range that may be partly resident.
    fn look_closely(&mut self, window: Range<u64>) -> io::Result<()> {
        if !self.ways.count {
            return self.map(&window).map(drop);
        }
        let cached = match self.count(&window)? {
            Count::None => return Ok(()),
            Count::All => {
                self.resident.push(window);
                return Ok(());
            }
            Count::Some(cached) => cached,
        };
        if self.ways.map {
            let before = self.resident.len();
            match self.map(&window) {
                Ok(pages) if pages == self.pages(&window) && pages > cached => {
                    // Every page, although the count said otherwise: we are not told the truth.
                    self.resident.truncate(before);
                    self.ways.map = false;
                }
                Ok(_) => return Ok(()),
                Err(error) => {
                    tracing::debug!(%error, "no mincore here: counting blocks");
                    self.resident.truncate(before);
                    self.ways.map = false;
                }
            }
        }
        for block in pieces(&window, BLOCK) {
            let majority = match self.count(&block)? {
                Count::None => false,
                Count::All => true,
                Count::Some(cached) => cached * 2 >= self.pages(&block),
            };
            if majority {
                self.resident.push(block);
            }
        }
        Ok(())
    }

    fn pages(&self, range: &Range<u64>) -> u64 {
        (range.end - range.start) / self.page
    }

    fn count(&self, range: &Range<u64>) -> io::Result<Count> {
        let stat = ffi::cachestat(self.file, range.start, range.end - range.start)?;
        Ok(match stat.cached {
            0 => Count::None,
            cached if cached >= self.pages(range) => Count::All,
            cached => Count::Some(cached),
        })
    }

    /// Asks for each page of `window`, adds the resident ones and gives their number.
    fn map(&mut self, window: &Range<u64>) -> io::Result<u64> {
        // Never beyond the end of the file: pages there are no pages of the file.
        let len = window.end.min(self.len) - window.start;
        let map = MmapOptions::new()
            .offset(window.start)
            .len(len as usize)
            .map_raw_read_only(self.file)?;
        ffi::mincore(&map, self.page, &mut self.flags)?;
        let mut pages = 0;
        let mut at = window.start;
        for run in self.flags.chunk_by(|a, b| a & 1 == b & 1) {
            let end = at + run.len() as u64 * self.page;
            if run[0] & 1 == 1 {
                pages += run.len() as u64;
                self.resident.push(at..end);
            }
            at = end;
        }
        Ok(pages)
    }
}

/// `range` cut at multiples of `size`.
fn pieces(range: &Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = (start / size + 1).saturating_mul(size).min(end);
        (start < end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    const MIB: u64 = 1 << 20;
    const LEN: u64 = 16 * MIB + 123;

    const WAYS: [Ways; 3] = [
        Ways::BOTH,
        Ways {
            count: false,
            map: true,
        },
        Ways {
            count: true,
            map: false,
        },
    ];

    fn written() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; LEN as usize]).unwrap();
        file
    }

    /// The answer of each way that this kernel has; at least `mincore` must answer.
    fn answers(file: &File, range: Range<u64>) -> Vec<Residency> {
        let counts = ffi::cachestat(file, 0, 1).is_ok();
        WAYS.into_iter()
            .filter(|ways| ways.map || counts)
            .map(|ways| probe(file, ways, std::slice::from_ref(&range)).unwrap())
            .collect()
    }

    #[test]
    fn a_file_just_written_is_resident() {
        let file = written();
        for residency in answers(file.as_file(), 0..u64::MAX) {
            assert_eq!(residency.split(0..LEN), [(0..LEN, true)]);
        }
    }

    #[test]
    fn one_mebibyte_read_at_random_is_an_island() {
        let file = written();
        let left = crate::facts::process::evict(file.path()).unwrap();
        // Memory filesystems keep everything; everywhere else nearly all of it goes.
        let evictable = left < LEN / 2;
        let reader = File::open(file.path()).unwrap();
        rustix::fs::fadvise(&reader, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut buffer = vec![0; MIB as usize];
        reader.read_exact_at(&mut buffer, 8 * MIB).unwrap();
        for residency in answers(&reader, 0..LEN) {
            assert_eq!(residency.resident_bytes(8 * MIB..9 * MIB), MIB);
            let total = residency.resident_bytes(0..LEN);
            if evictable {
                assert!(total < LEN / 2, "{total} bytes resident: {residency:?}");
                assert_eq!(residency.absorb_islands(LEN).resident_bytes(0..LEN), 0);
            } else {
                assert_eq!(total, LEN);
            }
        }
        // What was not asked for is not known.
        for residency in answers(&reader, 8 * MIB..9 * MIB) {
            assert_eq!(
                residency.ranges(),
                std::slice::from_ref(&(8 * MIB..9 * MIB))
            );
            assert_eq!(residency.absorb_islands(LEN), residency);
        }
    }

    #[test]
    fn empty_files_and_ranges_beyond_the_end_are_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for residency in answers(file.as_file(), 0..100) {
            assert_eq!(residency.ranges(), []);
        }
        let file = written();
        for residency in answers(file.as_file(), 2 * LEN..3 * LEN) {
            assert_eq!(residency.ranges(), []);
        }
    }

    #[test]
    fn ranges_are_clamped_and_near_ones_joined() {
        let gap = MERGE_GAP;
        let ranges = [
            2 * gap + 1..2 * gap + 2,
            100..200,
            50..60,
            1 << 40..2 << 40,
            9..9,
            900 * gap..901 * gap,
        ];
        assert_eq!(
            worth_probing(&ranges, 900 * gap + 10, 4096),
            [
                0..4096,
                2 * gap..2 * gap + 4096,
                900 * gap..900 * gap + 4096
            ]
        );
        assert_eq!(
            worth_probing(&[0..1, gap + 1..gap + 2], gap * 9, 4096),
            std::slice::from_ref(&(0..gap + 4096))
        );
    }

    #[test]
    fn pieces_end_at_multiples() {
        let cut: Vec<_> = pieces(&(3..25), 10).collect();
        assert_eq!(cut, [3..10, 10..20, 20..25]);
        assert_eq!(pieces(&(5..5), 10).count(), 0);
    }
}
