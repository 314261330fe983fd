//! Memory of the machine, and how much of it the cgroup allows.

use serde::Serialize;

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

/// Memory in bytes; `None` where the system does not say or sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryFacts {
    /// Memory of the machine (`MemTotal`).
    pub total_bytes: Option<u64>,
    /// What programs can get without swapping (`MemAvailable`), before any cgroup limit.
    pub available_bytes: Option<u64>,
    /// The tightest limit among this process's cgroup and those above it.
    pub cgroup_limit_bytes: Option<u64>,
    /// What that cgroup uses, page cache included.
    pub cgroup_used_bytes: Option<u64>,
    /// How much of that is page cache that the kernel gives up under pressure.
    pub cgroup_cache_bytes: Option<u64>,
}

impl MemoryFacts {
    /// What this process can still get before something has to give: the smaller of what the
    /// machine has available and what the cgroup leaves once its page cache is given up.
    pub fn headroom_bytes(&self) -> Option<u64> {
        let in_cgroup = self.cgroup_limit_bytes.map(|limit| {
            let used = self.cgroup_used_bytes.unwrap_or(0);
            let held = used.saturating_sub(self.cgroup_cache_bytes.unwrap_or(0));
            limit.saturating_sub(held)
        });
        match (self.available_bytes, in_cgroup) {
            (Some(machine), Some(cgroup)) => Some(machine.min(cgroup)),
            (machine, cgroup) => machine.or(cgroup),
        }
    }
}

impl HugePages {
    pub(super) fn probe() -> Self {
        Self::Unknown
    }
}

impl MemoryFacts {
    pub(super) fn probe() -> Self {
        Self::default()
    }
}
