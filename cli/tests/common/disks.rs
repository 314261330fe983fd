//! Disks that are too small, and folders that may not be written to, where such can be had.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small tmpfs, where this may be mounted.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    pub fn mount(at: &Path, bytes: u64) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={bytes}");
        mount(&["-t", "tmpfs", "-o", &size, "tmpfs"], at).then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

/// A folder that nobody may write to, nor to those in it. Root may write whatever the permissions
/// say, but not to what is mounted read-only.
pub struct ReadOnly {
    folder: PathBuf,
    is_mounted: bool,
}

impl ReadOnly {
    pub fn make(folder: &Path) -> Option<Self> {
        let mut made = Self {
            folder: folder.to_owned(),
            is_mounted: false,
        };
        set_mode(folder, 0o555);
        let probe = folder.join("probe");
        if std::fs::write(&probe, b"").is_err() {
            return Some(made);
        }
        std::fs::remove_file(probe).unwrap();
        made.is_mounted = mount(&["--bind", folder.to_str().unwrap()], folder);
        let is_read_only = made.is_mounted && mount(&["-o", "remount,bind,ro"], folder);
        is_read_only.then_some(made)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        if self.is_mounted {
            unmount(&self.folder);
        }
        set_mode(&self.folder, 0o755);
    }
}

fn set_mode(folder: &Path, mode: u32) {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            set_mode(&entry.path(), mode);
        }
    }
}

fn mount(words: &[&str], at: &Path) -> bool {
    let mut command = Command::new("mount");
    let status = command.args(words).arg(at).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// What a killed program still holds open keeps a mount busy for a moment; after that it goes as soon
/// as it can.
fn unmount(at: &Path) {
    let run = |words: &[&str]| {
        let mut command = Command::new("umount");
        let status = command.args(words).arg(at).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    for _ in 0..20 {
        if run(&[]) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    run(&["-l"]);
}
