//! io_uring denied for real, whole or in part: by a seccomp filter, and by the limit on locked
//! memory.

use rustix::process::{Resource, Rlimit, setrlimit};
use tensora::facts::IoUringAvailability;
use tensora::storage::UnavailableReason;
use tensora::{AccessMode, BackendKind, Checkpoint, Dtype, Engine, ErrorKind};

use crate::child;
use crate::deny_io_uring::{deny, deny_io_uring};
use crate::limits::{many, sparse};
use crate::log::Log;
use crate::support::{block_on, check_every_verb, compare, expected};

#[test]
fn a_filter_that_forbids_io_uring() {
    child::run("denied", &libc::EPERM.to_string());
}

#[test]
fn a_system_without_io_uring() {
    child::run("denied", &libc::ENOSYS.to_string());
}

#[test]
fn a_limit_of_no_locked_memory() {
    child::run("no-locked-memory", "");
}

#[test]
fn files_that_cannot_be_registered_are_read_through_descriptors() {
    // The table, as old kernels refuse it, and a slot of it.
    const FILES2: i32 = 13;
    const FILES_UPDATE: i32 = 6;
    for (opcode, errno) in [
        (FILES2, libc::EINVAL),
        (FILES2, libc::ENOMEM),
        (FILES_UPDATE, libc::EPERM),
    ] {
        child::run("no-registered-files", &format!("{opcode} {errno}"));
    }
}

pub fn no_registered_files(argument: &str) {
    let (opcode, errno) = argument.split_once(' ').unwrap();
    let (opcode, errno): (u32, i32) = (opcode.parse().unwrap(), errno.parse().unwrap());
    let engine = Engine::new();
    if let IoUringAvailability::Unavailable(reason) = engine.io_uring() {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIPPED: registered files: {reason}");
        return;
    }
    let log = Log::listen();
    // The second argument of six, whose lower half is the opcode.
    let second = 24 + if cfg!(target_endian = "big") { 4 } else { 0 };
    deny(
        errno,
        &[(0, libc::SYS_io_uring_register as u32), (second, opcode)],
    );
    let sample = many();
    let options = Checkpoint::options().engine(engine);
    let checkpoint = options.open(sample.folder.path()).unwrap();
    let loader = checkpoint.loader().settings(tensora::Settings {
        backend: BackendKind::IoUring,
        workers: Some(3),
        ..tensora::Settings::default()
    });
    let loaded = loader.load().unwrap();
    compare("no registered files", &loaded, &sample.all());
    let said = log.take("cannot be registered");
    assert_eq!(said.len(), 1, "once for a load of three rings: {said:?}");
}

pub fn denied(errno: &str) {
    let errno: i32 = errno.parse().unwrap();
    let before = Engine::new().io_uring();
    deny_io_uring(errno);
    let engine = Engine::new();
    let IoUringAvailability::Unavailable(reason) = engine.io_uring() else {
        panic!("io_uring is there although its system call fails");
    };
    match (&reason, errno) {
        (UnavailableReason::PermissionDenied { .. }, libc::EPERM) => {}
        (UnavailableReason::UnsupportedPlatform { platform }, libc::ENOSYS) => {
            assert!(platform.contains("ENOSYS"), "{reason}");
        }
        // Left out of this build, or refused before we came.
        _ => assert_eq!(before, IoUringAvailability::Unavailable(reason.clone())),
    }
    let (folder, checkpoint) = small(engine);
    works_without(&checkpoint, &reason);
    says_why(&reason);
    drop(folder);
}

pub fn no_locked_memory() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Memlock, none).unwrap();
    drop_ipc_lock();
    let engine = Engine::new();
    let (_folder, checkpoint) = small(engine.clone());
    match engine.io_uring() {
        // Kernels since 5.12 charge rings elsewhere.
        IoUringAvailability::Available(_) => {
            let contents = vec![std::fs::read(checkpoint.sources()[0].path()).unwrap()];
            let expected = expected(&checkpoint, &contents, |_| Some(None));
            for backend in [BackendKind::IoUring, BackendKind::Default] {
                let loader = checkpoint.loader().backend(backend);
                check_every_verb("no locked memory", &loader, &expected);
            }
        }
        IoUringAvailability::Unavailable(reason) => works_without(&checkpoint, &reason),
    }
}

fn small(engine: Engine) -> (tempfile::TempDir, Checkpoint) {
    let (folder, checkpoint) = sparse(
        &[("w", Dtype::F32, &[5000]), ("v", Dtype::U8, &[7])],
        &[0, 12_000],
    );
    let path = checkpoint.sources()[0].path().to_owned();
    (
        folder,
        Checkpoint::options().engine(engine).open(path).unwrap(),
    )
}

/// An explicit choice is refused with the reason; every other one loads.
fn works_without(checkpoint: &Checkpoint, reason: &UnavailableReason) {
    let explicit = checkpoint.loader().backend(BackendKind::IoUring);
    let mut memory = (vec![0; 20_000], vec![0; 7]);
    let errors = [
        explicit.load().unwrap_err(),
        explicit.schedule().unwrap_err(),
        explicit.stream().unwrap_err(),
        block_on(explicit.load_async()).unwrap_err(),
        explicit
            .load_into([("w", &mut memory.0[..]), ("v", &mut memory.1[..])])
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(
            error.unavailable_reason(),
            Some((BackendKind::IoUring, reason))
        );
        let text = error.to_string();
        assert!(text.contains(&reason.to_string()), "{text}");
        assert!(
            text.contains("default backend") || text.contains("or default"),
            "{text}"
        );
    }
    let contents = vec![std::fs::read(checkpoint.sources()[0].path()).unwrap()];
    let expected = expected(checkpoint, &contents, |_| Some(None));
    for backend in [
        BackendKind::Default,
        BackendKind::Sync,
        BackendKind::Async,
        BackendKind::Mmap,
    ] {
        let loader = checkpoint.loader().backend(backend);
        check_every_verb(&format!("without io_uring, {backend}"), &loader, &expected);
    }
}

/// Where `default` would have taken a ring, it says why it did not.
fn says_why(reason: &UnavailableReason) {
    let (_folder, checkpoint) = sparse(&[("w", Dtype::U8, &[80 << 20])], &[]);
    let loader = checkpoint.loader().access(AccessMode::Direct);
    let decision = loader.schedule().unwrap().decision().clone();
    assert_ne!(decision.backend, BackendKind::IoUring);
    let direct = loader.facts(&loader.plan().unwrap()).sources[0].direct;
    if direct.is_some() {
        assert!(
            decision.reason.contains(&reason.to_string()),
            "{}",
            decision.reason
        );
    } else {
        use std::io::Write;
        let text =
            "SKIPPED: why default goes without io_uring: no O_DIRECT in the temporary folder";
        let _ = writeln!(std::io::stderr(), "{text}");
    }
    assert_eq!(loader.load().unwrap().bytes(), 80 << 20);
}

/// Gives up the right to lock memory beyond the limit, which root has.
fn drop_ipc_lock() {
    const CAP_IPC_LOCK: u32 = 14;
    /// `_LINUX_CAPABILITY_VERSION_3`.
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, 0];
    // Effective, permitted and inheritable, for the lower 32 capabilities and for the upper ones.
    let mut sets = [0_u32; 6];
    // SAFETY: version 3 reads a header of two words and writes six.
    let answer = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    sets[0] &= !(1 << CAP_IPC_LOCK);
    sets[1] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: version 3 reads a header of two words and six words.
    let answer = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}
