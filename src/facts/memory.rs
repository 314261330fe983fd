//! Memory of the machine, and how much of it the cgroup allows.

use serde::Serialize;

#[cfg(target_os = "linux")]
use super::{
    cgroup::{Hierarchy, Usage},
    procfs::kib_field,
};

/// Whether anonymous memory may come in transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HugePages {
    /// Every suitable mapping gets them.
    Always,
    /// Mappings that ask with `madvise` get them.
    Madvise,
    /// Nobody gets them.
    Never,
    /// The system does not say.
    Unknown,
}

impl HugePages {
    /// `/sys/kernel/mm/transparent_hugepage/enabled`, and since Linux 6.8 the setting of the 2 MiB
    /// size below it, which overrides the first unless it says `inherit`.
    #[cfg(target_os = "linux")]
    pub(super) fn probe() -> Self {
        const ROOT: &str = "/sys/kernel/mm/transparent_hugepage";
        let read = |name: &str| std::fs::read_to_string(format!("{ROOT}/{name}"));
        let own = read("hugepages-2048kB/enabled").map_or(Self::Unknown, |text| Self::parse(&text));
        match own {
            Self::Unknown => read("enabled").map_or(Self::Unknown, |text| Self::parse(&text)),
            own => own,
        }
    }

    /// The word in brackets of `always [madvise] never`.
    #[cfg(any(test, target_os = "linux"))]
    fn parse(text: &str) -> Self {
        let chosen = text
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map(|(word, _)| word);
        match chosen {
            Some("always") => Self::Always,
            Some("madvise") => Self::Madvise,
            Some("never") => Self::Never,
            _ => Self::Unknown,
        }
    }
}

/// Memory in bytes; `None` where the system does not say or sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryFacts {
    /// Memory of the machine (`MemTotal`).
    pub total_bytes: Option<u64>,
    /// What programs can get without swapping (`MemAvailable`), before any cgroup limit.
    pub available_bytes: Option<u64>,
    /// The limit that leaves least, among those of this process's cgroup and the ones above it.
    pub cgroup_limit_bytes: Option<u64>,
    /// What the cgroup of that limit uses, page cache included.
    pub cgroup_used_bytes: Option<u64>,
    /// How much of that is page cache that the kernel gives up under pressure.
    pub cgroup_cache_bytes: Option<u64>,
}

impl MemoryFacts {
    /// What this process could have at most if nothing else used memory: the machine's or the
    /// cgroup's, whichever is smaller.
    pub fn ceiling_bytes(&self) -> Option<u64> {
        match (self.total_bytes, self.cgroup_limit_bytes) {
            (Some(machine), Some(cgroup)) => Some(machine.min(cgroup)),
            (machine, cgroup) => machine.or(cgroup),
        }
    }

    /// What this process can still get before something has to give: the smaller of what the
    /// machine has available and what the cgroup leaves once its page cache is given up.
    pub fn headroom_bytes(&self) -> Option<u64> {
        let in_cgroup = self.cgroup_limit_bytes.map(|limit| {
            let used = self.cgroup_used_bytes.unwrap_or(0);
            let cache = self.cgroup_cache_bytes.unwrap_or(0);
            limit.saturating_sub(used.saturating_sub(cache))
        });
        match (self.available_bytes, in_cgroup) {
            (Some(machine), Some(cgroup)) => Some(machine.min(cgroup)),
            (machine, cgroup) => machine.or(cgroup),
        }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn probe(cgroups: &[Hierarchy]) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let meminfo = read("/proc/meminfo");
        let total_bytes = kib_field(&meminfo, "MemTotal:");
        let tightest = cgroups
            .iter()
            .flat_map(|hierarchy| hierarchy.levels(total_bytes.unwrap_or(u64::MAX), read))
            .min_by_key(Usage::left);
        Self {
            total_bytes,
            available_bytes: kib_field(&meminfo, "MemAvailable:"),
            cgroup_limit_bytes: tightest.as_ref().map(|usage| usage.limit_bytes),
            cgroup_used_bytes: tightest.as_ref().map(|usage| usage.used_bytes),
            cgroup_cache_bytes: tightest.as_ref().map(|usage| usage.cache_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_counts() {
        for (text, expected) in [
            ("[always] madvise never\n", HugePages::Always),
            ("always [madvise] never\n", HugePages::Madvise),
            ("always madvise [never]\n", HugePages::Never),
            ("always [inherit] madvise never\n", HugePages::Unknown),
            ("always", HugePages::Unknown),
            ("", HugePages::Unknown),
        ] {
            assert_eq!(HugePages::parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn headroom_is_what_both_machine_and_cgroup_leave() {
        let mut memory = MemoryFacts::default();
        assert_eq!(memory.headroom_bytes(), None);
        memory.available_bytes = Some(1000);
        assert_eq!(memory.headroom_bytes(), Some(1000));
        memory.cgroup_limit_bytes = Some(900);
        memory.cgroup_used_bytes = Some(800);
        memory.cgroup_cache_bytes = Some(300);
        assert_eq!(memory.headroom_bytes(), Some(400));
        memory.available_bytes = None;
        assert_eq!(memory.headroom_bytes(), Some(400));
    }
}
