//! Where the programs keep things: the places that the operating system has for them.

use std::ffi::OsString;
use std::path::PathBuf;

/// A folder by the variables that name it.
#[derive(Debug)]
pub struct Folder {
    /// Our own variable, which wins and names the folder itself.
    own: &'static str,
    /// What names its parent elsewhere than on macOS and Windows.
    xdg: &'static str,
    /// That parent below the home folder, where the variable is not set.
    default: &'static str,
    /// The parent below the home folder on macOS.
    macos: &'static str,
    /// What names the parent on Windows.
    windows: &'static str,
}

impl Folder {
    /// What can be made again.
    pub const CACHE: Self = Self {
        own: "TENSORA_CACHE_DIR",
        xdg: "XDG_CACHE_HOME",
        default: ".cache",
        macos: "Library/Caches",
        windows: "LOCALAPPDATA",
    };

    /// What the user has decided or measured.
    pub const CONFIG: Self = Self {
        own: "TENSORA_CONFIG_DIR",
        xdg: "XDG_CONFIG_HOME",
        default: ".config",
        macos: "Library/Application Support",
        windows: "APPDATA",
    };

    /// Its path; `None` where the home folder is not known either.
    pub fn path(&self) -> Option<PathBuf> {
        self.locate(|name| std::env::var_os(name), std::env::home_dir())
    }

    fn locate(
        &self,
        var: impl Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
    ) -> Option<PathBuf> {
        let folder = |name: &str| {
            var(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        if let Some(own) = folder(self.own) {
            return Some(own);
        }
        let system = if cfg!(target_os = "macos") {
            home.map(|home| home.join(self.macos))
        } else if cfg!(windows) {
            folder(self.windows)
        } else {
            // Relative paths in XDG variables are to be ignored.
            folder(self.xdg)
                .filter(|path| path.is_absolute())
                .or_else(|| home.map(|home| home.join(self.default)))
        };
        system.map(|system| system.join("tensora"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_variable_wins_and_empty_ones_count_as_unset() {
        let home = || Some(PathBuf::from("/home/u"));
        for (folder, own, xdg, default) in [
            (
                Folder::CACHE,
                "TENSORA_CACHE_DIR",
                "XDG_CACHE_HOME",
                ".cache",
            ),
            (
                Folder::CONFIG,
                "TENSORA_CONFIG_DIR",
                "XDG_CONFIG_HOME",
                ".config",
            ),
        ] {
            let set = |name: &str| (name == own).then(|| "/t".into());
            assert_eq!(folder.locate(set, home()), Some("/t".into()));
            let empty = |_: &str| Some(OsString::new());
            if cfg!(target_os = "linux") {
                let below_home = PathBuf::from("/home/u").join(default).join("tensora");
                assert_eq!(folder.locate(empty, home()), Some(below_home));
                let system = |name: &str| (name == xdg).then(|| "/x".into());
                assert_eq!(folder.locate(system, home()), Some("/x/tensora".into()));
            }
            assert_eq!(folder.locate(empty, None), None);
        }
    }
}
