//! Which files of a repository a load needs.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::api::RemoteFile;
use super::blob;
use super::context::Context;
use super::is_side_file;
use super::local::{self, nothing_selected, too_large_an_index};
use super::pull::Pull;
use super::transfer::peek;
use crate::checkpoint::Parts;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::index::MAX_INDEX_BYTES;
use crate::formats::safetensors::{PREFIX_BYTES, header_len, parse_header};
use crate::formats::serverlessllm::is_partition_file;

/// The files of a repository that are asked for.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// Sorted by path.
    pub(super) files: Vec<RemoteFile>,
    /// The index that says which they are, and the bytes that were downloaded for it already.
    pub(super) index: Option<(String, u64)>,
}

/// The files of `listing` that `pull` asks for. Downloads an index, where it says which they are.
pub(super) async fn choose(
    context: &Arc<Context>,
    listing: &[RemoteFile],
    pull: &Pull,
) -> Result<Chosen> {
    let at_top = || listing.iter().filter(|file| !file.path.contains('/'));
    let mut chosen: Vec<RemoteFile> = Vec::new();
    let mut index_bytes = None;
    if pull.side_files {
        chosen.extend(at_top().filter(|file| is_side_file(&file.path)).cloned());
    }
    let names: Vec<OsString> = at_top().map(|file| OsString::from(&file.path)).collect();
    // Messages name the model as the folder that is looked at.
    let root = Path::new(&pull.id);
    let name = |path: &Path| {
        let name = path.strip_prefix(root).unwrap_or(path);
        name.to_string_lossy().into_owned()
    };
    let find = |name: &str| listing.iter().find(|file| file.path == name);
    match Parts::of_names(root, names, pull.layout)? {
        Parts::Files(files) => {
            let files = files.iter().filter_map(|file| find(&name(file)));
            let mut wanted = Vec::new();
            for file in files {
                if pull.selection.is_none() || holds_selected(context, file, pull).await? {
                    wanted.push(file.clone());
                }
            }
            if wanted.is_empty() {
                return Err(nothing_selected(&pull.id));
            }
            chosen.extend(wanted);
        }
        Parts::Index(index) => {
            let Some(index) = find(&name(&index)) else {
                return Err(missing(&name(&index), pull));
            };
            if index.size > MAX_INDEX_BYTES {
                return Err(too_large_an_index(index.size).at(root.join(&index.path)));
            }
            index_bytes = Some((index.path.clone(), blob::fetch(context, index).await?));
            let pointer = context.folder.pointer(&context.commit, &index.path);
            // Every name is checked before it becomes part of a path or of an address.
            let shards = local::shards(&local::read_index(&pointer)?, pull)
                .map_err(|error| error.at(&pointer))?;
            chosen.push(index.clone());
            for shard in shards {
                let Some(file) = find(&shard) else {
                    return Err(missing(&shard, pull));
                };
                chosen.push(file.clone());
            }
        }
        Parts::Partitions(index) => {
            if pull.selection.is_some() {
                let message = "partitions hold parts of all tensors, so that none can be selected";
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .at(root)
                    .help("download all of the model"));
            }
            chosen.extend(find(&name(&index)).cloned());
            chosen.extend(
                at_top()
                    .filter(|file| is_partition_file(&file.path))
                    .cloned(),
            );
        }
    }
    chosen.sort_by(|a, b| a.path.cmp(&b.path));
    chosen.dedup_by(|a, b| a.path == b.path);
    Ok(Chosen {
        files: chosen,
        index: index_bytes,
    })
}

fn missing(name: &str, pull: &Pull) -> Error {
    Error::new(
        ErrorKind::MissingShard,
        format!(
            "the index of {} names {}, which the repository does not have",
            pull.id,
            crate::text::quoted(name)
        ),
    )
    .help("name another revision, or report it to the owner of the model")
}

/// Whether a SafeTensors file on the Hub holds a selected tensor: only its header is fetched.
async fn holds_selected(context: &Arc<Context>, file: &RemoteFile, pull: &Pull) -> Result<bool> {
    let at_file = |error: Error| error.at(Path::new(&pull.id).join(&file.path));
    let prefix = peek(context, file, 0..PREFIX_BYTES.min(file.size)).await?;
    let len = header_len(&prefix, file.size).map_err(at_file)?;
    let json = peek(context, file, PREFIX_BYTES..PREFIX_BYTES + len).await?;
    let header = parse_header(&json, file.size, 0).map_err(at_file)?;
    Ok(header.tensors.iter().any(|tensor| pull.picks(&tensor.name)))
}
