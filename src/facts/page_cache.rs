//! Finding out which parts of a file are in the page cache, without touching them.
//!
//! `cachestat(2)` counts pages and needs no mapping, so it answers the common cases (all or nothing)
//! at once, and blocks where a range is partly resident. `mincore(2)` over a short-lived mapping
//! that is never read says which pages of a mixed block. Either may be missing or evasive:
//!
//! - no `cachestat` before Linux 6.5, under gVisor, and on stacked filesystems: `mincore` of a few
//!   pages of each block;
//! - of a file that the caller may neither write nor owns `mincore` says that every page is
//!   resident (since Linux 5.2) and `cachestat` refuses to count (since 6.14): where pages can
//!   still be counted, blocks are;
//! - neither: unknown, and the caller takes everything as resident, since buffered reads are
//!   always right.
//!
//! Costs measured on a virtual machine with 4 KiB pages: counting a GiB 0.2 ms when nothing is
//! resident, 0.5 to 4 ms when all is (large or small folios); one `mincore` call 2 to 4 microseconds
//! and 0.2 more for each page, so that asking for every page would take as long as loading the same
//! bytes warm. Hence the blocks, the samples and the limit on mixed blocks.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use memmap2::{MmapOptions, MmapRaw};

use super::ffi;
use super::residency::{Residency, aligned};

/// Ranges with smaller holes between them are looked at together: walking the page cache over a
/// hole of this size costs about as much as one more system call.
const MERGE_GAP: u64 = 256 << 10;

/// How much is counted and mapped at once where a range is partly resident.
const WINDOW: u64 = 64 << 20;

/// The size for which "all" or "nothing" is found out within a window: reading one takes ten to a
/// hundred times as long as counting it.
const BLOCK: u64 = 1 << 20;

/// How many pages of a window, and then of a block, are looked at where none can be counted.
const WINDOW_SAMPLES: u64 = 17;
const BLOCK_SAMPLES: u64 = 5;

/// How many mixed blocks of a file are looked at page by page, 60 microseconds each. Beyond that the
/// majority of a block's pages decides.
const MIXED_LIMIT: u32 = 512;

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
        mixed_left: MIXED_LIMIT,
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
    /// How many more mixed blocks may be looked at page by page.
    mixed_left: u32,
    /// The buffer of `mincore`, kept between calls.
    flags: Vec<u8>,
    resident: Vec<Range<u64>>,
}

/// How many pages of a range are resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    None,
    All,
    /// This many pages.
    Some(u64),
}

/// A window of the file as a mapping that nobody reads.
struct Window {
    start: u64,
    map: MmapRaw,
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
                // Not our file: `mincore` follows the same rule and would make something up.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                Err(error) if self.ways.map => {
                    tracing::debug!(%error, "no cachestat here: mincore alone");
                    self.ways.count = false;
                }
                Err(error) => return Err(error),
            }
        }
        if !self.ways.count && !is_ours(self.file) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        for window in pieces(&range, WINDOW) {
            self.look_closely(window)?;
        }
        Ok(())
    }

    /// Looks at one window of a range that may be partly resident.
    fn look_closely(&mut self, window: Range<u64>) -> io::Result<()> {
        let map = self.map(&window)?;
        match self.estimate(map.as_ref(), &window, WINDOW_SAMPLES)? {
            Count::None => return Ok(()),
            Count::All => {
                self.resident.push(window);
                return Ok(());
            }
            Count::Some(_) => {}
        }
        for block in pieces(&window, BLOCK) {
            match (self.estimate(map.as_ref(), &block, BLOCK_SAMPLES)?, &map) {
                (Count::None, _) => {}
                (Count::All, _) => self.resident.push(block),
                (Count::Some(cached), Some(map)) if self.ways.map && self.mixed_left > 0 => {
                    self.mixed_left -= 1;
                    self.look_at_pages(map, block, cached)?;
                }
                (Count::Some(cached), _) => self.decide_by_majority(block, cached),
            }
        }
        Ok(())
    }

    /// The count of a part of a window, taken from samples where pages cannot be counted.
    fn estimate(
        &mut self,
        map: Option<&Window>,
        range: &Range<u64>,
        samples: u64,
    ) -> io::Result<Count> {
        match map {
            Some(map) if !self.ways.count => self.sample(map, range, samples),
            _ => self.count(range),
        }
    }

    /// Adds the resident pages of a mixed block of which `cached` pages are said to be resident.
    fn look_at_pages(&mut self, map: &Window, block: Range<u64>, cached: u64) -> io::Result<()> {
        self.ask(map, &block)?;
        if self.ways.count && self.flags.iter().all(|flag| flag & 1 == 1) {
            // Every page, although the count said otherwise: we are not told the truth.
            self.ways.map = false;
            self.decide_by_majority(block, cached);
            return Ok(());
        }
        let mut at = block.start;
        for run in self.flags.chunk_by(|a, b| a & 1 == b & 1) {
            let end = at + run.len() as u64 * self.page;
            if run[0] & 1 == 1 {
                self.resident.push(at..end);
            }
            at = end;
        }
        Ok(())
    }

    fn decide_by_majority(&mut self, block: Range<u64>, cached: u64) {
        if cached * 2 >= self.pages(&block) {
            self.resident.push(block);
        }
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

    /// Looks at `samples` pages spread over `range`, the first and last among them.
    fn sample(&mut self, map: &Window, range: &Range<u64>, samples: u64) -> io::Result<Count> {
        let pages = self.pages(range);
        let mut resident = 0;
        for sample in 0..samples {
            let at = range.start + (pages - 1) * sample / (samples - 1) * self.page;
            self.ask(map, &(at..at + self.page))?;
            resident += u64::from(self.flags[0] & 1);
        }
        Ok(match resident {
            0 => Count::None,
            all if all == samples => Count::All,
            some => Count::Some(pages * some / samples),
        })
    }

    /// Maps `window`; `None` where that cannot be done but pages can be counted.
    fn map(&mut self, window: &Range<u64>) -> io::Result<Option<Window>> {
        if !self.ways.map {
            return Ok(None);
        }
        // Never beyond the end of the file: pages there are no pages of the file.
        let len = window.end.min(self.len) - window.start;
        let map = MmapOptions::new()
            .offset(window.start)
            .len(len as usize)
            .map_raw_read_only(self.file);
        match map {
            Ok(map) => Ok(Some(Window {
                start: window.start,
                map,
            })),
            Err(error) if self.ways.count => {
                tracing::debug!(%error, "no mapping here: counting blocks");
                self.ways.map = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Fills `flags` for the pages of `range`, which lies within the window.
    fn ask(&mut self, window: &Window, range: &Range<u64>) -> io::Result<()> {
        let start = (range.start - window.start) as usize;
        let pages = self.pages(range) as usize;
        ffi::mincore(
            &window.map,
            start,
            pages,
            self.page as usize,
            &mut self.flags,
        )
    }
}

/// Whether the kernel tells this process what is resident of `file`: it owns or may write it.
fn is_ours(file: &File) -> bool {
    let user = rustix::process::geteuid();
    let owns = file
        .metadata()
        .is_ok_and(|metadata| metadata.uid() == user.as_raw());
    // A descriptor for reading does not say whether the file may be written: its path does.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let may_write = || {
        rustix::fs::accessat(
            rustix::fs::CWD,
            path,
            rustix::fs::Access::WRITE_OK,
            rustix::fs::AtFlags::EACCESS,
        )
        .is_ok()
    };
    user.is_root() || owns || may_write()
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
    fn beyond_the_limit_the_majority_of_a_block_decides() {
        let file = written();
        let mut eye = Eye {
            file: file.as_file(),
            ways: Ways::BOTH,
            page: 4096,
            len: LEN,
            mixed_left: 0,
            flags: Vec::new(),
            resident: Vec::new(),
        };
        eye.decide_by_majority(0..MIB, 127);
        eye.decide_by_majority(MIB..2 * MIB, 128);
        assert_eq!(eye.resident, std::slice::from_ref(&(MIB..2 * MIB)));
    }

    #[test]
    fn what_may_be_written_is_ours() {
        assert!(is_ours(written().as_file()));
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
