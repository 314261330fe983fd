//! Which files of a path are the checkpoint. Looks at names only; nothing is opened or read.
//!
//! The rules, first match first, are a table of well-known names followed by "the only thing that
//! is there". Whatever else is ambiguous is an error that lists the candidates: loading the wrong
//! half of a folder silently is worse than asking.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::Layout;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::serverlessllm::INDEX_FILE;

/// What to open.
#[derive(Debug)]
pub(super) enum Resolved {
    /// SafeTensors files without an index.
    Files { files: Vec<PathBuf>, root: PathBuf },
    /// The index of a sharded SafeTensors checkpoint; shards are relative to `root`.
    Index { index: PathBuf, root: PathBuf },
    /// The index of a ServerlessLLM checkpoint; partitions lie in `root`.
    Partitions { index: PathBuf, root: PathBuf },
}

impl Resolved {
    pub(super) fn root(&self) -> PathBuf {
        match self {
            Self::Files { root, .. } | Self::Index { root, .. } | Self::Partitions { root, .. } => {
                root.clone()
            }
        }
    }

    pub(super) fn layout(&self) -> Layout {
        match self {
            Self::Files { .. } | Self::Index { .. } => Layout::SafeTensors,
            Self::Partitions { .. } => Layout::ServerlessLlm,
        }
    }
}

const WEIGHTS: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";

/// Stems that a folder's one checkpoint has by convention, the first that is there wins.
const STEMS: [&str; 3] = ["model", "diffusion_pytorch_model", "adapter_model"];

/// Repositories of some models hold a second copy of all weights under this stem.
const SECOND_COPY: &str = "consolidated";

/// Finds the files of the checkpoint at `path`.
pub(super) fn resolve(path: &Path, layout: Option<Layout>) -> Result<Resolved> {
    // A path that does not exist or is no regular file gets its message from the opening.
    if path.is_dir() {
        return folder(path, layout);
    }
    let root = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => PathBuf::new(),
    };
    let file = path.to_path_buf();
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let layout = layout.unwrap_or(match name == INDEX_FILE.as_bytes() {
        true => Layout::ServerlessLlm,
        false => Layout::SafeTensors,
    });
    Ok(match layout {
        Layout::ServerlessLlm => Resolved::Partitions { index: file, root },
        Layout::SafeTensors if name.ends_with(b".json") => Resolved::Index { index: file, root },
        Layout::SafeTensors => Resolved::Files {
            files: vec![file],
            root,
        },
    })
}

fn folder(path: &Path, layout: Option<Layout>) -> Result<Resolved> {
    let listing = Listing::read(path)?;
    let partitions = listing.has(INDEX_FILE);
    let weights = match layout {
        Some(Layout::ServerlessLlm) => None,
        _ => listing.safetensors()?,
    };
    match (weights, partitions, layout) {
        (Some(_), true, None) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the folder holds a SafeTensors checkpoint and a ServerlessLLM one ({INDEX_FILE})"
            ),
        )
        .at(path)
        .help("say which layout to use, safetensors or serverlessllm, or give the file's path")),
        (Some(weights), ..) => Ok(weights),
        (None, true, None | Some(Layout::ServerlessLlm)) => Ok(Resolved::Partitions {
            index: path.join(INDEX_FILE),
            root: path.to_path_buf(),
        }),
        (None, _, layout) => Err(listing.no_weights(layout)),
    }
}

/// The entries of a folder.
struct Listing<'p> {
    path: &'p Path,
    /// Files, symbolic links (dangling ones too) and everything else that is not a folder, sorted.
    files: Vec<OsString>,
    folders: Vec<OsString>,
}

impl<'p> Listing<'p> {
    fn read(path: &'p Path) -> Result<Self> {
        let failed = |error| Error::io("list the folder", path, error);
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_dir = match entry.file_type().map_err(failed)? {
                kind if kind.is_symlink() => entry.path().is_dir(),
                kind => kind.is_dir(),
            };
            match is_dir {
                true => folders.push(entry.file_name()),
                false => files.push(entry.file_name()),
            }
        }
        files.sort_unstable();
        folders.sort_unstable();
        Ok(Self {
            path,
            files,
            folders,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.files.binary_search(&OsString::from(name)).is_ok()
    }

    /// The SafeTensors checkpoint of the folder, if there is exactly one.
    fn safetensors(&self) -> Result<Option<Resolved>> {
        for stem in STEMS {
            for (name, kind) in [
                (format!("{stem}{INDEX}"), INDEX),
                (format!("{stem}{WEIGHTS}"), WEIGHTS),
            ] {
                if self.has(&name) {
                    return Ok(Some(self.one(&OsString::from(name), kind)));
                }
                if self.folders.contains(&OsString::from(&name)) {
                    return Err(
                        Error::new(ErrorKind::NotAFile, "this is a folder, not a file")
                            .at(self.path.join(name)),
                    );
                }
            }
        }
        let (copies, others): (Vec<_>, Vec<_>) = self
            .candidates()
            .into_iter()
            .partition(|candidate| candidate.name.starts_with(SECOND_COPY));
        for stem in STEMS {
            let family: Vec<_> = others.iter().filter(|other| other.is_of(stem)).collect();
            if !family.is_empty() {
                return self.only(&family).map(Some);
            }
        }
        for candidates in [others, copies] {
            if !candidates.is_empty() {
                return self.only(&candidates.iter().collect::<Vec<_>>()).map(Some);
            }
        }
        Ok(None)
    }

    fn one(&self, name: &OsString, kind: &str) -> Resolved {
        let (file, root) = (self.path.join(name), self.path.to_path_buf());
        match kind {
            INDEX => Resolved::Index { index: file, root },
            _ => Resolved::Files {
                files: vec![file],
                root,
            },
        }
    }

    /// Everything that could be a checkpoint by itself: indexes, sets of numbered shards, files.
    /// What shares its name with an index or set of its own is part of that.
    fn candidates(&self) -> Vec<Candidate> {
        let mut indexes = Vec::new();
        let mut sets: BTreeMap<(String, String, usize), Vec<(u64, OsString)>> = BTreeMap::new();
        let mut files = Vec::new();
        for file in &self.files {
            let bytes = file.as_encoded_bytes();
            if bytes.starts_with(b".") {
                continue;
            }
            let name = file.to_string_lossy().into_owned();
            if bytes.ends_with(INDEX.as_bytes()) {
                indexes.push(Candidate {
                    name,
                    what: What::Index(file.clone()),
                });
            } else if bytes.ends_with(WEIGHTS.as_bytes()) {
                match file.to_str().and_then(Shard::parse) {
                    Some(shard) => sets
                        .entry((shard.stem.to_owned(), shard.end.to_owned(), shard.width))
                        .or_default()
                        .push((shard.number, file.clone())),
                    None => files.push(Candidate {
                        name,
                        what: What::File(file.clone()),
                    }),
                }
            }
        }
        let stem_of = |index: &Candidate| index.name.strip_suffix(INDEX).map(str::to_owned);
        let indexed: Vec<String> = indexes.iter().filter_map(stem_of).collect();
        sets.retain(|(stem, ..), _| !indexed.contains(stem));
        files.retain(|file| {
            let stem = file.name.strip_suffix(WEIGHTS);
            !indexed.iter().any(|indexed| Some(&**indexed) == stem)
        });
        let sets = sets
            .into_iter()
            .map(|((stem, end, width), members)| Candidate {
                name: format!("{stem}-*{end}"),
                what: What::Set {
                    stem,
                    end,
                    width,
                    members,
                },
            });
        indexes.into_iter().chain(sets).chain(files).collect()
    }

    /// The one candidate, or the error that lists them all.
    fn only(&self, candidates: &[&Candidate]) -> Result<Resolved> {
        let [candidate] = candidates else {
            let names: Vec<&str> = candidates.iter().map(|c| &*c.name).collect();
            let shown = names[..names.len().min(8)].join(", ");
            let more = match names.len() {
                0..=8 => String::new(),
                count => format!(" and {} more", count - 8),
            };
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the folder holds {} SafeTensors checkpoints, and no index says which files \
                     belong together: {shown}{more}",
                    names.len()
                ),
            )
            .at(self.path)
            .help("give the path of the file or index to load"));
        };
        match &candidate.what {
            What::Index(file) => Ok(self.one(file, INDEX)),
            What::File(file) => Ok(self.one(file, WEIGHTS)),
            What::Set {
                stem,
                end,
                width,
                members,
            } => {
                let name = |number: &str| format!("{stem}-{number}{end}");
                self.set(name, *width, members)
            }
        }
    }

    /// A set of numbered shards that has no index: usable only when complete.
    fn set(
        &self,
        shard: impl Fn(&str) -> String,
        width: usize,
        members: &[(u64, OsString)],
    ) -> Result<Resolved> {
        let total = Shard::parse(&shard("0")).map_or(0, |shard| shard.total);
        let mut numbers: Vec<u64> = members.iter().map(|member| member.0).collect();
        numbers.sort_unstable();
        // Some writers count from 0.
        let first = u64::from(numbers[0] != 0);
        let missing = numbers
            .iter()
            .zip(first..)
            .find(|&(&number, expected)| number != expected)
            .map(|(_, expected)| expected)
            .or_else(|| Some(first + numbers.len() as u64).filter(|&next| next - first < total));
        if let Some(missing) = missing {
            let name = shard(&format!("{missing:0width$}"));
            return Err(Error::new(
                ErrorKind::MissingShard,
                format!(
                    "this shard is missing: {} of {total} numbered shards are there, and no index",
                    numbers.len()
                ),
            )
            .at(self.path.join(name))
            .help("the download or copy did not finish; fetch the missing file"));
        }
        if numbers.len() as u64 > total {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} shards are numbered as parts of {total}: {}",
                    numbers.len(),
                    shard("*")
                ),
            )
            .at(self.path)
            .help("remove the shards that do not belong, or add the index"));
        }
        let mut files: Vec<PathBuf> = members.iter().map(|m| self.path.join(&m.1)).collect();
        files.sort_unstable();
        Ok(Resolved::Files {
            files,
            root: self.path.to_path_buf(),
        })
    }

    /// Says what is in the folder instead of weights.
    fn no_weights(&self, layout: Option<Layout>) -> Error {
        let names = |list: &[OsString], wanted: &dyn Fn(&str) -> bool| {
            let all: Vec<String> = list
                .iter()
                .map(|name| name.to_string_lossy().into_owned())
                .filter(|name| wanted(name))
                .collect();
            (all.len(), all[..all.len().min(5)].join(", "))
        };
        let missing = match layout {
            None => format!("there is no .safetensors file and no {INDEX_FILE} in this folder"),
            Some(Layout::SafeTensors) => "there is no .safetensors file in this folder".to_owned(),
            Some(Layout::ServerlessLlm) => format!("there is no {INDEX_FILE} in this folder"),
        };
        const OTHER: [&str; 9] = [
            ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz",
        ];
        let is_other = |name: &str| OTHER.iter().any(|end| name.ends_with(end));
        let is_part = |name: &str| name.starts_with("tensor.data_");
        let is_safe = |name: &str| name.ends_with(WEIGHTS) || name == INDEX_FILE;
        let (others, other_names) = names(&self.files, &is_other);
        let (parts, part_names) = names(&self.files, &is_part);
        let (safe, safe_names) = names(&self.files, &is_safe);
        let (folders, folder_names) = names(&self.folders, &|_| true);
        let (what, remedy) = if safe > 0 {
            (
                format!("it has {safe_names}"),
                "use the other layout, or leave it to be detected",
            )
        } else if parts > 0 {
            (
                format!("it has {parts} partition files ({part_names})"),
                "copy the index beside them, or convert the model again",
            )
        } else if others > 0 {
            (
                format!("it has {others} weight files of other formats ({other_names})"),
                "download the SafeTensors files of the model, or convert them first",
            )
        } else if self.files.is_empty() && folders == 0 {
            (
                "it is empty".to_owned(),
                "check the path; the download may not have begun",
            )
        } else if folders > 0 {
            (
                format!("it has {folders} sub-folders ({folder_names})"),
                "give the sub-folder that holds the weights",
            )
        } else {
            (
                format!("it has {} files, none of them weights", self.files.len()),
                "check the path; the download may not have finished",
            )
        };
        Error::new(ErrorKind::NoWeights, format!("{missing}: {what}"))
            .at(self.path)
            .help(remedy)
    }
}

struct Candidate {
    name: String,
    what: What,
}

enum What {
    Index(OsString),
    File(OsString),
    Set {
        stem: String,
        end: String,
        width: usize,
        members: Vec<(u64, OsString)>,
    },
}

impl Candidate {
    /// Whether it is a variant (`model.fp16.safetensors`, its index or its shards) or the
    /// numbered shards (`model-00001-of-00002.safetensors`) of `stem`.
    fn is_of(&self, stem: &str) -> bool {
        let rest = self.name.strip_prefix(stem);
        rest.is_some_and(|rest| rest.starts_with('.') || rest.starts_with("-*-of-"))
    }
}

/// The parts of `STEM-00001-of-00002.safetensors`.
struct Shard<'n> {
    stem: &'n str,
    number: u64,
    width: usize,
    total: u64,
    /// `-of-00002.safetensors`: what all shards of one set end in.
    end: &'n str,
}

impl<'n> Shard<'n> {
    fn parse(name: &'n str) -> Option<Self> {
        let of = name.rfind("-of-")?;
        let (front, end) = name.split_at(of);
        let (stem, number) = front.rsplit_once('-')?;
        let total = end.strip_prefix("-of-")?.strip_suffix(WEIGHTS)?;
        let total = total.split('.').next()?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(number) || !digits(total) {
            return None;
        }
        Some(Self {
            stem,
            number: number.parse().ok()?,
            width: number.len(),
            total: total.parse().ok()?,
            end,
        })
    }
}
