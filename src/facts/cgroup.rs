//! Memory limits of control groups, versions 1 and 2.

use super::mounts::Mounts;
use super::procfs::field;

/// What one cgroup may use, and does. In bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Usage {
    pub limit_bytes: u64,
    /// Page cache included.
    pub used_bytes: u64,
    /// Page cache that can be given up.
    pub cache_bytes: u64,
}

impl Usage {
    /// What can still be had once the page cache is given up.
    pub fn left(&self) -> u64 {
        let held = self.used_bytes.saturating_sub(self.cache_bytes);
        self.limit_bytes.saturating_sub(held)
    }
}

/// A cgroup hierarchy that accounts memory, and our place in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    point: String,
    /// Below `point`, with a leading slash unless it is empty.
    path: String,
    names: &'static Names,
}

/// What the files of one cgroup version are called.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    limit: &'static str,
    used: &'static str,
    /// The fields of `memory.stat` that are page cache and not shared memory.
    cache: [&'static str; 2],
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};

const V2: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    cache: ["inactive_file", "active_file"],
};

impl Hierarchy {
    /// The levels that limit memory, from our own cgroup up to the mount point. A limit of at
    /// least `total` bytes is none: cgroup v1 writes "no limit" as a huge number.
    pub fn levels<'a>(
        &'a self,
        total: u64,
        read: impl Fn(&str) -> String + 'a,
    ) -> impl Iterator<Item = Usage> + 'a {
        let up = |path: &&'a str| path.rfind('/').map(|slash| &path[..slash]);
        std::iter::successors(Some(self.path.as_str()), up).filter_map(move |path| {
            let file = |name: &str| read(&format!("{}{path}/{name}", self.point));
            let limit_bytes = file(self.names.limit).trim().parse().ok()?;
            if limit_bytes >= total {
                return None;
            }
            let stat = file("memory.stat");
            let cache = self.names.cache.iter().filter_map(|key| field(&stat, key));
            Some(Usage {
                limit_bytes,
                used_bytes: file(self.names.used).trim().parse().unwrap_or(0),
                cache_bytes: cache.fold(0, u64::saturating_add),
            })
        })
    }
}

/// Where our memory is accounted, from the text of `/proc/self/cgroup` and the mounts.
pub(super) fn hierarchies(self_cgroup: &str, mounts: &Mounts) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in self_cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (names, kind) = if controllers.is_empty() {
            (&V2, "cgroup2")
        } else if controllers.split(',').any(|name| name == "memory") {
            (&V1, "cgroup")
        } else {
            continue;
        };
        let mount = mounts.iter().find(|mount| {
            mount.kind == kind
                && (kind == "cgroup2" || mount.options.split(',').any(|name| name == "memory"))
        });
        if let Some(mount) = mount {
            found.push(Hierarchy {
                point: mount.point.trim_end_matches('/').to_owned(),
                path: below(path, &mount.root).to_owned(),
                names,
            });
        }
    }
    found
}

/// `path` as seen below a mount of the folder `root`. In a container without its own cgroup
/// namespace both begin with the container's folder; a path that lies elsewhere (another
/// namespace's) gives the mount point itself, the nearest that can be seen.
fn below<'a>(path: &'a str, root: &str) -> &'a str {
    let root = root.trim_end_matches('/');
    let rest = path.strip_prefix(root).unwrap_or("").trim_end_matches('/');
    let hidden = rest.split('/').any(|part| part == "..");
    if rest.starts_with('/') && !hidden {
        rest
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_place_is_found_in_every_layout() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let v2_docker = "30 23 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let v1_docker = "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup c rw,memory\n";
        let unified = "/sys/fs/cgroup";
        let memory = "/sys/fs/cgroup/memory";
        for (self_cgroup, mounts, point, path) in [
            (
                "0::/user.slice/a.scope\n",
                v2,
                unified,
                "/user.slice/a.scope",
            ),
            ("0::/\n", v2, unified, ""),
            ("0::/docker/ab/x\n", v2_docker, unified, "/x"),
            ("0::/docker/abc\n", v2_docker, unified, ""),
            ("0::/../other\n", v2, unified, ""),
            ("4:cpu,memory:/job/1\n1:cpu:/z\n", v1, memory, "/job/1"),
            ("4:memory:/docker/ab\n", v1_docker, memory, ""),
            ("4:memory:/elsewhere\n", v1_docker, memory, ""),
        ] {
            let found = hierarchies(self_cgroup, &Mounts::parse(mounts));
            assert_eq!(found.len(), 1, "{self_cgroup}");
            assert_eq!(
                (found[0].point.as_str(), found[0].path.as_str()),
                (point, path)
            );
        }
        assert_eq!(hierarchies("nonsense\n0:x\n", &Mounts::parse(v2)), []);
        assert_eq!(hierarchies("1:cpu:/a\n", &Mounts::parse(v1)), []);
    }

    #[test]
    fn limits_are_collected_on_the_way_up() {
        let hierarchy = Hierarchy {
            point: "/cg".to_owned(),
            path: "/a/b".to_owned(),
            names: &V2,
        };
        let read = |path: &str| {
            match path {
                "/cg/a/b/memory.max" => "max\n",
                "/cg/a/memory.max" => "1000\n",
                "/cg/a/memory.current" => "700\n",
                "/cg/a/memory.stat" => "anon 5\ninactive_file 100\nactive_file 50\nfile 500\n",
                "/cg/memory.max" => "5000\n",
                _ => "",
            }
            .to_owned()
        };
        let usage = |limit_bytes, used_bytes, cache_bytes| Usage {
            limit_bytes,
            used_bytes,
            cache_bytes,
        };
        let levels: Vec<_> = hierarchy.levels(1 << 40, read).collect();
        assert_eq!(levels, [usage(1000, 700, 150), usage(5000, 0, 0)]);
        assert_eq!(levels[0].left(), 450);

        let old = Hierarchy {
            names: &V1,
            ..hierarchy
        };
        let read = |path: &str| {
            match path {
                "/cg/a/b/memory.limit_in_bytes" => "4096\n",
                "/cg/a/b/memory.usage_in_bytes" => "8192\n",
                "/cg/memory.limit_in_bytes" => "9223372036854771712\n",
                _ => "",
            }
            .to_owned()
        };
        let levels: Vec<_> = old.levels(1 << 40, read).collect();
        assert_eq!(levels, [usage(4096, 8192, 0)]);
        assert_eq!(levels[0].left(), 0);
    }
}
