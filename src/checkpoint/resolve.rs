//! Which files of a path are the checkpoint. Looks at names only; nothing is opened or read.
//!
//! The rules, first match first, are a table of well-known names followed by "the only thing that
//! is there". Whatever else is ambiguous is an error that lists the candidates: loading the wrong
//! half of a folder silently is worse than asking.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::Layout;
use super::candidates::{Candidate, INDEX, WEIGHTS, What, candidates};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::serverlessllm::INDEX_FILE;
use crate::formats::{INCOMPLETE_FILE, JOURNAL_FILE};
use crate::text;

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

/// Stems that a folder's one checkpoint has by convention, the first that is there wins.
const STEMS: [&str; 3] = ["model", "diffusion_pytorch_model", "adapter_model"];

/// Repositories of some models hold a second copy of all weights under this stem.
const SECOND_COPY: &str = "consolidated";

/// What to do about an interrupted conversion.
const CONTINUE: &str =
    "run the same conversion again with the option resume, or from the start with the option force";

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
    refuse_incomplete(&root)?;
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

/// Finds the files of the checkpoint among the names of a folder that is elsewhere, or is going to
/// look like this.
pub(super) fn listing(
    path: &Path,
    mut files: Vec<OsString>,
    mut folders: Vec<OsString>,
    layout: Option<Layout>,
) -> Result<Resolved> {
    files.sort_unstable();
    folders.sort_unstable();
    in_listing(
        &Listing {
            path,
            files,
            folders,
        },
        layout,
    )
}

fn folder(path: &Path, layout: Option<Layout>) -> Result<Resolved> {
    refuse_incomplete(path)?;
    in_listing(&Listing::read(path)?, layout)
}

fn in_listing(listing: &Listing<'_>, layout: Option<Layout>) -> Result<Resolved> {
    let path = listing.path;
    let partitions = listing.has(INDEX_FILE)?;
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

/// Half of an old checkpoint and half of a new one may look like a whole one.
fn refuse_incomplete(folder: &Path) -> Result<()> {
    let mark = folder.join(INCOMPLETE_FILE);
    if mark.symlink_metadata().is_err() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NoWeights,
        "a conversion into this folder was interrupted, and the checkpoint is incomplete",
    )
    .at(folder)
    .help(CONTINUE))
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

    /// Whether there is a file of this well-known name; a folder of that name is an error.
    fn has(&self, name: &str) -> Result<bool> {
        let name = OsString::from(name);
        if self.folders.binary_search(&name).is_ok() {
            let message = "this is a folder, not a file";
            return Err(Error::new(ErrorKind::NotAFile, message).at(self.path.join(name)));
        }
        Ok(self.files.binary_search(&name).is_ok())
    }

    /// The SafeTensors checkpoint of the folder, if there is exactly one.
    fn safetensors(&self) -> Result<Option<Resolved>> {
        for stem in STEMS {
            let index = format!("{stem}{INDEX}");
            if self.has(&index)? {
                return Ok(Some(self.index(index)));
            }
            let file = format!("{stem}{WEIGHTS}");
            if self.has(&file)? {
                return Ok(Some(self.file(file)));
            }
        }
        let (copies, others): (Vec<_>, Vec<_>) = candidates(&self.files)
            .into_iter()
            .partition(|candidate| candidate.name.starts_with(SECOND_COPY));
        for stem in STEMS {
            let family: Vec<_> = others.iter().filter(|other| other.is_of(stem)).collect();
            if !family.is_empty() {
                return self.only(&family).map(Some);
            }
        }
        for group in [others, copies] {
            // A lone index says which of the files beside it count.
            let is_index = |candidate: &&Candidate| matches!(candidate.what, What::Index(_));
            let indexes: Vec<_> = group.iter().filter(is_index).collect();
            let group: Vec<_> = group.iter().collect();
            if !group.is_empty() {
                let one = indexes.len() == 1;
                return self.only(if one { &indexes } else { &group }).map(Some);
            }
        }
        Ok(None)
    }

    /// The one candidate, or the error that lists them all.
    fn only(&self, candidates: &[&Candidate]) -> Result<Resolved> {
        let [candidate] = candidates else {
            let names: Vec<_> = candidates.iter().map(|c| text::name(&c.name)).collect();
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
            What::Index(file) => Ok(self.index(file)),
            What::File(file) => Ok(self.file(file)),
            What::Set(set) => Ok(Resolved::Files {
                files: set.complete(self.path)?,
                root: self.path.to_path_buf(),
            }),
        }
    }

    fn index(&self, name: impl AsRef<Path>) -> Resolved {
        Resolved::Index {
            index: self.path.join(name),
            root: self.path.to_path_buf(),
        }
    }

    fn file(&self, name: impl AsRef<Path>) -> Resolved {
        Resolved::Files {
            files: vec![self.path.join(name)],
            root: self.path.to_path_buf(),
        }
    }

    /// Says what is in the folder instead of weights.
    fn no_weights(&self, layout: Option<Layout>) -> Error {
        let names = |list: &[OsString], wanted: &dyn Fn(&str) -> bool| {
            let all: Vec<String> = list
                .iter()
                .map(|name| name.to_string_lossy())
                .filter(|name| wanted(name))
                .map(|name| text::name(&name).into_owned())
                .collect();
            (all.len(), all[..all.len().min(5)].join(", "))
        };
        let wanted: Vec<String> = Layout::ALL
            .into_iter()
            .filter(|&other| layout.is_none_or(|layout| layout == other))
            .map(|layout| format!("no {}", layout.looks_for()))
            .collect();
        let missing = format!("there is {} in this folder", wanted.join(" and "));
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
        let unfinished = self.files.iter().any(|file| file == JOURNAL_FILE);
        let (what, remedy) = if unfinished {
            (
                "a conversion into it was interrupted before its end".to_owned(),
                CONTINUE,
            )
        } else if safe > 0 {
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
