//! What this process has used, and emptying caches: measurement for programs.
//!
//! Loads never call any of this. Figures that the system does not tell are `None`.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::error::Result;
#[cfg(not(target_os = "linux"))]
use crate::error::{Error, ErrorKind};

/// What the process has used since it started.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ProcessUsage {
    /// Processor time in user space, all threads, in seconds.
    pub user_s: Option<f64>,
    /// Processor time in the kernel, all threads, in seconds.
    pub system_s: Option<f64>,
    /// Largest resident set in bytes since the start or the last [`reset_peak_rss`].
    pub peak_rss_bytes: Option<u64>,
    /// Page faults that needed no read.
    pub minor_faults: Option<u64>,
    /// Page faults that waited for a read.
    pub major_faults: Option<u64>,
    /// Bytes fetched from storage (`read_bytes` of `/proc/self/io`): none for what came from the
    /// page cache or over a network filesystem.
    pub read_bytes: Option<u64>,
}

impl ProcessUsage {
    /// What was used between `earlier` and this reading. The peak is this reading's: peaks have no
    /// difference.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let count = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let time = |now: Option<f64>, then: Option<f64>| Some((now? - then?).max(0.0));
        Self {
            user_s: time(self.user_s, earlier.user_s),
            system_s: time(self.system_s, earlier.system_s),
            peak_rss_bytes: self.peak_rss_bytes,
            minor_faults: count(self.minor_faults, earlier.minor_faults),
            major_faults: count(self.major_faults, earlier.major_faults),
            read_bytes: count(self.read_bytes, earlier.read_bytes),
        }
    }
}

/// What this process has used so far.
pub fn usage() -> ProcessUsage {
    ProcessUsage {
        peak_rss_bytes: status_bytes("VmHWM:"),
        read_bytes: read_bytes(),
        ..times_and_faults()
    }
}

/// Time by which the clock of a file system may be behind that of the process table.
const CLOCK_SLACK: Duration = Duration::from_secs(10);

/// Whether a file that was last modified then may be the work of the process `pid` that runs now.
/// Numbers of processes come again, in containers at each start: what is older than the process is
/// not its work. Where a system does not tell, every process is said to run.
pub(crate) fn is_of_running(pid: u32, modified: SystemTime) -> bool {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, test_kill_process};
        let found = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // One of somebody else is there, too, and says that it may not be asked.
        let gone = |pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
        if found.is_none_or(gone) {
            return false;
        }
    }
    started(pid).is_none_or(|started| modified + CLOCK_SLACK >= started)
}

/// When a process was started, where the system tells.
fn started(pid: u32) -> Option<SystemTime> {
    #[cfg(not(target_os = "linux"))]
    let since_boot = {
        let _ = pid;
        None::<(u64, u64)>
    };
    #[cfg(target_os = "linux")]
    let since_boot = {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
        let boot = std::fs::read_to_string("/proc/stat").ok()?;
        let boot = super::procfs::field(&boot, "btime")?;
        Some((boot, ticks / rustix::param::clock_ticks_per_second()))
    };
    let (boot, seconds) = since_boot?;
    let since = Duration::from_secs(boot.checked_add(seconds)?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// What one thread has used since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadUsage {
    /// Processor time, in user space and in the kernel.
    pub cpu: Option<Duration>,
    /// Page faults that needed no read, those of the kernel on the thread's behalf included.
    pub minor_faults: Option<u64>,
    /// Page faults that waited for a read.
    pub major_faults: Option<u64>,
    /// How often the thread went to sleep by itself, as for a disk; being sent off its core by
    /// another thread is not counted.
    pub voluntary_switches: Option<u64>,
}

/// What the calling thread has used so far: the time by its own clock, to the nanosecond, where
/// there is one; faults and switches on Linux only.
pub fn thread_usage() -> ThreadUsage {
    #[cfg(not(unix))]
    let cpu = None;
    #[cfg(unix)]
    let cpu = {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(clock).ok()
    };
    #[cfg(not(target_os = "linux"))]
    let (minor_faults, major_faults, voluntary_switches) = (None, None, None);
    #[cfg(target_os = "linux")]
    let (minor_faults, major_faults, voluntary_switches) = {
        let usage = super::ffi::thread_rusage();
        let count = |of: fn(&libc::rusage) -> libc::c_long| {
            usage
                .as_ref()
                .ok()
                .and_then(|usage| u64::try_from(of(usage)).ok())
        };
        (
            count(|usage| usage.ru_minflt),
            count(|usage| usage.ru_majflt),
            count(|usage| usage.ru_nvcsw),
        )
    };
    ThreadUsage {
        cpu,
        minor_faults,
        major_faults,
        voluntary_switches,
    }
}

/// Bytes of this process that are in memory now.
pub fn current_rss_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

/// Makes the peak of the resident set start again from what is resident now; `false` where that
/// cannot be done, and the peak goes on counting from the start of the process.
pub fn reset_peak_rss() -> bool {
    // Elsewhere there is no such file.
    cfg!(target_os = "linux") && std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Writes a file's dirty pages out and asks the kernel to drop all of its pages. Symbolic links are
/// followed. Gives the bytes that are still in the page cache: pages that are mapped or in use
/// stay, and a filesystem in memory keeps everything.
///
/// Of a file that the caller may neither write nor owns, newer kernels do not tell the residency;
/// all of it may then be reported as left.
///
/// # Errors
/// What opening the file reports; [`ErrorKind::Io`](crate::ErrorKind::Io) when writing out or dropping fails;
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the system cannot do it or does not tell what is left.
pub fn evict(path: impl AsRef<Path>) -> Result<u64> {
    let path = path.as_ref();
    #[cfg(target_os = "linux")]
    return linux::evict(path);
    #[cfg(not(target_os = "linux"))]
    return Err(unsupported("evict files from the page cache").at(path));
}

/// Writes all dirty pages of the machine out and drops the caches of all files: slows every program
/// of the machine down for a while.
///
/// # Errors
/// [`ErrorKind::Io`](crate::ErrorKind::Io) without root's rights, [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on systems without
/// `/proc/sys/vm/drop_caches`.
pub fn drop_caches() -> Result<()> {
    #[cfg(target_os = "linux")]
    return linux::drop_caches();
    #[cfg(not(target_os = "linux"))]
    return Err(unsupported("drop the page cache"));
}

#[cfg(not(target_os = "linux"))]
fn unsupported(action: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("cannot {action} on {}", std::env::consts::OS),
    )
    .help("measure cold loads on Linux")
}

#[cfg(unix)]
fn times_and_faults() -> ProcessUsage {
    let Ok(usage) = super::ffi::rusage() else {
        return ProcessUsage::default();
    };
    let seconds = |time: libc::timeval| Some(time.tv_sec as f64 + time.tv_usec as f64 / 1e6);
    ProcessUsage {
        user_s: seconds(usage.ru_utime),
        system_s: seconds(usage.ru_stime),
        minor_faults: u64::try_from(usage.ru_minflt).ok(),
        major_faults: u64::try_from(usage.ru_majflt).ok(),
        ..ProcessUsage::default()
    }
}

#[cfg(not(unix))]
fn times_and_faults() -> ProcessUsage {
    ProcessUsage::default()
}

#[cfg(target_os = "linux")]
fn status_bytes(key: &str) -> Option<u64> {
    super::procfs::kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, key)
}

#[cfg(not(target_os = "linux"))]
fn status_bytes(_key: &str) -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
fn read_bytes() -> Option<u64> {
    super::procfs::field(
        &std::fs::read_to_string("/proc/self/io").ok()?,
        "read_bytes:",
    )
}

#[cfg(not(target_os = "linux"))]
fn read_bytes() -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    use rustix::fs::Advice;
    use rustix::io::Errno;

    use crate::error::{Error, ErrorKind, Result};
    use crate::facts::mounts::Mounts;
    use crate::facts::{page_cache, storage};
    use crate::storage::{Access, DescriptorCache, LocalFile, Source};

    const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

    pub fn evict(path: &Path) -> Result<u64> {
        let source = LocalFile::open(path, &Arc::new(DescriptorCache::new(1)))?;
        let file = source
            .descriptor(Access::Buffered)
            .map_err(|error| Error::io("open", path, error))?;
        match rustix::fs::fdatasync(&*file) {
            // Read-only filesystems have nothing to write out, and some say so.
            Ok(()) | Err(Errno::INVAL | Errno::ROFS) => {}
            Err(error) => return Err(Error::io("write out", path, error.into())),
        }
        rustix::fs::fadvise(&*file, 0, None, Advice::DontNeed)
            .map_err(|error| Error::io("evict", path, error.into()))?;
        let ways = storage::ways(storage::medium_of(&file, &Mounts::read()));
        let whole = 0..source.len();
        page_cache::probe(&file, ways, std::slice::from_ref(&whole))
            .map(|residency| residency.resident_bytes(whole))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Unsupported,
                    "the file's pages were dropped, but this system does not tell what is left",
                )
                .at(path)
                .help("use a kernel with cachestat (Linux 6.5) or a file that you own")
            })
    }

    pub fn drop_caches() -> Result<()> {
        rustix::fs::sync();
        // 3: pages, and the metadata that would make opening files cheaper than cold.
        std::fs::write(DROP_CACHES, "3").map_err(drop_error)
    }

    pub(super) fn drop_error(error: io::Error) -> Error {
        let denied = matches!(
            error.kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        );
        let path = Path::new(DROP_CACHES);
        if error.kind() == io::ErrorKind::NotFound {
            return Error::new(
                ErrorKind::Unsupported,
                "this system cannot drop its page cache",
            )
            .at(path)
            .because(error);
        }
        let error = Error::io("drop the page cache", path, error);
        if denied {
            error.help("run as root outside of a container, or evict the files one by one")
        } else {
            error
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn usage_grows_and_differences_are_small() {
        let before = usage();
        // A fresh mapping: the allocator may hand out pages that were touched already.
        let mut fresh = memmap2::MmapMut::map_anon(8 << 20).unwrap();
        std::hint::black_box(fresh.as_mut()).fill(1);
        let after = usage();
        assert!(after.user_s >= before.user_s && before.user_s.is_some());
        assert!(after.minor_faults > before.minor_faults);
        assert!(after.peak_rss_bytes.unwrap() >= 8 << 20);
        assert!(current_rss_bytes().unwrap() > 0);
        let used = after.since(&before);
        assert!(used.minor_faults < after.minor_faults);
        assert_eq!(used.peak_rss_bytes, after.peak_rss_bytes);
        assert_eq!(
            ProcessUsage::default().since(&before),
            ProcessUsage::default()
        );
    }

    #[test]
    fn a_thread_counts_its_own_faults_and_time_only() {
        let before = thread_usage();
        let touch = || {
            let mut fresh = memmap2::MmapMut::map_anon(4 << 20).unwrap();
            std::hint::black_box(fresh.as_mut()).fill(1);
        };
        std::thread::scope(|scope| scope.spawn(touch).join()).unwrap();
        let between = thread_usage();
        touch();
        let after = thread_usage();
        let faults = |from: ThreadUsage, to: ThreadUsage| {
            to.minor_faults.unwrap() - from.minor_faults.unwrap()
        };
        assert!(faults(between, after) > faults(before, between) && after.cpu > between.cpu);
    }

    #[test]
    fn eviction_follows_links_and_leaves_little() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob");
        let len = 8 << 20;
        std::fs::write(&path, vec![1; len]).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("blob", &link).unwrap();
        let left = evict(&link).unwrap();
        let mounts = crate::facts::mounts::Mounts::read();
        let file = std::fs::File::open(&path).unwrap();
        if crate::facts::storage::medium_of(&file, &mounts)
            == crate::facts::filesystems::Medium::Memory
        {
            assert_eq!(left, len as u64);
        } else {
            assert!(left < len as u64 / 2, "{left} bytes left");
        }
    }

    #[test]
    fn errors_say_what_is_missing() {
        let error = evict("/nonexistent/blob").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = linux::drop_error(io::ErrorKind::PermissionDenied.into());
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("root"), "{error}");
        let error = linux::drop_error(io::ErrorKind::NotFound.into());
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
