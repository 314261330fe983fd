//! One read, from the first byte to the last: what to do after each answer of the system.
//!
//! A pure state machine over (request, answer), so that short reads, interruptions, refused direct
//! access and early ends are handled alike by every backend and tested without a disk.

use std::io;
use std::time::Duration;

use crate::error::is_out_of_descriptors;
use crate::schedule::Request;
use crate::storage::Access;
use crate::storage::source::is_transient;

/// Transient failures in a row that are retried before they count as an error. A file system that
/// answers EAGAIN for ever must not hang a load.
const PATIENCE: u32 = 10_000;

/// Time between two attempts to open a file while too many are open. With `PATIENCE` about ten
/// seconds in all.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(1);

/// How far a read has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes that have arrived, from the start of the request.
    pub(crate) filled: u64,
    /// How the next part is read.
    pub(crate) access: Access,
    stalls: u32,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Read on from `filled`, by `access`.
    Again,
    /// As `Again`, after direct access to this file was refused.
    Refused,
    /// Everything needed is there.
    Done,
    /// The source ends here, before what was promised.
    EndOfFile,
    /// It cannot be read.
    Failed(io::Error),
}

impl Progress {
    pub(crate) fn new(access: Access) -> Self {
        Self {
            filled: 0,
            access,
            stalls: 0,
        }
    }

    /// Takes the answer to the last read: bytes that arrived (0 at the end of the file), or why not.
    pub(crate) fn advance(&mut self, request: &Request, answer: io::Result<usize>) -> Step {
        match answer {
            Ok(0) if self.filled >= request.needed => Step::Done,
            Ok(0) => Step::EndOfFile,
            Ok(count) => {
                self.stalls = 0;
                self.filled += count as u64;
                if self.filled >= request.needed {
                    return Step::Done;
                }
                // The rest of a short direct read starts anywhere; the page cache takes any offset.
                self.access = Access::Buffered;
                Step::Again
            }
            Err(error) if is_transient(&error) || is_out_of_descriptors(&error) => {
                self.stalls += 1;
                if self.stalls > PATIENCE {
                    return Step::Failed(error);
                }
                if is_out_of_descriptors(&error) {
                    // Other reads hold them, and give them back at their ends.
                    std::thread::sleep(DESCRIPTOR_WAIT);
                } else if self.stalls > 1 {
                    std::thread::yield_now();
                }
                Step::Again
            }
            Err(error) if self.access == Access::Direct && refuses_direct(&error) => {
                self.access = Access::Buffered;
                Step::Refused
            }
            Err(error) => Step::Failed(error),
        }
    }
}

/// Whether an error means "not with O_DIRECT": tmpfs refuses to open, overlays and some disks
/// refuse at the first read.
fn refuses_direct(error: &io::Error) -> bool {
    if matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    ) {
        return true;
    }
    #[cfg(unix)]
    return matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS)
    );
    #[cfg(not(unix))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::LandingSpec;

    fn request(len: u64, needed: u64) -> Request {
        Request {
            source: 0,
            offset: 0,
            len,
            needed,
            access: Access::Direct,
            region: 0,
            landing: LandingSpec::InPlace { at: 0 },
        }
    }

    #[test]
    fn short_reads_go_on_where_they_stopped() {
        let request = request(100, 100);
        let mut progress = Progress::new(Access::Buffered);
        assert!(matches!(progress.advance(&request, Ok(30)), Step::Again));
        assert_eq!(progress.filled, 30);
        assert!(matches!(progress.advance(&request, Ok(70)), Step::Done));
    }

    #[test]
    fn a_short_direct_read_goes_on_through_the_page_cache() {
        let request = request(8192, 8192);
        let mut progress = Progress::new(Access::Direct);
        assert!(matches!(progress.advance(&request, Ok(512)), Step::Again));
        assert_eq!(progress.access, Access::Buffered);
    }

    #[test]
    fn the_end_of_the_file_is_fine_only_when_everything_needed_is_there() {
        let request = request(4096, 100);
        let mut progress = Progress::new(Access::Direct);
        assert!(matches!(progress.advance(&request, Ok(100)), Step::Done));
        let mut progress = Progress::new(Access::Direct);
        assert!(matches!(progress.advance(&request, Ok(99)), Step::Again));
        assert!(matches!(progress.advance(&request, Ok(0)), Step::EndOfFile));
    }

    #[test]
    fn refusals_fall_back_once_and_only_from_direct_access() {
        let request = request(4096, 4096);
        let invalid = || Err(io::Error::from_raw_os_error(22));
        let mut progress = Progress::new(Access::Direct);
        assert!(matches!(
            progress.advance(&request, invalid()),
            Step::Refused
        ));
        assert!(matches!(
            progress.advance(&request, invalid()),
            Step::Failed(_)
        ));
    }

    #[test]
    fn interruptions_are_retried_but_not_for_ever() {
        let request = request(10, 10);
        let mut progress = Progress::new(Access::Buffered);
        let interrupted = || Err(io::ErrorKind::Interrupted.into());
        for _ in 0..PATIENCE {
            assert!(matches!(
                progress.advance(&request, interrupted()),
                Step::Again
            ));
        }
        assert!(matches!(
            progress.advance(&request, interrupted()),
            Step::Failed(_)
        ));
    }
}
