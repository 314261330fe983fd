//! The three system calls that no safe wrapper offers: `cachestat`, `mincore` and `getrusage`.
//!
//! The only file of this module with `unsafe` code. Nothing here maps memory or keeps a pointer.
#![allow(unsafe_code)]

use std::io;
#[cfg(target_os = "linux")]
use std::{fs::File, os::fd::AsRawFd};

#[cfg(target_os = "linux")]
use memmap2::MmapRaw;

/// What `cachestat(2)` counts in a range, as the kernel lays it out. All in pages.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct CacheStat {
    /// In the page cache, whatever their state.
    pub cached: u64,
    pub dirty: u64,
    pub writeback: u64,
    pub evicted: u64,
    pub recently_evicted: u64,
}

/// The range argument of `cachestat(2)`. A length of 0 means up to the end of the file.
#[cfg(target_os = "linux")]
#[repr(C)]
struct CacheStatRange {
    offset: u64,
    len: u64,
}

/// Counts the cached pages that overlap `[offset, offset + len)`.
///
/// # Errors
/// `ENOSYS` before Linux 6.5, `EPERM` for files that the caller may not write and does not own
/// (since 6.14), `EOPNOTSUPP` on hugetlbfs.
#[cfg(target_os = "linux")]
pub(super) fn cachestat(file: &File, offset: u64, len: u64) -> io::Result<CacheStat> {
    // One number on every architecture whose table does not start at an offset (Alpha, MIPS, x32).
    const SYS_CACHESTAT: libc::c_long = 451;
    if cfg!(any(
        target_arch = "mips",
        target_arch = "mips64",
        target_abi = "x32"
    )) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    let range = CacheStatRange { offset, len };
    let mut stat = CacheStat::default();
    let flags: libc::c_uint = 0;
    // SAFETY: `range` and `stat` are live locals with the layout of the kernel's structures, and
    // the kernel keeps neither pointer.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            flags,
        )
    };
    if result == 0 {
        Ok(stat)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// For each of `pages` pages from byte `start` of `map`, whether it is in memory (lowest bit of each
/// byte of `flags`). Nothing is faulted in.
///
/// # Errors
/// `InvalidInput` for pages beyond the mapping; whatever `mincore(2)` says.
#[cfg(target_os = "linux")]
pub(super) fn mincore(
    map: &MmapRaw,
    start: usize,
    pages: usize,
    page: usize,
    flags: &mut Vec<u8>,
) -> io::Result<()> {
    let len = pages.saturating_mul(page);
    let mapped = map.len().next_multiple_of(page);
    if start.checked_add(len).is_none_or(|end| end > mapped) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    flags.clear();
    flags.resize(pages, 0);
    let address = map.as_mut_ptr().wrapping_add(start);
    // SAFETY: `[address, address + len)` lies within the whole pages of the live mapping `map`, and
    // `flags` has one byte for each of its pages; `mincore` writes only these bytes.
    let result = unsafe { libc::mincore(address.cast(), len, flags.as_mut_ptr().cast()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// What the process has used so far: `getrusage(RUSAGE_SELF)`.
///
/// # Errors
/// Never on the systems that we know.
#[cfg(unix)]
pub(super) fn rusage() -> io::Result<libc::rusage> {
    rusage_of(libc::RUSAGE_SELF)
}

/// What the calling thread has used so far: `getrusage(RUSAGE_THREAD)`.
///
/// # Errors
/// Never on the systems that we know.
#[cfg(target_os = "linux")]
pub(super) fn thread_rusage() -> io::Result<libc::rusage> {
    rusage_of(libc::RUSAGE_THREAD)
}

#[cfg(unix)]
fn rusage_of(who: libc::c_int) -> io::Result<libc::rusage> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a live local of the right type, which the call fills.
    let result = unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros is a valid `rusage`, which holds nothing but integers.
    Ok(unsafe { usage.assume_init() })
}
