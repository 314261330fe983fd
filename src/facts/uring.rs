//! Whether io_uring can be used here, found out by making a tiny ring.

use serde::Serialize;

use crate::storage::UnavailableReason;

/// What the kernel's io_uring offers beyond what we need of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct IoUringFacts {
    /// `IORING_SETUP_COOP_TASKRUN` (Linux 5.19): completions do not interrupt the submitting thread.
    pub coop_taskrun: bool,
    /// `IORING_SETUP_SINGLE_ISSUER` (Linux 6.0): one thread submits.
    pub single_issuer: bool,
    /// `IORING_SETUP_DEFER_TASKRUN` (Linux 6.1): completion work runs when the thread waits. Needs
    /// `single_issuer`.
    pub defer_taskrun: bool,
}

/// Whether io_uring can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum IoUringAvailability {
    /// It can.
    Available(IoUringFacts),
    /// It cannot, and why.
    Unavailable(UnavailableReason),
}

impl From<Result<IoUringFacts, UnavailableReason>> for IoUringAvailability {
    fn from(result: Result<IoUringFacts, UnavailableReason>) -> Self {
        match result {
            Ok(facts) => Self::Available(facts),
            Err(reason) => Self::Unavailable(reason),
        }
    }
}

/// Makes a tiny ring and asks it for the operations that we need: `READ`, `READ_FIXED` and
/// `ASYNC_CANCEL`. The answer is not kept; it costs about as much as the ring.
///
/// # Errors
/// The reason why io_uring cannot be used.
pub fn probe_io_uring() -> Result<IoUringFacts, UnavailableReason> {
    #[cfg(all(target_os = "linux", feature = "io-uring"))]
    return linux::probe();
    #[cfg(all(target_os = "linux", not(feature = "io-uring")))]
    return Err(UnavailableReason::NotCompiled);
    #[cfg(not(target_os = "linux"))]
    return Err(UnavailableReason::UnsupportedPlatform {
        platform: std::env::consts::OS.to_owned(),
    });
}

#[cfg(all(target_os = "linux", feature = "io-uring"))]
mod linux {
    use std::io;

    use io_uring::{IoUring, Probe, opcode};

    use super::IoUringFacts;
    use crate::storage::UnavailableReason;

    /// The smallest ring that is worth the name.
    const ENTRIES: u32 = 2;

    /// What kernels offer, newest first: a kernel refuses flags that it does not know with `EINVAL`,
    /// and each of these came after the ones below it.
    const LADDER: [IoUringFacts; 4] = [
        IoUringFacts {
            coop_taskrun: true,
            single_issuer: true,
            defer_taskrun: true,
        },
        IoUringFacts {
            coop_taskrun: true,
            single_issuer: true,
            defer_taskrun: false,
        },
        IoUringFacts {
            coop_taskrun: true,
            single_issuer: false,
            defer_taskrun: false,
        },
        IoUringFacts {
            coop_taskrun: false,
            single_issuer: false,
            defer_taskrun: false,
        },
    ];

    const NEEDED: [(u8, &str); 3] = [
        (opcode::Read::CODE, "IORING_OP_READ"),
        (opcode::ReadFixed::CODE, "IORING_OP_READ_FIXED"),
        (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
    ];

    pub fn probe() -> Result<IoUringFacts, UnavailableReason> {
        let (ring, facts) = open_best(ring_with)
            .map_err(|error| reason("io_uring_setup", &error, sysctl(), memlock()))?;
        let mut operations = Probe::new();
        ring.submitter()
            .register_probe(&mut operations)
            .map_err(|error| reason("io_uring_register", &error, sysctl(), memlock()))?;
        missing(|code| operations.is_supported(code)).map_or(Ok(facts), Err)
    }

    /// The first rung of the ladder that the kernel takes.
    fn open_best<R>(open: impl Fn(IoUringFacts) -> io::Result<R>) -> io::Result<(R, IoUringFacts)> {
        let (last, better) = LADDER.split_last().expect("the ladder has rungs");
        for facts in better {
            match open(*facts) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                other => return other.map(|ring| (ring, *facts)),
            }
        }
        open(*last).map(|ring| (ring, *last))
    }

    fn ring_with(facts: IoUringFacts) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        if facts.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        if facts.single_issuer {
            builder.setup_single_issuer();
        }
        if facts.defer_taskrun {
            builder.setup_defer_taskrun();
        }
        builder.build(ENTRIES)
    }

    fn missing(is_supported: impl Fn(u8) -> bool) -> Option<UnavailableReason> {
        NEEDED
            .iter()
            .find(|(code, _)| !is_supported(*code))
            .map(|(_, name)| UnavailableReason::MissingFeature {
                feature: (*name).to_owned(),
            })
    }

    /// Why `call` failed, in our words. `sysctl` is `kernel.io_uring_disabled`, `memlock` the limit
    /// on locked memory, where there is one.
    fn reason(
        call: &str,
        error: &io::Error,
        sysctl: Option<u32>,
        memlock: Option<u64>,
    ) -> UnavailableReason {
        match (error.raw_os_error(), memlock) {
            (Some(libc::ENOSYS), _) => UnavailableReason::UnsupportedPlatform {
                platform: format!("this kernel (ENOSYS: {call})"),
            },
            (Some(libc::EPERM | libc::EACCES), _) => UnavailableReason::PermissionDenied { sysctl },
            // Kernels before 5.12 count rings as locked memory.
            (Some(libc::ENOMEM), Some(limit_bytes)) => UnavailableReason::Memlock { limit_bytes },
            (Some(libc::EMFILE | libc::ENFILE), _) => UnavailableReason::OutOfDescriptors,
            (Some(libc::EINVAL), _) => UnavailableReason::MissingFeature {
                feature: format!("what we need of {call} (EINVAL)"),
            },
            _ => UnavailableReason::UnsupportedPlatform {
                platform: format!("this system ({call}: {error})"),
            },
        }
    }

    fn sysctl() -> Option<u32> {
        std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn memlock() -> Option<u64> {
        rustix::process::getrlimit(rustix::process::Resource::Memlock).current
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn each_refusal_has_its_reason() {
            let unsupported = |platform: &str| UnavailableReason::UnsupportedPlatform {
                platform: platform.to_owned(),
            };
            let denied = UnavailableReason::PermissionDenied { sysctl: Some(2) };
            for (errno, memlock, expected) in [
                (
                    libc::ENOSYS,
                    None,
                    unsupported("this kernel (ENOSYS: io_uring_setup)"),
                ),
                (libc::EPERM, None, denied.clone()),
                (libc::EACCES, Some(9), denied),
                (
                    libc::ENOMEM,
                    Some(65536),
                    UnavailableReason::Memlock { limit_bytes: 65536 },
                ),
                (
                    libc::EINVAL,
                    None,
                    UnavailableReason::MissingFeature {
                        feature: "what we need of io_uring_setup (EINVAL)".to_owned(),
                    },
                ),
            ] {
                let error = io::Error::from_raw_os_error(errno);
                let reason = reason("io_uring_setup", &error, Some(2), memlock);
                assert_eq!(reason, expected, "{error}");
            }
            // Without a limit on locked memory, out of memory is out of memory.
            let error = io::Error::from_raw_os_error(libc::ENOMEM);
            let text = reason("io_uring_setup", &error, None, None).to_string();
            assert!(text.contains(&error.to_string()), "{text}");
            let error = io::Error::from_raw_os_error(libc::EMFILE);
            let reason = reason("io_uring_setup", &error, None, Some(9));
            assert!(reason.remedy().contains("ulimit -n"), "{reason}");
        }

        #[test]
        fn old_kernels_get_the_flags_that_they_know() {
            for rung in 0..LADDER.len() {
                let (_, facts) = open_best(|facts| {
                    if LADDER[rung..].contains(&facts) {
                        Ok(())
                    } else {
                        Err(io::Error::from_raw_os_error(libc::EINVAL))
                    }
                })
                .unwrap();
                assert_eq!(facts, LADDER[rung]);
            }
            for errno in [libc::EINVAL, libc::ENOSYS] {
                let error =
                    open_best(|_| Err::<(), _>(io::Error::from_raw_os_error(errno))).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(errno));
            }
        }

        #[test]
        fn a_missing_operation_is_named() {
            assert_eq!(missing(|_| true), None);
            assert_eq!(
                missing(|code| code != opcode::Read::CODE),
                Some(UnavailableReason::MissingFeature {
                    feature: "IORING_OP_READ".to_owned()
                })
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_twice_gives_the_same_answer() {
        let first = IoUringAvailability::from(probe_io_uring());
        assert_eq!(IoUringAvailability::from(probe_io_uring()), first);
        if let IoUringAvailability::Available(facts) = first {
            assert!(facts.single_issuer || !facts.defer_taskrun);
        }
    }

    #[test]
    fn availability_is_flat_json() {
        let json = serde_json::to_value(IoUringAvailability::Unavailable(
            UnavailableReason::Memlock { limit_bytes: 8 },
        ))
        .unwrap();
        assert_eq!(
            json,
            serde_json::json!({"status": "unavailable", "reason": "memlock", "limit_bytes": 8})
        );
    }
}
