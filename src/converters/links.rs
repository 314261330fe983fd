//! Where symbolic links lead to, and in which folders files lie.

use std::path::{Path, PathBuf};

/// Links that are followed, one after the other, as many as the kernel's own limit.
pub(super) const MAX_LINKS: usize = 40;

/// A path, and all that links on the way from it lead to, also where nothing is there yet. It is
/// longer than [`MAX_LINKS`] where the links may have no end.
pub(super) fn way_from(file: &Path) -> Vec<PathBuf> {
    let mut way = vec![file.to_owned()];
    while way.len() <= MAX_LINKS {
        let last = &way[way.len() - 1];
        let Ok(to) = last.read_link() else {
            break;
        };
        // An absolute one takes the place of everything.
        way.push(last.parent().unwrap_or(Path::new("")).join(to));
    }
    way
}

/// The folder that a file lies in.
pub(super) fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
