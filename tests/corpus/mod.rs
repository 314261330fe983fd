//! The lines of `tests/cases/EXPECT.tsv`.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};

pub struct Case {
    pub name: String,
    pub accepted: bool,
    pub format: String,
    pub path: PathBuf,
    pub error_class: String,
    pub must_name: String,
    pub also_allowed: String,
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// Every case, with the path that a checkpoint is opened by. A Hub cache is opened by its
/// snapshot folder here; resolving model ids has its own tests.
pub fn cases() -> Vec<Case> {
    let table = std::fs::read_to_string(folder().join("EXPECT.tsv")).unwrap();
    let cases: Vec<Case> = table.lines().skip(1).map(case).collect();
    assert_eq!(cases.len(), 51);
    cases
}

fn case(line: &str) -> Case {
    let mut columns: Vec<&str> = line.split('\t').collect();
    columns.resize(10, "");
    let mut path = folder().join(columns[5]);
    if columns[4] == "hf" {
        let snapshots = path.join("models--org--name/snapshots");
        path = std::fs::read_dir(snapshots)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
    }
    Case {
        name: columns[0].to_owned(),
        accepted: columns[1] == "ok",
        format: columns[4].to_owned(),
        path,
        error_class: columns[6].to_owned(),
        must_name: columns[7].to_owned(),
        also_allowed: columns[8].to_owned(),
    }
}

/// Whether `text` has all of `a|b`, and of each `x~y` at least one, whatever the case.
pub fn says(text: &str, must_name: &str) -> bool {
    let text = text.to_lowercase();
    let has = |fact: &str| text.contains(&fact.to_lowercase());
    must_name.split('|').all(|facts| facts.split('~').any(has))
}
