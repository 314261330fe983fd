//! Sample checkpoints: models of any size that need no network, for trials, tests and measurements.
//!
//! Names and shapes are those of a decoder-only transformer. Values are pseudo-random, but a pure
//! function of the tensor's name and the byte's offset: both layouts hold the same bytes, and
//! [`sample_bytes`] says what any of them is without a file.

mod shapes;

use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::converters::{
    CheckpointWriter, OutputFolder, OutputTensor, SafetensorsOptions, ServerlessLlmOptions,
    Sharding, TensorSink, WriteOptions, in_parallel, plan_safetensors, plan_serverlessllm,
};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::Layout;

/// Bytes generated and written at a time by each thread.
const CHUNK_BYTES: usize = 1 << 20;

/// Threads that generate at once. More of them wait for the disk.
const MAX_THREADS: usize = 4;

/// What a sample checkpoint is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleSpec {
    /// Bytes of all tensors together, met within 2 %. At least 1 KiB; 256 MiB by default.
    pub total_bytes: u64,
    /// SafeTensors files. 4 by default; fewer are written when there are fewer tensors.
    pub shards: u32,
    /// ServerlessLLM partitions. 4 by default; fewer are written when there are fewer tensors.
    pub partitions: u32,
    /// `None` for the tensors of a dense transformer of this size, some dozens to some thousands;
    /// a number for exactly as many tensors of about the same size, as experts are.
    pub tensors: Option<u32>,
    /// Element type of every tensor: a whole-byte number. `BF16` by default.
    pub dtype: Dtype,
    /// How it lies on disk. SafeTensors by default.
    pub layout: Layout,
}

impl Default for SampleSpec {
    fn default() -> Self {
        Self {
            total_bytes: 256 << 20,
            shards: 4,
            partitions: 4,
            tensors: None,
            dtype: Dtype::BF16,
            layout: Layout::SafeTensors,
        }
    }
}

impl SampleSpec {
    /// The tensors of this sample, in the order in which they are written: the same in both layouts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for less than 1 KiB or more than 2^60 bytes, more tensors
    /// than there are elements or none, and dtypes that are not whole-byte numbers.
    pub fn list(&self) -> Result<Vec<OutputTensor>> {
        Ok(self.model()?.tensors)
    }

    fn model(&self) -> Result<shapes::Model> {
        self.check()?;
        Ok(match self.tensors {
            None => shapes::dense(self.elements(), self.dtype),
            Some(count) => shapes::experts(self.elements(), count, self.dtype),
        })
    }

    fn elements(&self) -> u64 {
        self.total_bytes / u64::from(self.dtype.bits() / 8)
    }

    /// Whether there can be such a sample, without making a list of its tensors.
    fn check(&self) -> Result<()> {
        if self.dtype.bits() < 8 || self.dtype == Dtype::Bool {
            return Err(invalid(format!(
                "samples are made of whole-byte numbers, and {} is none",
                self.dtype
            )));
        }
        if !(1 << 10..=1 << 60).contains(&self.total_bytes) {
            return Err(invalid(format!(
                "a sample has between 1 KiB and 2^60 bytes, not {}",
                self.total_bytes
            )));
        }
        let elements = self.elements();
        match self.tensors {
            Some(count) if u64::from(count) > elements || count == 0 => Err(invalid(format!(
                "{elements} elements of {} cannot be spread over {count} tensors",
                self.dtype
            ))),
            _ => Ok(()),
        }
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SampleReport {
    /// The layout on disk.
    pub layout: Layout,
    /// The folder.
    pub folder: PathBuf,
    /// Number of tensors.
    pub tensors: u64,
    /// Bytes of all tensors together.
    pub tensor_bytes: u64,
    /// Data files and the index, which appeared last. `config.json` is not counted.
    pub files: Vec<PathBuf>,
    /// Bytes of these files.
    pub file_bytes: u64,
}

/// Writes a sample into `folder`, which is made where it does not exist. It is a checkpoint as soon
/// as its index is there, and not before.
///
/// # Errors
/// Those of [`SampleSpec::list`]; [`ErrorKind::InvalidArgument`] when the folder holds anything
/// (names that begin with a dot do not count) or another process writes into it; [`ErrorKind::Io`], also when the disk is too small,
/// which is found out before anything is written.
pub fn write_sample(folder: impl AsRef<Path>, spec: &SampleSpec) -> Result<SampleReport> {
    spec.check()?;
    let folder = OutputFolder::claim_empty(folder.as_ref())?;
    let report = write_sample_in(&folder, spec)?;
    folder.release(|_| Ok(report))
}

/// As [`write_sample`], into a folder that the caller holds, found empty, and releases.
///
/// # Errors
/// Those of [`SampleSpec::list`]; [`ErrorKind::InvalidArgument`] when a file of the sample is there
/// already; [`ErrorKind::Io`].
pub fn write_sample_in(folder: &OutputFolder, spec: &SampleSpec) -> Result<SampleReport> {
    spec.check()?;
    // Before anything is made whose size depends on the sample's: it has 98 % of them at least.
    folder.require_space(spec.total_bytes - spec.total_bytes / 50)?;
    let shapes::Model { tensors, config } = spec.model()?;
    let count = tensors.len() as u64;
    let plan = match spec.layout {
        Layout::SafeTensors => {
            let options = SafetensorsOptions {
                sharding: Sharding::Count(spec.shards),
                ..SafetensorsOptions::default()
            };
            plan_safetensors(tensors, &options)?
        }
        Layout::ServerlessLlm => {
            let options = ServerlessLlmOptions {
                partitions: Some(spec.partitions),
                ..ServerlessLlmOptions::default()
            };
            plan_serverlessllm(tensors, &options)?
        }
    };
    let writer = CheckpointWriter::create_in(folder, plan, WriteOptions::default())?;
    fill(&writer)?;
    let mut file = folder.file("config.json")?;
    file.write_all(config.as_bytes())
        .map_err(|error| Error::io("write", file.target(), error))?;
    file.commit()?;
    let report = writer.finish()?;
    Ok(SampleReport {
        layout: spec.layout,
        folder: folder.path().to_owned(),
        tensors: count,
        tensor_bytes: report.tensor_bytes,
        files: report.files,
        file_bytes: report.file_bytes,
    })
}

/// The bytes `range` of the sample tensor called `name`.
pub fn sample_bytes(name: &str, range: Range<u64>) -> Vec<u8> {
    let len = range.end.saturating_sub(range.start);
    let mut bytes = vec![0; usize::try_from(len).expect("the range fits in memory")];
    fill_sample(name, range.start, &mut bytes);
    bytes
}

/// Fills `into` with the bytes of the sample tensor called `name` from `offset` on.
pub fn fill_sample(name: &str, offset: u64, into: &mut [u8]) {
    let key = key(name);
    let mut word = offset / 8;
    let skip = (offset % 8) as usize;
    let head = into.len().min((8 - skip) % 8);
    let (head, body) = into.split_at_mut(head);
    if !head.is_empty() {
        head.copy_from_slice(&value(key, word)[skip..skip + head.len()]);
        word += 1;
    }
    let (words, tail) = body.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = value(key, word);
        word = word.wrapping_add(1);
    }
    tail.copy_from_slice(&value(key, word)[..tail.len()]);
}

/// Eight bytes of a tensor: a counter, scrambled with the constants of SplitMix64.
fn value(key: u64, word: u64) -> [u8; 8] {
    let mut z = key.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    // Without the top bit of their exponent, floats of 16, 32 and 64 bits are finite and below 2.
    (z & 0xbfff_bfff_bfff_bfff).to_le_bytes()
}

/// FNV-1a of the name: short, stable, and of our own keeping, unlike the standard hasher.
fn key(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Fills all tensors, several at a time, in disk order.
fn fill(writer: &CheckpointWriter) -> Result<()> {
    let order = writer.plan().disk_order();
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut sink = writer.tensor(index)?;
            if let Err(error) = fill_tensor(&mut sink, &mut chunk) {
                // The others stop at their next tensor.
                next.store(order.len(), Ordering::Relaxed);
                return Err(error);
            }
            sink.finish()?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    in_parallel(threads.clamp(1, MAX_THREADS), work)
}

fn fill_tensor(sink: &mut TensorSink<'_>, chunk: &mut [u8]) -> Result<()> {
    let name = sink.tensor().name.clone();
    let len = sink.remaining();
    while sink.remaining() > 0 {
        let offset = len - sink.remaining();
        let count = sink.remaining().min(chunk.len() as u64) as usize;
        fill_sample(&name, offset, &mut chunk[..count]);
        sink.write(&chunk[..count])?;
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::storage::read_exact_at;

    #[test]
    fn bytes_are_the_same_however_they_are_asked_for() {
        let whole = sample_bytes("model.norm.weight", 0..100);
        for start in 0..24 {
            for end in start..60 {
                let part = sample_bytes("model.norm.weight", start..end);
                assert_eq!(part, whole[start as usize..end as usize]);
            }
        }
        assert_ne!(whole, sample_bytes("lm_head.weight", 0..100));
        assert!(sample_bytes("x", 5..5).is_empty());
        // The bytes are an agreement: files and digests made elsewhere must stay true.
        assert_eq!(
            sample_bytes("model.norm.weight", 0..8),
            [46, 15, 151, 30, 25, 18, 78, 14]
        );
    }

    #[test]
    fn floats_are_finite_and_not_all_alike() {
        let bytes = sample_bytes("w", 0..4096);
        for pair in bytes.as_chunks::<2>().0 {
            let value = f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16);
            assert!(value.is_finite() && value.abs() < 2.0);
        }
        for eight in bytes.as_chunks::<8>().0 {
            assert!(f64::from_le_bytes(*eight).is_finite());
        }
        let ones: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
        assert!((14_000..17_000).contains(&ones), "{ones}");
    }

    #[test]
    fn both_layouts_hold_the_same_tensors_and_bytes() {
        for tensors in [None, Some(50)] {
            for layout in [Layout::SafeTensors, Layout::ServerlessLlm] {
                let scratch = tempfile::tempdir().unwrap();
                let spec = SampleSpec {
                    total_bytes: 300_000,
                    tensors,
                    layout,
                    ..SampleSpec::default()
                };
                let report = write_sample(scratch.path().join("m"), &spec).unwrap();
                assert_eq!(report.files.len(), 5);
                let expected = spec.list().unwrap();
                assert_eq!(report.tensors, expected.len() as u64);
                let mut seen = 0;
                match layout {
                    Layout::SafeTensors => {
                        for path in &report.files[..4] {
                            let bytes = std::fs::read(path).unwrap();
                            let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
                            for (name, view) in read.tensors() {
                                let len = view.data().len() as u64;
                                assert_eq!(view.data(), sample_bytes(&name, 0..len));
                                seen += len;
                            }
                        }
                    }
                    Layout::ServerlessLlm => {
                        let index = std::fs::read(&report.files[4]).unwrap();
                        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
                        for (name, entry) in index.as_object().unwrap() {
                            let number = |i: usize| entry[i].as_u64().unwrap() as usize;
                            let bytes = std::fs::read(&report.files[number(5)]).unwrap();
                            let range = number(0)..number(0) + number(1);
                            assert_eq!(bytes[range], sample_bytes(name, 0..number(1) as u64));
                            seen += number(1) as u64;
                        }
                    }
                }
                assert_eq!(seen, report.tensor_bytes);
                let config = std::fs::read(scratch.path().join("m/config.json")).unwrap();
                serde_json::from_slice::<serde_json::Value>(&config).unwrap();
            }
        }
    }

    #[test]
    fn the_readers_of_this_library_find_what_was_written() {
        for layout in [Layout::SafeTensors, Layout::ServerlessLlm] {
            let scratch = tempfile::tempdir().unwrap();
            let spec = SampleSpec {
                total_bytes: 100_000,
                shards: 3,
                dtype: Dtype::F32,
                layout,
                ..SampleSpec::default()
            };
            let report = write_sample(scratch.path(), &spec).unwrap();
            let checkpoint = Checkpoint::open(scratch.path()).unwrap();
            assert_eq!(checkpoint.layout(), layout);
            assert_eq!(checkpoint.total_bytes(), report.tensor_bytes);
            let expected = spec.list().unwrap();
            assert_eq!(checkpoint.tensors().len(), expected.len());
            for tensor in expected {
                let found = checkpoint.require(&tensor.name).unwrap();
                assert_eq!((found.dtype, &found.shape), (tensor.dtype, &tensor.shape));
                assert!(found.strides.is_none());
                let [extent] = found.extents[..] else {
                    panic!("{found:?}");
                };
                let mut bytes = vec![0; extent.len as usize];
                let source = &checkpoint.sources()[extent.source as usize];
                read_exact_at(&**source, extent.offset, &mut bytes).unwrap();
                assert_eq!(bytes, sample_bytes(&tensor.name, 0..found.nbytes()));
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_sample_that_no_disk_holds_is_refused_before_anything_is_listed() {
        let scratch = tempfile::tempdir().unwrap();
        let spec = SampleSpec {
            total_bytes: 1 << 60,
            dtype: Dtype::U8,
            // A list of these would take more memory than this test should have.
            tensors: Some(u32::MAX),
            ..SampleSpec::default()
        };
        let error = write_sample(scratch.path().join("m"), &spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("are free here"), "{error}");
        assert!(!scratch.path().join("m").exists());
    }

    #[test]
    fn a_folder_in_use_and_senseless_specs_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("precious.bin"), b"x").unwrap();
        let error = write_sample(scratch.path(), &SampleSpec::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("precious.bin"), "{error}");
        let with = |change: fn(&mut SampleSpec)| {
            let mut spec = SampleSpec::default();
            change(&mut spec);
            write_sample(scratch.path().join("new"), &spec)
                .unwrap_err()
                .kind()
        };
        let changes: [fn(&mut SampleSpec); 7] = [
            |spec| spec.total_bytes = 100,
            |spec| spec.total_bytes = u64::MAX,
            |spec| spec.tensors = Some(0),
            |spec| (spec.total_bytes, spec.tensors) = (1024, Some(2000)),
            |spec| spec.dtype = Dtype::F4,
            |spec| spec.dtype = Dtype::Bool,
            |spec| spec.shards = 0,
        ];
        for change in changes {
            assert_eq!(with(change), ErrorKind::InvalidArgument);
        }
        assert!(!scratch.path().join("new").exists());
    }
}
