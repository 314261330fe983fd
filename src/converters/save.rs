//! Tensors that are in memory already, as a SafeTensors file of any name, or as bytes.
//!
//! The plan is that of every other SafeTensors output, so the same tensors in the same order give
//! the same bytes. A single file is written as [`SingleFile`] does it: whole or not at all, without a
//! lock, and by a rename, so that the file which the tensors are mapped from can be saved to.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use super::folder::require_space;
use super::safetensors_writer::DATA_ALIGNMENT;
use super::{
    CheckpointWriter, OutputPlan, OutputTensor, SafetensorsOptions, Sharding, SingleFile,
    WriteOptions, WriteReport, plan_safetensors,
};
use crate::error::{Error, ErrorKind, Result};

/// Takes the next bytes of a tensor.
pub type Put<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Options of [`save`] and [`serialize`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveOptions {
    /// The `__metadata__`; where it is empty there is none.
    pub metadata: BTreeMap<String, String>,
    /// Where given, the path is a folder of shards with at most this many bytes of tensors each,
    /// and an index where there are several.
    pub max_shard_bytes: Option<u64>,
    /// Where the tensors begin in a file: at a multiple of this many bytes. By default a page of
    /// 4096, which direct reads want; 8 is the least, and makes the smallest files.
    pub alignment: usize,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            metadata: BTreeMap::new(),
            max_shard_bytes: None,
            alignment: DATA_ALIGNMENT,
        }
    }
}

impl SaveOptions {
    fn plan(&self, tensors: Vec<OutputTensor>, sharding: Sharding) -> Result<OutputPlan> {
        let options = SafetensorsOptions {
            sharding,
            metadata: self.metadata.clone(),
            alignment: self.alignment,
            ..SafetensorsOptions::default()
        };
        plan_safetensors(tensors, &options)
    }
}

/// Writes tensors to the file `path`, or to shards in the folder `path`. What is there under the
/// same names is replaced when the new files are complete.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for names that are given twice or reserved, for bytes that are not
/// as many as dtype and shape say, and for a path that is a folder where a file is to be written;
/// [`ErrorKind::NotFound`] where the folder of a file is missing; [`ErrorKind::Io`]. What was there
/// before is still there then.
pub fn save(
    tensors: &[(OutputTensor, &[u8])],
    path: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<WriteReport> {
    check_lengths(tensors)?;
    let named = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
    save_with(named, path, options, |index, put| put(tensors[index].1))
}

/// As [`save`], where the bytes of a tensor are made when they are wanted: `produce` is called once
/// for each, with its index, and puts all of its bytes in chunks of any size.
///
/// # Errors
/// As [`save`], and those of `produce`, the first of which ends the writing.
pub fn save_with(
    tensors: Vec<OutputTensor>,
    path: impl AsRef<Path>,
    options: &SaveOptions,
    mut produce: impl FnMut(usize, &mut Put<'_>) -> Result<()>,
) -> Result<WriteReport> {
    let path = path.as_ref();
    if let Some(limit) = options.max_shard_bytes {
        let plan = options.plan(tensors, Sharding::MaxBytes(limit))?;
        let overwrite = WriteOptions { overwrite: true };
        let writer = CheckpointWriter::create(path, plan, overwrite)?;
        writer.write_all(|index, sink| produce(index, &mut |bytes| sink.write(bytes)))?;
        return writer.finish();
    }
    let plan = options
        .plan(tensors, Sharding::Single)
        .map_err(|error| error.at(path))?;
    // The standard output is a matter of programs; here it is a name like any other.
    let place = SingleFile::at(match path == Path::new("-") {
        true => Path::new("./-"),
        false => path,
    })?;
    let target = place.target().map_or(path, |target| target).to_owned();
    if place.target().is_some() {
        let folder = target.parent().filter(|parent| parent.is_dir());
        require_space(folder.unwrap_or(Path::new(".")), plan.total_file_bytes())?;
    }
    let mut failed = None;
    let written = place.write(|file| {
        fill(&plan, &target, file, &mut produce).map_err(|error| {
            failed = Some(error);
            io::Error::other("a tensor cannot be written")
        })
    });
    match failed {
        Some(error) => Err(error),
        None => written.map(|()| WriteReport {
            files: vec![path.to_owned()],
            file_bytes: plan.total_file_bytes(),
            tensor_bytes: plan.tensor_bytes(),
        }),
    }
}

/// The bytes of the file that [`save`] would write; [`SaveOptions::max_shard_bytes`] plays no part.
///
/// # Errors
/// Those of [`save`] that concern the tensors; [`ErrorKind::OutOfMemory`].
pub fn serialize(tensors: &[(OutputTensor, &[u8])], options: &SaveOptions) -> Result<Vec<u8>> {
    check_lengths(tensors)?;
    let named = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
    serialize_with(named, options, |index, put| put(tensors[index].1))
}

/// As [`serialize`], where the bytes of a tensor are made when they are wanted, as in [`save_with`].
///
/// # Errors
/// As [`serialize`], and those of `produce`, the first of which ends it.
pub fn serialize_with(
    tensors: Vec<OutputTensor>,
    options: &SaveOptions,
    mut produce: impl FnMut(usize, &mut Put<'_>) -> Result<()>,
) -> Result<Vec<u8>> {
    let plan = options.plan(tensors, Sharding::Single)?;
    let mut bytes = Vec::new();
    usize::try_from(plan.total_file_bytes())
        .ok()
        .and_then(|len| bytes.try_reserve_exact(len).ok())
        .ok_or_else(|| {
            let what = format!("the file has {} bytes", plan.total_file_bytes());
            Error::new(ErrorKind::OutOfMemory, what).help("save to a file instead")
        })?;
    fill(&plan, Path::new(""), &mut bytes, &mut produce)?;
    Ok(bytes)
}

/// Writes the one file of a plan from its first byte to its last: the format has no holes.
fn fill(
    plan: &OutputPlan,
    path: &Path,
    file: &mut dyn Write,
    produce: &mut dyn FnMut(usize, &mut Put<'_>) -> Result<()>,
) -> Result<()> {
    let failed = |error| Error::io("write", path, error);
    file.write_all(&plan.files[0].head).map_err(failed)?;
    for index in plan.disk_order() {
        let (tensor, len) = (&plan.tensors[index], plan.placements[index].len);
        let mut written = 0;
        produce(index, &mut |bytes| {
            written += bytes.len() as u64;
            if written > len {
                return Err(wrong_length(tensor, written, len));
            }
            file.write_all(bytes)
                .map_err(|error| failed(error).tensor(&*tensor.name))
        })?;
        if written != len {
            return Err(wrong_length(tensor, written, len));
        }
    }
    Ok(())
}

/// Before anything is made: bytes as many as dtypes and shapes say.
fn check_lengths(tensors: &[(OutputTensor, &[u8])]) -> Result<()> {
    for (tensor, bytes) in tensors {
        let (len, given) = (tensor.nbytes()?, bytes.len() as u64);
        if len != given {
            return Err(wrong_length(tensor, given, len));
        }
    }
    Ok(())
}

fn wrong_length(tensor: &OutputTensor, given: u64, len: u64) -> Error {
    let OutputTensor { name, dtype, shape } = tensor;
    let message = format!("{given} bytes were given, and shape {shape:?} of {dtype} has {len}");
    Error::new(ErrorKind::InvalidArgument, message).tensor(&**name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use crate::dtype::Dtype;

    fn tensors(data: &[u8]) -> Vec<(OutputTensor, &[u8])> {
        vec![
            (OutputTensor::new("small", Dtype::U8, [3]), &data[..3]),
            (OutputTensor::new("w", Dtype::BF16, [2, 4]), &data[3..19]),
            (OutputTensor::new("none", Dtype::F32, [0, 7]), &[]),
            (OutputTensor::new("scalar", Dtype::F64, []), &data[19..27]),
        ]
    }

    fn data() -> Vec<u8> {
        (0..27).collect()
    }

    #[test]
    fn the_reference_reader_finds_the_same_bytes_in_memory_and_on_disk() {
        let data = data();
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("any name.bin");
        for alignment in [8, 4096] {
            let options = SaveOptions {
                metadata: BTreeMap::from([("b".into(), "2".into()), ("a".into(), "1".into())]),
                alignment,
                ..SaveOptions::default()
            };
            let bytes = serialize(&tensors(&data), &options).unwrap();
            let report = save(&tensors(&data), &path, &options).unwrap();
            assert_eq!(report.file_bytes, bytes.len() as u64);
            assert_eq!(report.files, std::slice::from_ref(&path));
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(read.len(), 4);
            for (tensor, bytes) in tensors(&data) {
                assert_eq!(read.tensor(&tensor.name).unwrap().data(), bytes);
            }
            let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
            assert_eq!(header.metadata().as_ref().unwrap()["b"], "2");
        }
        // The temporary file has gone, and no lock was taken.
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
    }

    #[test]
    fn without_metadata_the_header_has_none() {
        let options = SaveOptions {
            alignment: 8,
            ..SaveOptions::default()
        };
        assert_eq!(
            serialize(&[], &options).unwrap(),
            b"\x08\0\0\0\0\0\0\0{}      "
        );
        for alignment in [0, 1, 4, 12] {
            let options = SaveOptions {
                alignment,
                ..SaveOptions::default()
            };
            let error = serialize(&[], &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{alignment}");
        }
    }

    #[test]
    fn shards_have_an_index_and_replace_what_was_there() {
        let data = data();
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("model");
        for limit in [16, 8, 1 << 20] {
            let options = SaveOptions {
                max_shard_bytes: Some(limit),
                ..SaveOptions::default()
            };
            save(&tensors(&data), &folder, &options).unwrap();
            let read = Checkpoint::open(&folder).unwrap().load().unwrap();
            for (tensor, bytes) in tensors(&data) {
                assert_eq!(read.get(&tensor.name).unwrap().bytes(), bytes, "{limit}");
            }
        }
    }

    #[test]
    fn the_file_that_tensors_are_mapped_from_can_be_replaced() {
        let data = data();
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("model.safetensors");
        save(&tensors(&data), &path, &SaveOptions::default()).unwrap();
        let mapped = Checkpoint::open(&path).unwrap().lazy();
        let (small, w) = (mapped.tensor("small").unwrap(), mapped.tensor("w").unwrap());
        let kept = [
            (OutputTensor::new("w", Dtype::BF16, [8]), w.bytes()),
            (OutputTensor::new("small", Dtype::U8, [3]), small.bytes()),
        ];
        save(&kept, &path, &SaveOptions::default()).unwrap();
        let read = Checkpoint::open(&path).unwrap().load().unwrap();
        assert_eq!(read.get("w").unwrap().bytes(), &data[3..19]);
        assert_eq!(read.get("small").unwrap().bytes(), &data[..3]);
        assert_eq!(w.bytes(), &data[3..19]);
    }

    #[test]
    fn bytes_of_the_wrong_number_are_refused_by_name_and_leave_what_was_there() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a");
        std::fs::write(&path, b"before").unwrap();
        let tensor = OutputTensor::new("w", Dtype::U8, [4]);
        let options = SaveOptions::default();
        for given in [3, 5] {
            let bytes = vec![0; given];
            let early = save(&[(tensor.clone(), &bytes)], &path, &options).unwrap_err();
            let late = save_with(vec![tensor.clone()], &path, &options, |_, put| put(&bytes));
            for error in [early, late.unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert_eq!(error.tensor_name(), Some("w"));
                assert!(error.to_string().contains(&given.to_string()), "{error}");
            }
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
    }
}
