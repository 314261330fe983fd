//! The mount table: `/proc/self/mountinfo`, parsed once per probe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One mounted filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// `MAJOR:MINOR` of the device as the kernel writes it.
    pub device: String,
    /// Folder of the filesystem that is mounted: `/` unless it is a bind mount or a container's.
    pub root: String,
    /// Where it is mounted.
    pub point: String,
    /// Filesystem type with its subtype: `ext4`, `fuse.sshfs`.
    pub kind: String,
    /// What is mounted: a device, a server, or a word.
    pub source: String,
    /// Options of the filesystem, such as the controllers of a cgroup hierarchy.
    pub options: String,
}

/// Mounts by their id.
#[derive(Debug, Default)]
pub(super) struct Mounts(BTreeMap<u64, Mount>);

impl Mounts {
    /// The mounts that this process sees; empty where there is no such table.
    pub fn read() -> Self {
        std::fs::read_to_string("/proc/self/mountinfo")
            .map(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// Lines that cannot be understood are left out.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    pub fn get(&self, id: u64) -> Option<&Mount> {
        self.0.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.values()
    }
}

/// `36 35 98:0 /root /point options [optional fields] - kind source options`
fn parse_line(line: &str) -> Option<(u64, Mount)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    let id = left.next()?.parse().ok()?;
    let device = left.nth(1)?.to_owned();
    let root = unescaped(left.next()?);
    let point = unescaped(left.next()?);
    let mut right = right.split(' ');
    let mount = Mount {
        device,
        root,
        point,
        kind: unescaped(right.next()?),
        source: unescaped(right.next()?),
        options: unescaped(right.next().unwrap_or_default()),
    };
    Some((id, mount))
}

/// Undoes the kernel's `\040` for a space and the like.
fn unescaped(field: &str) -> String {
    if !field.contains('\\') {
        return field.to_owned();
    }
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'\\')
            .then(|| field.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 4 } else { 1 };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Where something is mounted in `folder` itself: paths of its entries, links in the folder's own
/// path resolved.
pub(crate) fn points_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(folder) = folder.canonicalize() else {
        return Vec::new();
    };
    let mounts = Mounts::read();
    let points = mounts.iter().map(|mount| PathBuf::from(&mount.point));
    points
        .filter(|point| point.parent() == Some(&*folder))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_optional_fields_are_understood() {
        let mounts = Mounts::parse(
            "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
             27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard\n\
             40 27 0:44 /sub /mnt/with\\040space rw - fuse.sshfs me@host:/a\\011b rw,user_id=0\n\
             41 27 0:45 / /back\\134slash rw - tmpfs  rw\n\
             nonsense\n\
             x 27 0:45 / / rw - tmpfs tmpfs rw\n",
        );
        assert_eq!(mounts.iter().count(), 4);
        assert_eq!(mounts.get(27).unwrap().kind, "ext4");
        assert_eq!(mounts.get(27).unwrap().device, "254:0");
        let sshfs = mounts.get(40).unwrap();
        assert_eq!(sshfs.kind, "fuse.sshfs");
        assert_eq!(sshfs.root, "/sub");
        assert_eq!(sshfs.point, "/mnt/with space");
        assert_eq!(sshfs.source, "me@host:/a\tb");
        assert_eq!(mounts.get(41).unwrap().point, "/back\\slash");
        assert_eq!(mounts.get(41).unwrap().source, "");
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        assert_eq!(unescaped("a\\"), "a\\");
        assert_eq!(unescaped("a\\9x"), "a\\9x");
        assert_eq!(unescaped("\\777"), "\\777");
        assert_eq!(unescaped("\\é"), "\\é");
    }
}
