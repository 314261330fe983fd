//! What in a folder could be a SafeTensors checkpoint by itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

pub(super) const WEIGHTS: &str = ".safetensors";
pub(super) const INDEX: &str = ".safetensors.index.json";

/// An index, a set of numbered shards, or a file.
pub(super) struct Candidate {
    /// The name to show.
    pub(super) name: String,
    pub(super) what: What,
    /// The name without endings and shard numbers, the variant last: `model.fp16`.
    identity: String,
}

pub(super) enum What {
    Index(OsString),
    File(OsString),
    Set(ShardSet),
}

impl Candidate {
    /// Whether it is `stem` or a variant of it.
    pub(super) fn is_of(&self, stem: &str) -> bool {
        let rest = self.identity.strip_prefix(stem);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// The candidates among `files`, which are sorted. Files and sets that share their identity with
/// an index are part of that and not listed.
pub(super) fn candidates(files: &[OsString]) -> Vec<Candidate> {
    let mut indexes = Vec::new();
    let mut sets: BTreeMap<(&str, usize, &str), ShardSet> = BTreeMap::new();
    let mut others = Vec::new();
    for file in files {
        let name = file.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if let Some(identity) = index_identity(&name) {
            indexes.push(Candidate {
                name: name.into_owned(),
                what: What::Index(file.clone()),
                identity,
            });
        } else if let Some(shard) = file.to_str().and_then(Shard::parse) {
            sets.entry((shard.stem, shard.width, shard.end))
                .or_insert_with(|| ShardSet::like(&shard))
                .members
                .push((shard.number, file.clone()));
        } else if let Some(identity) = name.strip_suffix(WEIGHTS) {
            others.push(Candidate {
                identity: identity.to_owned(),
                name: name.into_owned(),
                what: What::File(file.clone()),
            });
        }
    }
    let indexed: Vec<String> = indexes.iter().map(|index| index.identity.clone()).collect();
    let sets = sets.into_values().map(|set| Candidate {
        name: set.shard("*"),
        identity: set.identity.clone(),
        what: What::Set(set),
    });
    let unindexed = sets
        .chain(others)
        .filter(|candidate| !indexed.contains(&candidate.identity));
    let unindexed: Vec<Candidate> = unindexed.collect();
    indexes.into_iter().chain(unindexed).collect()
}

/// `model.fp16` for `model.fp16.safetensors.index.json` and for the other common spelling,
/// `model.safetensors.index.fp16.json`.
fn index_identity(name: &str) -> Option<String> {
    if let Some(identity) = name.strip_suffix(INDEX) {
        return Some(identity.to_owned());
    }
    let (stem, variant) = name
        .strip_suffix(".json")?
        .rsplit_once(".safetensors.index.")?;
    (!variant.contains('.')).then(|| format!("{stem}.{variant}"))
}

/// Shards that are numbered as parts of one whole, without an index.
pub(super) struct ShardSet {
    identity: String,
    stem: String,
    end: String,
    width: usize,
    total: u64,
    members: Vec<(u64, OsString)>,
}

impl ShardSet {
    fn like(shard: &Shard) -> Self {
        Self {
            identity: match shard.variant {
                "" => shard.stem.to_owned(),
                variant => format!("{}.{variant}", shard.stem),
            },
            stem: shard.stem.to_owned(),
            end: shard.end.to_owned(),
            width: shard.width,
            total: shard.total,
            members: Vec::new(),
        }
    }

    fn shard(&self, number: &str) -> String {
        format!("{}-{number}{}", self.stem, self.end)
    }

    /// The files of the set in `folder`, in order; a set is usable only when it is complete.
    pub(super) fn complete(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let total = self.total;
        let mut numbers: Vec<u64> = self.members.iter().map(|member| member.0).collect();
        numbers.sort_unstable();
        let count = numbers.len();
        // Some writers count from 0.
        let first = u64::from(numbers.first() != Some(&0));
        let missing = numbers
            .iter()
            .zip(first..)
            .find(|&(&number, expected)| number != expected)
            .map(|(_, expected)| expected)
            .or_else(|| Some(first + count as u64).filter(|&next| next - first < total));
        if let Some(missing) = missing {
            let width = self.width;
            return Err(Error::new(
                ErrorKind::MissingShard,
                format!(
                    "this shard is missing: {count} of {total} numbered shards are there, and no \
                     index"
                ),
            )
            .at(folder.join(self.shard(&format!("{missing:0width$}"))))
            .help("the download or copy did not finish; fetch the missing file"));
        }
        if count as u64 > total {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{count} shards are numbered as parts of {total}: {}",
                    self.shard("*")
                ),
            )
            .at(folder)
            .help("remove the shards that do not belong, or add the index"));
        }
        let mut files: Vec<PathBuf> = self.members.iter().map(|m| folder.join(&m.1)).collect();
        files.sort_unstable();
        Ok(files)
    }
}

/// The parts of `STEM-00001-of-00002.safetensors` and `STEM-00001-of-00002.VARIANT.safetensors`.
struct Shard<'n> {
    stem: &'n str,
    number: u64,
    /// Digits of the number, leading zeros included.
    width: usize,
    total: u64,
    variant: &'n str,
    /// `-of-00002.safetensors`: what all shards of one set end in.
    end: &'n str,
}

impl<'n> Shard<'n> {
    fn parse(name: &'n str) -> Option<Self> {
        let of = name.rfind("-of-")?;
        let (front, end) = name.split_at(of);
        let (stem, number) = front.rsplit_once('-')?;
        let total = end.strip_prefix("-of-")?.strip_suffix(WEIGHTS)?;
        let (total, variant) = total.split_once('.').unwrap_or((total, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(number) || !digits(total) {
            return None;
        }
        Some(Self {
            stem,
            number: number.parse().ok()?,
            width: number.len(),
            total: total.parse().ok()?,
            variant,
            end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(files: &[&str]) -> Vec<(String, String)> {
        let files: Vec<OsString> = files.iter().map(OsString::from).collect();
        candidates(&files)
            .into_iter()
            .map(|candidate| (candidate.name, candidate.identity))
            .collect()
    }

    #[test]
    fn variants_are_one_thing_however_they_are_spelled() {
        let pair = |name: &str, identity: &str| (name.to_owned(), identity.to_owned());
        let index = "model.safetensors.index.fp16.json";
        for shard in [
            "model-00001-of-00002.fp16.safetensors",
            "model.fp16-00001-of-00002.safetensors",
            "model.fp16.safetensors",
        ] {
            assert_eq!(shown(&[index, shard]), [pair(index, "model.fp16")]);
        }
        assert_eq!(
            shown(&[
                "a-1-of-2.safetensors",
                "a-2-of-2.safetensors",
                "a.bf16.safetensors",
                "b.bin"
            ]),
            [
                pair("a-*-of-2.safetensors", "a"),
                pair("a.bf16.safetensors", "a.bf16")
            ]
        );
        let not_numbered = [
            "x-of-2.safetensors",
            "x-1-of-y.safetensors",
            "-of-.safetensors",
        ];
        for file in not_numbered {
            assert_eq!(shown(&[file])[0].0, file);
        }
    }
}
