//! What holds a file: the filesystem, the disk below it, and what direct reads need there.

use std::path::Path;

use serde::Serialize;

/// The filesystem name where none could be told.
pub(super) const UNKNOWN: &str = "unknown";

/// What `O_DIRECT` reads must be aligned to, in bytes: powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct DirectAlign {
    /// Alignment of the address in memory.
    pub memory: u32,
    /// Alignment of the offset in the file and of the length.
    pub offset: u32,
}

/// Bytes that may still be written to the filesystem that `path` lies on; `None` where the system
/// does not say.
pub fn free_bytes(path: impl AsRef<Path>) -> Option<u64> {
    #[cfg(unix)]
    return {
        let stat = rustix::fs::statvfs(path.as_ref()).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    };
    #[cfg(not(unix))]
    return {
        let _ = path;
        None
    };
}

#[cfg(target_os = "linux")]
pub(super) use linux::{Places, medium_of, probe, ways};

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::fs::File;
    use std::ops::Range;
    use std::os::linux::fs::MetadataExt;
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, PoisonError};

    use rustix::fs::{AtFlags, Statx, StatxFlags};

    use super::{DirectAlign, UNKNOWN};
    use crate::facts::filesystems::{Medium, by_magic, canonical, medium};
    use crate::facts::mounts::{Mount, Mounts};
    use crate::facts::page_cache::{self, Ways};
    use crate::facts::{Residency, SourceFacts};
    use crate::storage::{Access, LocalFile, Source};

    /// Where the filesystem does not say what it needs: the logical block size of every disk that
    /// is sold divides it.
    const ASSUMED_ALIGN: u32 = 4096;

    /// An alignment beyond this is a misunderstanding.
    const LARGEST_ALIGN: u32 = 1 << 20;

    /// What holds the files of one mounted filesystem.
    #[derive(Debug, Clone)]
    struct Place {
        filesystem: String,
        medium: Medium,
        rotational: Option<bool>,
        device: Option<String>,
    }

    /// What is known of filesystems, by mount and device.
    #[derive(Debug, Default)]
    pub struct Places(Mutex<HashMap<(Option<u64>, u64), Place>>);

    impl Places {
        fn of<'a>(
            &self,
            file: &File,
            stat: Option<&Statx>,
            mounts: impl FnOnce() -> &'a Mounts,
        ) -> Place {
            let Some(stat) = stat else {
                return Place::find(file, None, mounts());
            };
            let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
            let key = (mount_id(stat), device);
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known
                .entry(key)
                .or_insert_with(|| Place::find(file, Some(stat), mounts()))
                .clone()
        }
    }

    impl Place {
        fn find(file: &File, stat: Option<&Statx>, mounts: &Mounts) -> Self {
            let (filesystem, mount) = filesystem_of(file, stat, mounts);
            let medium = medium(&filesystem);
            let disk = disk_below(file, mount);
            Self {
                rotational: match medium {
                    Medium::Disk => disk.as_deref().and_then(rotational),
                    _ => None,
                },
                device: match &disk {
                    Some(disk) => name_of(disk),
                    None => mount.map(|mount| mount.source.clone()),
                },
                filesystem,
                medium,
            }
        }
    }

    /// Observes one source; `ranges` are the parts that will be read.
    pub fn probe<'a>(
        source: &dyn Source,
        ranges: &[Range<u64>],
        places: &Places,
        mounts: impl FnOnce() -> &'a Mounts,
    ) -> SourceFacts {
        let unknown = SourceFacts::unknown(source.len());
        let Some(local) = source.local() else {
            return unknown;
        };
        let file = match local.descriptor(Access::Buffered) {
            Ok(file) => file,
            Err(error) => {
                // The load meets the same error and reports it.
                tracing::debug!(path = %crate::text::path(source.path()), %error, "nothing probed");
                return unknown;
            }
        };
        let stat = statx(&file);
        let place = places.of(&file, stat.as_ref(), mounts);
        SourceFacts {
            local: true,
            network: place.medium == Medium::Network,
            rotational: place.rotational,
            device: place.device,
            direct: match place.medium {
                // The page cache is the storage: there is nothing to go around.
                Medium::Memory => None,
                medium => direct(local, stat.as_ref(), medium),
            },
            residency: match place.medium {
                Medium::Memory => Residency::all(source.len()),
                medium => page_cache::probe(&file, ways(medium), ranges)
                    .unwrap_or_else(|| Residency::unknown(source.len())),
            },
            filesystem: place.filesystem,
        }
    }

    /// How the residency of a file on such a medium can be found out.
    pub fn ways(medium: Medium) -> Ways {
        Ways {
            count: medium != Medium::Stacked,
            ..Ways::BOTH
        }
    }

    /// What holds an open file.
    pub fn medium_of(file: &File, mounts: &Mounts) -> Medium {
        medium(&filesystem_of(file, statx(file).as_ref(), mounts).0)
    }

    fn statx(file: &File) -> Option<Statx> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | StatxFlags::DIOALIGN;
        rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).ok()
    }

    fn mount_id(stat: &Statx) -> Option<u64> {
        has(stat, StatxFlags::MNT_ID).then_some(stat.stx_mnt_id)
    }

    fn has(stat: &Statx, flag: StatxFlags) -> bool {
        stat.stx_mask & flag.bits() != 0
    }

    /// The name of the filesystem: the mount table knows subtypes and filesystems that no table of
    /// ours lists, the magic number works without a mount table.
    fn filesystem_of<'a>(
        file: &File,
        stat: Option<&Statx>,
        mounts: &'a Mounts,
    ) -> (String, Option<&'a Mount>) {
        let mount = stat.and_then(mount_id).and_then(|id| mounts.get(id));
        let name = match mount {
            Some(mount) => canonical(&mount.kind).to_owned(),
            None => rustix::fs::fstatfs(file)
                .ok()
                // The type's width and sign differ between architectures; magic numbers have 32 bits.
                .and_then(|stat| by_magic(stat.f_type as u32))
                .unwrap_or(UNKNOWN)
                .to_owned(),
        };
        (name, mount)
    }

    /// What direct reads need, or `None` where there are none.
    fn direct(local: &LocalFile, stat: Option<&Statx>, medium: Medium) -> Option<DirectAlign> {
        let told = stat
            .filter(|stat| has(stat, StatxFlags::DIOALIGN))
            .map(|stat| (stat.stx_dio_mem_align, stat.stx_dio_offset_align));
        let opens = || local.descriptor(Access::Direct).is_ok();
        match told {
            Some(align) if medium != Medium::Stacked => usable(align),
            // A stacked filesystem passes on what the one below says, but opens by its own rules.
            Some(align) => usable(align).filter(|_| opens()),
            None => opens().then_some(DirectAlign {
                memory: ASSUMED_ALIGN,
                offset: ASSUMED_ALIGN,
            }),
        }
    }

    /// Zeros mean that the file has no direct reads.
    fn usable((memory, offset): (u32, u32)) -> Option<DirectAlign> {
        let fine = |align: u32| align.is_power_of_two() && align <= LARGEST_ALIGN;
        (fine(memory) && fine(offset)).then_some(DirectAlign { memory, offset })
    }

    /// The folder of the disk or partition in sysfs. Filesystems without a device of their own
    /// (btrfs) name it as the mount's source.
    fn disk_below(file: &File, mount: Option<&Mount>) -> Option<PathBuf> {
        let mut device = file.metadata().ok()?.st_dev();
        if rustix::fs::major(device) == 0 {
            let node = mount.map(|mount| &mount.source)?;
            device = node
                .starts_with("/dev/")
                .then(|| std::fs::metadata(node).ok())??
                .st_rdev();
        }
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
    }

    /// The kernel's name of a disk or partition.
    fn name_of(disk: &Path) -> Option<String> {
        Some(disk.file_name()?.to_string_lossy().into_owned())
    }

    /// Whether the disk says that it turns.
    fn rotational(disk: &Path) -> Option<bool> {
        // A partition has no queue; its disk is the folder above.
        ["queue", "../queue"].into_iter().find_map(|queue| {
            let text = std::fs::read_to_string(disk.join(queue).join("rotational")).ok()?;
            Some(text.trim() == "1")
        })
    }

    #[cfg(test)]
    mod tests {
        use std::sync::Arc;

        use super::*;
        use crate::storage::{DescriptorCache, MemorySource};

        #[test]
        fn impossible_alignments_mean_no_direct_reads() {
            let align = |memory, offset| Some(DirectAlign { memory, offset });
            for (told, expected) in [
                ((512, 512), align(512, 512)),
                ((4, 4096), align(4, 4096)),
                ((0, 0), None),
                ((512, 0), None),
                ((500, 512), None),
                ((1 << 31, 512), None),
            ] {
                assert_eq!(usable(told), expected, "{told:?}");
            }
        }

        #[test]
        fn a_file_lies_where_the_mount_table_says() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("blob");
            std::fs::write(&path, vec![1; 100_000]).unwrap();
            let link = folder.path().join("link");
            std::os::unix::fs::symlink("blob", &link).unwrap();
            let cache = Arc::new(DescriptorCache::new(4));
            let source = LocalFile::open(&link, &cache).unwrap();
            let mounts = Mounts::read();
            let whole = 0..source.len();
            let facts = probe(
                &source,
                std::slice::from_ref(&whole),
                &Places::default(),
                || &mounts,
            );

            // The longest mount point that contains the file is its mount.
            let real = std::fs::canonicalize(&path).unwrap();
            let mount = mounts
                .iter()
                .filter(|mount| real.starts_with(&mount.point))
                .max_by_key(|mount| mount.point.len())
                .unwrap();
            assert_eq!(facts.filesystem, canonical(&mount.kind));
            assert_eq!(facts.residency.resident_bytes(whole.clone()), whole.end);
            if let Some(align) = facts.direct {
                assert!(align.memory.is_power_of_two() && align.offset.is_power_of_two());
                assert!(source.descriptor(Access::Direct).is_ok());
            }

            // The magic number and the mount table agree on the names that both know.
            let file = File::open(&path).unwrap();
            let (by_number, none) = filesystem_of(&file, None, &mounts);
            assert!(none.is_none());
            assert_eq!(medium(&by_number), medium(&facts.filesystem));
        }

        #[test]
        fn sources_that_are_no_files_or_are_gone_are_unknown() {
            let memory = MemorySource::new("bytes", vec![0; 10]);
            let mounts = Mounts::read();
            let observed = |source: &dyn Source| probe(source, &[], &Places::default(), || &mounts);
            assert_eq!(observed(&memory), SourceFacts::unknown(10));

            let folder = tempfile::tempdir().unwrap();
            let cache = Arc::new(DescriptorCache::new(1));
            let open = |name: &str| {
                let path = folder.path().join(name);
                std::fs::write(&path, b"four").unwrap();
                LocalFile::open(path, &cache).unwrap()
            };
            let gone = open("gone");
            std::fs::remove_file(gone.path()).unwrap();
            // Pushes the descriptor of the first file out of the cache.
            drop(open("other"));
            assert_eq!(observed(&gone), SourceFacts::unknown(4));
        }

        #[test]
        fn memory_filesystems_are_all_resident_and_never_direct() {
            // Present on every Linux with POSIX shared memory; elsewhere the name is what it is.
            let Ok(mut file) = tempfile::NamedTempFile::new_in("/dev/shm") else {
                return;
            };
            std::io::Write::write_all(&mut file, &[1; 5000]).unwrap();
            let cache = Arc::new(DescriptorCache::new(1));
            let source = LocalFile::open(file.path(), &cache).unwrap();
            let mounts = Mounts::read();
            let facts = probe(
                &source,
                std::slice::from_ref(&(0..5000)),
                &Places::default(),
                || &mounts,
            );
            if medium(&facts.filesystem) == Medium::Memory {
                assert_eq!(facts.direct, None);
                assert_eq!(facts.rotational, None);
                assert_eq!(facts.residency.resident_bytes(0..5000), 5000);
            }
        }
    }
}
