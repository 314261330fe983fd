//! From resolved paths or sources to contents: headers are read, indexes applied.

use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::resolve::Resolved;
use super::{Contents, Metadata};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::index::{MAX_INDEX_BYTES, ShardIndex};
use crate::formats::safetensors::{Header, PREFIX_BYTES, header_len, parse_header};
use crate::formats::serverlessllm::{self, Dialect, Partition, PartitionIndex};
use crate::formats::{Layout, Names, sniff};
use crate::storage::{LocalFile, Source, read_exact_at};
use crate::text;

/// How many headers are read at a time. Opening waits for a network mount, not for the CPU, and
/// this many descriptors fit under any limit.
const OPENERS: usize = 8;

/// The first read of a file, in bytes: whole headers of small files, and what sniffing needs.
const FIRST_READ: u64 = 16 << 10;

/// Opens what was resolved.
pub(super) fn open(found: Resolved, engine: &Engine) -> Result<Contents> {
    match found {
        Resolved::Files { files, .. } => {
            let opened = in_parallel(files.len(), |at| {
                let file = open_file(&files[at], engine)?;
                let header = read_header(&*file, at)?;
                Ok((file, header))
            })?;
            let (sources, headers) = opened.into_iter().unzip();
            union(sources, headers)
        }
        Resolved::Index { index, root } => {
            let shards = ShardIndex::parse(&read_index(&index, engine)?)
                .map_err(|error| error.at(&index))?;
            let opened = in_parallel(shards.shards().len(), |at| {
                let path = root.join(&*shards.shards()[at]);
                let file =
                    open_file(&path, engine).map_err(|error| missing_shard(error, &index))?;
                let header = read_header(&*file, at)?;
                Ok((file, header))
            })?;
            let (sources, headers) = opened.into_iter().unzip();
            let mut contents = apply(&shards, sources, headers)?;
            contents.metadata.index = Some(index);
            Ok(contents)
        }
        Resolved::Partitions { index, root } => open_partitions(&index, &root, engine),
    }
}

/// Opens what was given as sources, with the bytes of the index where there is one.
pub(super) fn sources(
    layout: Layout,
    sources: Vec<Arc<dyn Source>>,
    index: Option<&[u8]>,
) -> Result<Contents> {
    match (layout, index) {
        (Layout::SafeTensors, None) => safetensors_files(sources),
        (Layout::SafeTensors, Some(index)) => safetensors_shards(sources, index),
        (Layout::ServerlessLlm, Some(index)) => serverlessllm(sources, index),
        (Layout::ServerlessLlm, None) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "a ServerlessLLM checkpoint cannot be read without its {}",
                serverlessllm::INDEX_FILE
            ),
        )),
    }
}

/// SafeTensors files that hold a checkpoint together, without an index.
fn safetensors_files(sources: Vec<Arc<dyn Source>>) -> Result<Contents> {
    let headers = in_parallel(sources.len(), |at| read_header(&*sources[at], at))?;
    union(sources, headers)
}

/// SafeTensors shards with the bytes of their index.
fn safetensors_shards(sources: Vec<Arc<dyn Source>>, index: &[u8]) -> Result<Contents> {
    let shards = ShardIndex::parse(index)?;
    let mut used: Vec<Arc<dyn Source>> = Vec::with_capacity(shards.shards().len());
    for shard in shards.shards() {
        let exact = sources
            .iter()
            .find(|source| source.path() == Path::new(&**shard));
        let found = exact.or_else(|| {
            let mut sources = sources.iter();
            sources.find(|source| source.path().ends_with(&**shard))
        });
        let source = found.ok_or_else(|| {
            Error::new(
                ErrorKind::MissingShard,
                format!(
                    "the index names the shard {}, which is not among the sources",
                    text::quoted(shard)
                ),
            )
        })?;
        used.push(Arc::clone(source));
    }
    let headers = in_parallel(used.len(), |at| read_header(&*used[at], at))?;
    apply(&shards, used, headers)
}

/// ServerlessLLM partitions, in order, with the bytes of their index.
fn serverlessllm(sources: Vec<Arc<dyn Source>>, index: &[u8]) -> Result<Contents> {
    let ids = 0..sources.len() as u64;
    place(PartitionIndex::parse(index)?, ids.collect(), sources)
}

fn open_partitions(index: &Path, root: &Path, engine: &Engine) -> Result<Contents> {
    let parsed = PartitionIndex::parse(&read_index(index, engine)?)
        .map_err(|error| at_unless_placed(error, index))?;
    let ids = match parsed.dialect() {
        Dialect::Local => parsed.partition_ids(),
        Dialect::Global => (0..)
            .take_while(|&id| {
                let path = root.join(serverlessllm::partition_file(id));
                std::fs::symlink_metadata(path).is_ok()
            })
            .collect(),
    };
    let sources = in_parallel(ids.len(), |at| {
        let path = root.join(serverlessllm::partition_file(ids[at]));
        open_file(&path, engine).map_err(|error| match error.kind() {
            ErrorKind::NotFound => serverlessllm::partition_missing(ids[at], None)
                .at(&path)
                .because(error),
            _ => error,
        })
    })?;
    if parsed.dialect() == Dialect::Global && sources.is_empty() {
        let path = root.join(serverlessllm::partition_file(0));
        return Err(serverlessllm::partition_missing(0, None).at(path));
    }
    place(parsed, ids, sources).map_err(|error| at_unless_placed(error, index))
}

fn place(index: PartitionIndex, ids: Vec<u64>, sources: Vec<Arc<dyn Source>>) -> Result<Contents> {
    let partitions: Vec<Partition> = ids
        .into_iter()
        .zip(&sources)
        .map(|(id, source)| Partition {
            id,
            path: source.path().to_path_buf(),
            len: source.len(),
        })
        .collect();
    let (tensors, names) = index.place(&partitions)?;
    Ok(Contents {
        sources,
        tensors,
        names,
        metadata: Metadata::default(),
    })
}

fn at_unless_placed(error: Error, path: &Path) -> Error {
    match error.path() {
        Some(_) => error,
        None => error.at(path),
    }
}

/// All tensors of all files, which must not share names.
fn union(sources: Vec<Arc<dyn Source>>, mut headers: Vec<Header>) -> Result<Contents> {
    if headers.len() == 1 {
        let header = headers.remove(0);
        return Ok(Contents {
            sources,
            tensors: header.tensors,
            names: header.names,
            metadata: Metadata {
                merged: header.metadata,
                ..Metadata::default()
            },
        });
    }
    let metadata = merge_metadata(&mut headers);
    let mut tensors = Vec::with_capacity(headers.iter().map(|h| h.tensors.len()).sum());
    let mut starts = Vec::with_capacity(headers.len());
    for header in headers {
        starts.push(tensors.len());
        tensors.extend(header.tensors);
    }
    let names =
        Names::build(tensors.len(), |at| &tensors[at].name).map_err(|(first, second)| {
            let file = |at| sources[starts.partition_point(|&start| start <= at) - 1].path();
            Error::new(
                ErrorKind::DuplicateName,
                format!(
                    "duplicate tensor name: it is in {} too, and no index says which one counts",
                    text::path(file(first))
                ),
            )
            .at(file(second))
            .tensor(&*tensors[second].name)
        })?;
    Ok(Contents {
        sources,
        tensors,
        names,
        metadata,
    })
}

/// The tensors that the index lists, each from the shard that it names.
fn apply(
    index: &ShardIndex,
    sources: Vec<Arc<dyn Source>>,
    mut headers: Vec<Header>,
) -> Result<Contents> {
    let metadata = merge_metadata(&mut headers);
    let mut found = vec![false; index.entries().len()];
    let mut tensors = Vec::with_capacity(found.len());
    for (shard, header) in headers.into_iter().enumerate() {
        for tensor in header.tensors {
            let entry = index.position(&tensor.name);
            match entry.filter(|&entry| index.entries()[entry].1 as usize == shard) {
                Some(entry) => {
                    found[entry] = true;
                    tensors.push(tensor);
                }
                None => tracing::debug!(
                    tensor = %text::name(&tensor.name),
                    shard = %text::path(sources[shard].path()),
                    "hidden: the index does not place it here"
                ),
            }
        }
    }
    if let Some(missing) = found.iter().position(|&found| !found) {
        let (name, shard) = &index.entries()[missing];
        return Err(Error::new(
            ErrorKind::MissingTensor,
            "the index places the tensor in this shard, which does not hold it",
        )
        .at(sources[*shard as usize].path())
        .tensor(&**name)
        .help("the index and the shards are not of the same checkpoint; fetch both again"));
    }
    let names = Names::build(tensors.len(), |at| &tensors[at].name).map_err(|(_, at)| {
        // A header has each name once, and the index one shard per name.
        Error::new(ErrorKind::DuplicateName, "duplicate tensor name").tensor(&*tensors[at].name)
    })?;
    Ok(Contents {
        sources,
        tensors,
        names,
        metadata,
    })
}

fn merge_metadata(headers: &mut [Header]) -> Metadata {
    let mut metadata = Metadata::default();
    for header in headers {
        for (key, value) in std::mem::take(&mut header.metadata) {
            match metadata.merged.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(value);
                }
                Entry::Occupied(kept) if *kept.get() != value => {
                    metadata.conflicts.insert(kept.key().clone());
                }
                Entry::Occupied(_) => {}
            }
        }
    }
    metadata
}

fn open_file(path: &Path, engine: &Engine) -> Result<Arc<dyn Source>> {
    Ok(Arc::new(LocalFile::open(path, engine.descriptors())?))
}

/// A shard that cannot be found is the index's promise broken; its path and, for a link, its
/// target stay in the message.
fn missing_shard(error: Error, index: &Path) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    let path = error.path().map(Path::to_path_buf).unwrap_or_default();
    let message = match std::fs::read_link(&path) {
        Ok(target) => format!(
            "this shard of {} is a symbolic link to {}, which does not exist",
            text::path(index),
            text::path(&target)
        ),
        Err(_) => format!(
            "this shard is named by {} but is not there",
            text::path(index)
        ),
    };
    Error::new(ErrorKind::MissingShard, message)
        .at(path)
        .because(error)
        .help("the download or copy did not finish; fetch the missing file")
}

fn read_index(path: &Path, engine: &Engine) -> Result<Vec<u8>> {
    let file = open_file(path, engine)?;
    if file.len() > MAX_INDEX_BYTES {
        return Err(Error::new(
            ErrorKind::BadIndex,
            format!(
                "the index has {} bytes; the limit is {MAX_INDEX_BYTES}",
                file.len()
            ),
        )
        .at(path));
    }
    let mut bytes = vec![0; file.len() as usize];
    read_exact_at(&*file, 0, &mut bytes)?;
    Ok(bytes)
}

/// Reads and checks the header of one SafeTensors source.
fn read_header(source: &dyn Source, position: usize) -> Result<Header> {
    let file_len = source.len();
    let mut start = vec![0; file_len.min(FIRST_READ) as usize];
    read_exact_at(source, 0, &mut start)?;
    let known = |error: Error| sniff(&start, file_len).unwrap_or(error).at(source.path());
    let len = header_len(&start, file_len).map_err(known)? as usize;
    let prefix = PREFIX_BYTES as usize;
    let rest;
    let json = match start.get(prefix..prefix + len) {
        Some(json) => json,
        None => {
            // At most 100,000,000 bytes, and the file is that long.
            let mut bytes = vec![0; len];
            let have = start.len() - prefix;
            bytes[..have].copy_from_slice(&start[prefix..]);
            read_exact_at(source, start.len() as u64, &mut bytes[have..])?;
            rest = bytes;
            &rest
        }
    };
    parse_header(json, file_len, position as u32).map_err(|error| match error.kind() {
        ErrorKind::BadHeader => known(error),
        _ => error.at(source.path()),
    })
}

/// Runs `job` for 0..`count` on a few threads and keeps the order. Of several errors, the one of
/// the smallest position is returned, whatever the threads' timing was: positions are handed out
/// in order, and one that was handed out is finished.
fn in_parallel<T, F>(count: usize, job: F) -> Result<Vec<T>>
where
    T: Send + Sync,
    F: Fn(usize) -> Result<T> + Sync,
{
    if count <= 1 {
        return (0..count).map(job).collect();
    }
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results: Vec<OnceLock<Result<T>>> = (0..count).map(|_| OnceLock::new()).collect();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = results.get(at) else { break };
            let result = job(at);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            // Each position is handed out once, so its slot is empty.
            let _ = slot.set(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..OPENERS.min(count) {
            // Where threads are limited, those that did start do all the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut done = Vec::with_capacity(count);
    for result in results.into_iter().map_while(OnceLock::into_inner) {
        done.push(result?);
    }
    Ok(done)
}
