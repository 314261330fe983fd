//! What an interrupted conversion has done: enough to go on where it stopped.
//!
//! The first line names the format and the fingerprint of the conversion; a conversion of anything
//! else, or with other options, has another one. Each line after it lists pieces that are on disk,
//! and is written only when they are: `done 0-17 20`. The last ones, `gone "NAME"`, list the files of
//! an earlier checkpoint that are to be removed: once some are, nobody could tell the others. A line
//! that a crash cut short has no end, and does not count.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use crate::converters::json;
use crate::converters::names::read_file;
use crate::error::{Error, Result};

const HEAD: &str = "tensora-convert 2 ";

/// What lines of obsolete files begin with.
const GONE: &str = "gone ";

/// A number that two different conversions hardly share: FNV-1a, 64 bits. It guards against mistakes
/// and not against malice: whoever can write the journal can write the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Takes a field in; its length goes in, too, so that fields do not run into each other.
    pub(super) fn add(&mut self, field: &[u8]) {
        let len = (field.len() as u64).to_le_bytes();
        for byte in len.iter().chain(field) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn head(self) -> String {
        format!("{HEAD}{:016x}\n", self.0)
    }
}

/// Whose work a journal describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// There is no journal, or not even its first line came to its end.
    Nobody,
    /// A conversion with this fingerprint.
    Same,
    /// Another conversion, or one by another version of this program.
    Other,
}

/// Whether the journal at `path` is of the conversion with this fingerprint.
pub(super) fn owner(path: &Path, fingerprint: Fingerprint) -> Owner {
    let Ok(text) = read_file(path) else {
        return Owner::Nobody;
    };
    let head = fingerprint.head();
    match text.starts_with(head.as_bytes()) {
        true => Owner::Same,
        false if text.contains(&b'\n') => Owner::Other,
        false => Owner::Nobody,
    }
}

/// What a journal says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// For each piece whether it is done.
    pub(super) done: Vec<bool>,
    /// Length of the journal up to its last whole line, in bytes.
    pub(super) len: u64,
}

/// What the journal at `path` says of `pieces` pieces; `None` where there is none, or it is of
/// another conversion.
pub(super) fn read(path: &Path, fingerprint: Fingerprint, pieces: usize) -> Option<Found> {
    let text = read_file(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    let head = fingerprint.head();
    let rest = text.strip_prefix(&head)?;
    let mut done = vec![false; pieces];
    let mut len = head.len();
    for line in rest.split_inclusive('\n') {
        let Some(whole) = line.strip_suffix('\n') else {
            break;
        };
        len += line.len();
        if whole.starts_with(GONE) {
            continue;
        }
        let runs = whole.strip_prefix("done")?;
        for run in runs.split_ascii_whitespace() {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            done.get_mut(first..=last)?.fill(true);
        }
    }
    Some(Found {
        done,
        len: len as u64,
    })
}

/// Writes the first line into an empty file.
pub(super) fn begin(file: &mut File, path: &Path, fingerprint: Fingerprint) -> Result<()> {
    append(file, path, &fingerprint.head())
}

/// Adds pieces that are on disk now.
pub(super) fn add(file: &mut File, path: &Path, mut pieces: Vec<usize>) -> Result<()> {
    if pieces.is_empty() {
        return Ok(());
    }
    pieces.sort_unstable();
    let mut line = "done".to_owned();
    for run in pieces.chunk_by(|a, b| a + 1 == *b) {
        let (first, last) = (run[0], run[run.len() - 1]);
        let _ = match first == last {
            true => write!(line, " {first}"),
            false => write!(line, " {first}-{last}"),
        };
    }
    line.push('\n');
    append(file, path, &line)
}

/// Adds files that are to be removed.
pub(super) fn add_obsolete(file: &mut File, path: &Path, names: &[String]) -> Result<()> {
    let lines: String = names
        .iter()
        .map(|name| format!("{GONE}{}\n", json(&**name)))
        .collect();
    append(file, path, &lines)
}

/// Files that the journal at `path`, of whichever conversion, lists for removal.
pub(super) fn obsolete(path: &Path) -> Vec<String> {
    let text = read_file(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text.split_inclusive('\n');
    let whole = lines.filter_map(|line| line.strip_prefix(GONE)?.strip_suffix('\n'));
    whole
        .filter_map(|name| serde_json::from_str(name).ok())
        .collect()
}

fn append(file: &mut File, path: &Path, line: &str) -> Result<()> {
    file.write_all(line.as_bytes())
        .and_then(|()| file.sync_data())
        .map_err(|error| Error::io("write", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_torn_lines_and_strangers_do_not_count() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("journal");
        let mut print = Fingerprint::new();
        print.add(b"a");
        let mut file = File::create(&path).unwrap();
        begin(&mut file, &path, print).unwrap();
        add(&mut file, &path, vec![3, 1, 2, 7]).unwrap();
        add(&mut file, &path, Vec::new()).unwrap();
        let found = read(&path, print, 9).unwrap();
        let expected = [1, 2, 3, 7];
        assert!((0..9).all(|at| found.done[at] == expected.contains(&at)));
        assert_eq!(found.len, path.metadata().unwrap().len());
        assert_eq!(read(&path, print, 7), None, "fewer pieces than it lists");
        assert_eq!(read(&path, Fingerprint::new(), 9), None);
        assert_eq!(owner(&path, print), Owner::Same);
        assert_eq!(owner(&path, Fingerprint::new()), Owner::Other);
        let names = ["a \"b\"\n".to_owned(), "c".to_owned()];
        add_obsolete(&mut file, &path, &names).unwrap();
        assert_eq!(obsolete(&path), names);
        let with_names = read(&path, print, 9).unwrap();
        assert_eq!(with_names.done, found.done);
        let found = with_names;
        file.write_all(b"done 8").unwrap();
        assert_eq!(read(&path, print, 9), Some(found));
        let none = scratch.path().join("none");
        assert_eq!(read(&none, print, 9), None);
        assert_eq!(owner(&none, print), Owner::Nobody);
        std::fs::write(&none, b"tensora-conv").unwrap();
        assert_eq!(owner(&none, print), Owner::Nobody);
    }
}
