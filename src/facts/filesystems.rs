//! The filesystems that matter to us: one table of names, magic numbers and what lies below.

/// What a read of bytes that are not in the page cache goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// A block device, or something that behaves like one.
    Disk,
    /// Another machine, or a server in user space on this one.
    Network,
    /// Nothing: the page cache is the storage.
    Memory,
    /// Files of other filesystems, whose pages belong to those.
    Stacked,
}

use Medium::{Disk, Memory, Network, Stacked};

/// Name, number in `statfs`, medium. Names are the kernel's. A filesystem that is not listed counts
/// as a disk; list a new network filesystem here. Where several share a number, the first gives the
/// name.
const FILESYSTEMS: &[(&str, Option<u32>, Medium)] = &[
    ("ext4", Some(0xEF53), Disk),
    ("xfs", Some(0x5846_5342), Disk),
    ("btrfs", Some(0x9123_683E), Disk),
    ("f2fs", Some(0xF2F5_2010), Disk),
    ("zfs", Some(0x2FC1_2FC1), Disk),
    ("bcachefs", Some(0xCA45_1A4E), Disk),
    ("jfs", Some(0x3153_464A), Disk),
    ("reiserfs", Some(0x5265_4973), Disk),
    ("nilfs2", Some(0x3434), Disk),
    ("ocfs2", Some(0x7461_636F), Disk),
    ("gfs2", Some(0x0116_1970), Disk),
    ("exfat", Some(0x2011_BAB0), Disk),
    ("vfat", Some(0x4D44), Disk),
    ("ntfs3", Some(0x7366_746E), Disk),
    ("ntfs", Some(0x5346_544E), Disk),
    ("hfsplus", Some(0x482B), Disk),
    ("squashfs", Some(0x7371_7368), Disk),
    ("erofs", Some(0xE0F5_E1E2), Disk),
    ("iso9660", Some(0x9660), Disk),
    ("udf", Some(0x1501_3346), Disk),
    ("fuseblk", None, Disk),
    ("tmpfs", Some(0x0102_1994), Memory),
    ("ramfs", Some(0x8584_58F6), Memory),
    ("hugetlbfs", Some(0x9584_58F6), Memory),
    ("devtmpfs", None, Memory),
    ("overlay", Some(0x794C_7630), Stacked),
    ("aufs", Some(0x6175_6673), Stacked),
    ("nfs", Some(0x6969), Network),
    ("cifs", Some(0xFF53_4D42), Network),
    ("cifs", Some(0xFE53_4D42), Network),
    ("smbfs", Some(0x517B), Network),
    ("ceph", Some(0x00C3_6400), Network),
    ("lustre", Some(0x0BD0_0BD0), Network),
    ("gpfs", Some(0x4750_4653), Network),
    ("beegfs", Some(0x1983_0326), Network),
    ("orangefs", Some(0x2003_0528), Network),
    ("afs", Some(0x5346_414F), Network),
    ("coda", Some(0x7375_7245), Network),
    ("panfs", Some(0xAAD7_AAEA), Network),
    ("wekafs", None, Network),
    ("9p", Some(0x0102_1997), Network),
    ("vboxsf", Some(0x786F_4256), Network),
    ("fuse", Some(0x6573_5546), Network),
    ("virtiofs", None, Network),
];

/// Other names of the same thing.
const ALIASES: &[(&str, &str)] = &[
    ("nfs4", "nfs"),
    ("smb3", "cifs"),
    ("pvfs2", "orangefs"),
    ("overlayfs", "overlay"),
    ("fuse.fuse", "fuse"),
];

/// Subtypes of FUSE that stand before local files or disks. All others (sshfs, s3fs, gcsfuse,
/// rclone, JuiceFS, glusterfs, ...) are taken for network filesystems.
const LOCAL_FUSE: &[&str] = &[
    "bindfs",
    "dwarfs",
    "encfs",
    "exfat",
    "fuse-overlayfs",
    "gocryptfs",
    "mergerfs",
    "ntfs",
    "ntfs-3g",
    "squashfuse",
    "squashfuse_ll",
];

/// The spelling that facts use for a name from the mount table.
pub(super) fn canonical(kind: &str) -> &str {
    ALIASES
        .iter()
        .find(|(alias, _)| *alias == kind)
        .map_or(kind, |(_, name)| name)
}

/// The name for a number from `statfs`.
pub(super) fn by_magic(magic: u32) -> Option<&'static str> {
    FILESYSTEMS
        .iter()
        .find(|(_, number, _)| *number == Some(magic))
        .map(|(name, _, _)| *name)
}

/// What lies below the filesystem with this canonical name.
pub(super) fn medium(name: &str) -> Medium {
    let base = match name.split_once('.') {
        Some(("fuse", subtype)) if LOCAL_FUSE.contains(&subtype) => return Disk,
        Some((base, _)) => base,
        None => name,
    };
    FILESYSTEMS
        .iter()
        .find(|(listed, _, _)| *listed == base)
        .map_or(Disk, |(_, _, medium)| *medium)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_media() {
        for (kind, name, expected) in [
            ("ext4", "ext4", Disk),
            ("ext3", "ext3", Disk),
            ("somefs", "somefs", Disk),
            ("unknown", "unknown", Disk),
            ("nfs4", "nfs", Network),
            ("smb3", "cifs", Network),
            ("fuse", "fuse", Network),
            ("fuse.sshfs", "fuse.sshfs", Network),
            ("fuse.gcsfuse", "fuse.gcsfuse", Network),
            ("fuse.mergerfs", "fuse.mergerfs", Disk),
            ("fuseblk", "fuseblk", Disk),
            ("fuseblk.ntfs", "fuseblk.ntfs", Disk),
            ("9p", "9p", Network),
            ("tmpfs", "tmpfs", Memory),
            ("overlay", "overlay", Stacked),
        ] {
            assert_eq!(canonical(kind), name);
            assert_eq!(medium(name), expected, "{name}");
        }
    }

    #[test]
    fn numbers_are_listed_once_and_lead_to_names() {
        let mut numbers: Vec<_> = FILESYSTEMS.iter().filter_map(|entry| entry.1).collect();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all);
        assert_eq!(by_magic(0xEF53), Some("ext4"));
        assert_eq!(by_magic(0xFE53_4D42), Some("cifs"));
        assert_eq!(by_magic(0xFFFF_FFFF), None);
        for (name, _, _) in FILESYSTEMS {
            assert_eq!(canonical(name), *name);
        }
    }
}
