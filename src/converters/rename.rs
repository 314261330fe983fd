//! Renaming a file to a name that nobody has.

use std::io;
use std::path::Path;

/// Renames `from` to `to`, which must not exist: [`io::ErrorKind::AlreadyExists`] otherwise.
///
/// One step where the kernel and the file system have such a rename; else a second name and the
/// removal of the first; and where files have one name only, a look before the rename.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rename_in_one_step(from, to) {
        Err(error) if is_unsupported(&error) => rename_in_two_steps(from, to),
        other => other,
    }
}

fn rename_in_two_steps(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::hard_link(from, to) {
        Ok(()) => std::fs::remove_file(from),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if to.symlink_metadata().is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => std::fs::rename(from, to),
    }
}

#[cfg(target_os = "linux")]
fn rename_in_one_step(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(target_os = "linux"))]
fn rename_in_one_step(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether the file system does not know the operation, as network and FUSE file systems say it.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    #[cfg(unix)]
    if matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOTSUP | libc::ENOSYS)
    ) {
        return true;
    }
    error.kind() == io::ErrorKind::Unsupported
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_way_moves_to_a_free_name_and_refuses_a_taken_one() {
        for rename in [rename_new, rename_in_two_steps] {
            let scratch = tempfile::tempdir().unwrap();
            let path = |name| scratch.path().join(name);
            std::fs::write(path("new"), b"new").unwrap();
            std::fs::write(path("old"), b"old").unwrap();
            let error = rename(&path("new"), &path("old")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(path("old")).unwrap(), b"old");
            rename(&path("new"), &path("free")).unwrap();
            assert_eq!(std::fs::read(path("free")).unwrap(), b"new");
            assert!(!path("new").exists());
        }
    }
}
