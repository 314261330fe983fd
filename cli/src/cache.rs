//! The folder that the programs keep things in, and the names in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// `TENSORA_CACHE_DIR`, else `tensora` in the cache folder of the operating system.
pub fn root() -> Result<PathBuf> {
    locate(|name| std::env::var_os(name), std::env::home_dir())
        .context("the home folder is unknown; set TENSORA_CACHE_DIR to a folder to keep samples in")
}

/// Where the converted copy of a model's snapshot lies.
///
/// Ids never hold `--`, so replacing the slash by it keeps different ids apart, and a snapshot's
/// name is its commit, so a new revision is a new folder.
pub fn converted(id: &str, snapshot: &Path) -> Result<PathBuf> {
    let revision = snapshot
        .file_name()
        .context("the snapshot of a model has a name")?;
    let mut slug = OsString::from(id.replace('/', "--"));
    slug.push("@");
    slug.push(revision);
    Ok(root()?.join(slug).join("serverlessllm"))
}

fn locate(var: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let folder = |name: &str| {
        var(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(own) = folder("TENSORA_CACHE_DIR") {
        return Some(own);
    }
    let system = if cfg!(target_os = "macos") {
        home.map(|home| home.join("Library/Caches"))
    } else if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else {
        // Relative paths in XDG variables are to be ignored.
        folder("XDG_CACHE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| home.map(|home| home.join(".cache")))
    };
    system.map(|system| system.join("tensora"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_variable_wins_and_empty_ones_count_as_unset() {
        let home = || Some(PathBuf::from("/home/u"));
        let own = |name: &str| (name == "TENSORA_CACHE_DIR").then(|| "/t".into());
        assert_eq!(locate(own, home()), Some("/t".into()));
        let empty = |_: &str| Some(OsString::new());
        if cfg!(target_os = "linux") {
            assert_eq!(locate(empty, home()), Some("/home/u/.cache/tensora".into()));
            let xdg = |name: &str| (name == "XDG_CACHE_HOME").then(|| "/x".into());
            assert_eq!(locate(xdg, home()), Some("/x/tensora".into()));
        }
        assert_eq!(locate(empty, None), None);
    }

    #[test]
    fn ids_and_revisions_do_not_collide() {
        let names = [
            ("a/b-c", "1"),
            ("a-b/c", "1"),
            ("a/b-c", "2"),
            ("a-b-c", "1"),
        ]
        .map(|(id, commit)| converted(id, Path::new("/s").join(commit).as_path()).unwrap());
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{}", name.display());
        }
    }
}
