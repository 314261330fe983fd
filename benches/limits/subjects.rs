//! The checkpoints that are loaded, made on the spot.

use std::path::{Path, PathBuf};

use tensora::converters::{
    CheckpointWriter, OutputTensor, SafetensorsOptions, WriteOptions, plan_safetensors,
};
use tensora::sample::{SampleSpec, write_sample};
use tensora::{Checkpoint, Dtype, Layout};

const ONE_FILE: &str = "one";

/// A scratch folder of checkpoints, gone with it.
pub struct Subjects {
    folder: tempfile::TempDir,
    bytes: u64,
}

impl Subjects {
    /// Checkpoints of about so many bytes each, below `folder`.
    pub fn new(folder: &Path, bytes: u64) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("tensora-limits-")
            .tempdir_in(folder)
            .expect("a scratch folder");
        Self { folder, bytes }
    }

    fn made(&self, name: &str, files: u32, spec: SampleSpec) -> Checkpoint {
        let path = self.path(name);
        let spec = SampleSpec {
            shards: files,
            partitions: files,
            ..spec
        };
        write_sample(&path, &spec).expect("a sample");
        Checkpoint::open(path).expect("our own sample")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn dense(&self) -> SampleSpec {
        SampleSpec {
            total_bytes: self.bytes,
            ..SampleSpec::default()
        }
    }

    pub fn one_file(&self) -> Checkpoint {
        self.made(ONE_FILE, 1, self.dense())
    }

    pub fn eight_shards(&self) -> Checkpoint {
        self.made("eight", 8, self.dense())
    }

    pub fn eight_partitions(&self) -> Checkpoint {
        let spec = SampleSpec {
            layout: Layout::ServerlessLlm,
            ..self.dense()
        };
        self.made("partitions", 8, spec)
    }

    pub fn small_tensors(&self, count: u32) -> Checkpoint {
        let spec = SampleSpec {
            tensors: Some(count),
            ..self.dense()
        };
        self.made("small", 1, spec)
    }

    /// One file of many tensors of 32 bytes.
    pub fn many_tensors(&self, count: u32) -> Checkpoint {
        let spec = SampleSpec {
            total_bytes: u64::from(count) * 32,
            tensors: Some(count),
            ..SampleSpec::default()
        };
        self.made("many", 1, spec)
    }

    /// One file of a size of its own.
    pub fn large(&self, bytes: u64) -> Checkpoint {
        let spec = SampleSpec {
            total_bytes: bytes,
            ..SampleSpec::default()
        };
        self.made("large", 1, spec)
    }

    /// Eight tensors, 1 GiB in all, whose eighth on dimension 1 has rows of so many bytes.
    pub fn rows(&self, bytes: u64) -> Checkpoint {
        const TENSOR: u64 = 128 << 20;
        let shape = [TENSOR / (8 * bytes), 8 * bytes];
        let tensors = (0..8).map(|i| OutputTensor::new(format!("t{i}"), Dtype::U8, shape));
        let plan = plan_safetensors(tensors.collect(), &SafetensorsOptions::default());
        let path = self.path(&format!("rows-{bytes}"));
        let options = WriteOptions::default();
        let writer = CheckpointWriter::create(&path, plan.expect("a plan"), options);
        let writer = writer.expect("a folder of its own");
        let mut row = vec![0; (8 * bytes) as usize];
        for index in 0..8 {
            let mut sink = writer.tensor(index).expect("our own tensor");
            for number in 0..shape[0] {
                row.fill(number as u8);
                sink.write(&row).expect("room on the disk");
            }
            sink.finish().expect("a whole tensor");
        }
        writer.finish().expect("a checkpoint");
        Checkpoint::open(path).expect("our own checkpoint")
    }

    /// Makes room: deletes the large checkpoints that are no longer needed.
    pub fn forget_all_but_one_file(&self) {
        for name in ["eight", "partitions", "small"] {
            std::fs::remove_dir_all(self.path(name)).expect("our own folder");
        }
    }
}
