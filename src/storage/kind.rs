//! Names of the backends, and the reasons why one may be unavailable.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Who moves the bytes. One spelling table, shared by programs, language bindings and the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// Let the policy choose, and say why.
    #[default]
    Default,
    /// Positioned POSIX reads on several threads.
    Sync,
    /// Tokio tasks, grouped per file.
    Async,
    /// Linux io_uring.
    IoUring,
    /// Private copy-on-write file mappings.
    Mmap,
}

impl BackendKind {
    /// The four that can execute a schedule.
    pub const CONCRETE: [BackendKind; 4] = [
        BackendKind::Sync,
        BackendKind::Async,
        BackendKind::IoUring,
        BackendKind::Mmap,
    ];

    const SPELLINGS: &'static [(&'static str, BackendKind)] = &[
        ("default", BackendKind::Default),
        ("sync", BackendKind::Sync),
        ("async", BackendKind::Async),
        ("tokio", BackendKind::Async),
        ("io-uring", BackendKind::IoUring),
        ("io_uring", BackendKind::IoUring),
        ("mmap", BackendKind::Mmap),
    ];

    /// The canonical spelling.
    pub fn name(self) -> &'static str {
        Self::SPELLINGS
            .iter()
            .find(|(_, kind)| *kind == self)
            .map(|(name, _)| *name)
            .expect("every kind is in the table")
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A backend name that is not in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownBackend(String);

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown backend {}; use one of default, sync, async, io-uring, mmap",
            crate::text::quoted(&self.0)
        )
    }
}

impl std::error::Error for UnknownBackend {}

impl FromStr for BackendKind {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::SPELLINGS
            .iter()
            .find(|(spelling, _)| spelling.eq_ignore_ascii_case(name))
            .map(|(_, kind)| *kind)
            .ok_or_else(|| UnknownBackend(name.to_owned()))
    }
}

/// Why a backend cannot run here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum UnavailableReason {
    /// The operating system has no such facility.
    UnsupportedPlatform {
        /// The system we run on, such as `macos`, or the missing system call.
        platform: String,
    },
    /// The kernel refused: a seccomp filter (containers) or the `kernel.io_uring_disabled` sysctl.
    PermissionDenied {
        /// Value of `kernel.io_uring_disabled` where it could be read.
        sysctl: Option<u32>,
    },
    /// The kernel is there but lacks an operation that we need.
    MissingFeature {
        /// The operation, such as `IORING_OP_READ`.
        feature: String,
    },
    /// The locked-memory limit does not allow a ring.
    Memlock {
        /// `RLIMIT_MEMLOCK` in bytes.
        limit_bytes: u64,
    },
    /// The process has all the files open that it may have: a ring is one more.
    OutOfDescriptors,
    /// This build left the backend out.
    NotCompiled,
}

impl fmt::Display for UnavailableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedPlatform { platform } => write!(f, "not supported on {platform}"),
            Self::PermissionDenied {
                sysctl: Some(value),
            } if *value > 0 => {
                write!(f, "permission denied (kernel.io_uring_disabled = {value})")
            }
            Self::PermissionDenied { .. } => {
                f.write_str("permission denied (EPERM, usually a container's seccomp profile)")
            }
            Self::MissingFeature { feature } => write!(f, "this kernel lacks {feature}"),
            Self::Memlock { limit_bytes } => {
                write!(
                    f,
                    "the locked-memory limit of {limit_bytes} bytes does not allow a ring"
                )
            }
            Self::OutOfDescriptors => f.write_str("too many files are open for a ring"),
            Self::NotCompiled => f.write_str("left out of this build"),
        }
    }
}

impl UnavailableReason {
    /// What the user can do: one sentence without a full stop.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::UnsupportedPlatform { .. } => "use the sync, async or default backend here",
            Self::PermissionDenied { .. } => {
                "allow io_uring_setup in the seccomp profile or set kernel.io_uring_disabled=0, \
                 or use the default backend, which does without"
            }
            Self::MissingFeature { .. } => {
                "use a newer kernel, or the default backend, which does without"
            }
            Self::Memlock { .. } => {
                "raise it with ulimit -l, or use the default backend, which does without"
            }
            Self::OutOfDescriptors => {
                "raise the limit with ulimit -n, or use the default backend, which does without"
            }
            Self::NotCompiled => "build with the feature io-uring, or use the default backend",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_parses_and_canonical_names_round_trip() {
        for (name, kind) in BackendKind::SPELLINGS {
            assert_eq!(name.parse::<BackendKind>().as_ref(), Ok(kind));
            assert_eq!(kind.name().parse::<BackendKind>().as_ref(), Ok(kind));
        }
        assert!(
            "uring"
                .parse::<BackendKind>()
                .unwrap_err()
                .to_string()
                .contains("io-uring")
        );
    }
}
