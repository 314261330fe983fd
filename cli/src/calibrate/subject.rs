//! The file that is read, and the memory that it is read into.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tensora::converters::PendingFile;
use tensora::facts::{IoUringAvailability, free_bytes, process};
use tensora::storage::UnavailableReason;
use tensora::{
    BackendKind, Checkpoint, Engine, Error, Facts, Machine, Selection, Slice, Tensor, text,
};

use super::grid::{Setting, Way};
use crate::cleanup::Unfinished;
use crate::{samples, size};

const MIB: u64 = 1 << 20;

/// Less says nothing about sixteen reads of some MiB each.
pub const SMALLEST_FILE: u64 = 64 * MIB;

/// Bytes of one reading, at most, and hence the memory that readings share.
const LARGEST_WINDOW: u64 = 256 * MIB;

/// Files and windows are whole numbers of these.
const STEP: u64 = 64 * MIB;

/// A slow disk gets a smaller file.
const WRITE_TIME: Duration = Duration::from_secs(6);

/// How the names of our folders begin.
const PREFIX: &str = ".calibrate.tmp-";

const INDEX: &str = "tensor_index.json";
const DATA: &str = "tensor.data_0";
const TENSOR: &str = "bytes";

/// A checkpoint of one tensor in a folder of its own, which goes when this is dropped.
pub struct Subject {
    checkpoint: Checkpoint,
    facts: Facts,
    /// Read into again and again. Has as many bytes as the largest window.
    memory: Tensor,
    data: PathBuf,
    file_bytes: u64,
    window_bytes: u64,
    /// The part of the file, from its start, that is read from.
    part_bytes: u64,
    /// Where the next reading starts: no two in a row read the same bytes.
    next: u64,
    _folder: Unfinished,
}

impl Subject {
    /// Writes a file of at most `bytes` below `parent`.
    pub fn create(parent: &Path, bytes: u64) -> Result<Self> {
        if !parent.is_dir() {
            bail!("{}: not a folder", text::path(parent));
        }
        let bytes = bytes.min(room(parent)?);
        samples::remove_leftovers(parent, PREFIX);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let name = format!("{PREFIX}{}-{}", std::process::id(), now.as_nanos());
        let folder = Unfinished::claim_empty(&parent.join(name))?;
        let file_bytes = write(folder.file(DATA)?, bytes)?;
        let index = json!({ TENSOR: [0, file_bytes, [file_bytes], [1], "torch.uint8", 0] });
        let mut file = folder.file(INDEX)?;
        let written = file.write_all(index.to_string().as_bytes());
        written.map_err(|error| Error::io("write", file.target(), error))?;
        file.commit()?;

        // With the built-in constants: every reading says how it is to be done.
        let checkpoint = Checkpoint::options()
            .engine(Engine::new())
            .open(folder.path().join(INDEX))?;
        let window_bytes = LARGEST_WINDOW.min(file_bytes);
        let first = window(0, window_bytes)?;
        let loader = checkpoint
            .loader()
            .select(first)
            .backend(BackendKind::Sync)
            .align(4096);
        let facts = loader.facts(&loader.plan()?);
        let memory = loader.load()?.into_iter().next();
        Ok(Self {
            facts,
            memory: memory.context("a checkpoint of one tensor loads one")?,
            checkpoint,
            data: folder.path().join(DATA),
            file_bytes,
            window_bytes,
            next: 0,
            part_bytes: file_bytes,
            _folder: folder,
        })
    }

    pub fn cores(&self) -> usize {
        self.facts.cores
    }

    pub fn machine(&self) -> Machine {
        Machine::of(&self.facts, &self.facts.sources[0])
    }

    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Whether the file can be read around the page cache.
    pub fn is_direct(&self) -> bool {
        self.facts.sources[0].direct.is_some()
    }

    /// Why there is no ring; `None` where there is one.
    pub fn ring_refusal(&self) -> Option<&UnavailableReason> {
        match &self.facts.io_uring {
            IoUringAvailability::Available(_) => None,
            IoUringAvailability::Unavailable(reason) => Some(reason),
        }
    }

    /// Drops the file from the page cache, and gives the bytes that stay.
    pub fn evict(&self) -> Result<u64> {
        Ok(process::evict(&self.data)?)
    }

    /// From now on readings are of bytes in the page cache.
    pub fn warm(&mut self) -> Result<()> {
        self.window_bytes = LARGEST_WINDOW.min(self.file_bytes);
        self.part_bytes = self.window_bytes;
        let read = File::open(&self.data)
            .and_then(|file| std::io::copy(&mut file.take(self.part_bytes), &mut std::io::sink()));
        read.map_err(|error| Error::io("read", &self.data, error))?;
        Ok(())
    }

    /// Chooses the bytes of a reading, so that so many of them take about so long.
    pub fn fit_window(&mut self, typical: Setting, readings: usize, time: Duration) -> Result<()> {
        let gib_per_s = self.read(typical)?;
        let seconds = time.as_secs_f64() / readings as f64;
        let fitting = gib_per_s * f64::from(1 << 30) * seconds;
        let steps = (fitting / STEP as f64) as u64;
        self.window_bytes = (steps * STEP).clamp(STEP, self.window_bytes);
        Ok(())
    }

    /// Reads the next window, and gives GiB per second.
    pub fn read(&mut self, setting: Setting) -> Result<f64> {
        if setting.way == Way::ReadAhead {
            self.evict()?;
        }
        if self.next + self.window_bytes > self.part_bytes {
            self.next = 0;
        }
        let selection = window(self.next, self.window_bytes)?;
        self.next += self.window_bytes;
        let loader = self
            .checkpoint
            .loader()
            .select(selection)
            .settings(setting.settings());
        let memory = self
            .memory
            .bytes_mut()
            .context("nobody else has this memory")?;
        let memory = &mut memory[..self.window_bytes as usize];
        let report = loader.load_into([(TENSOR, memory)])?;
        Ok(size::gib_per_s(report.bytes, size::millis(report.elapsed)))
    }
}

/// A part of the one tensor.
fn window(start: u64, len: u64) -> tensora::Result<Selection> {
    let slice = Slice::Ranges(vec![Some(start..start + len)]);
    Selection::all().with_slice(TENSOR, slice)
}

/// Bytes that disk and memory have room for.
fn room(folder: &Path) -> Result<u64> {
    // A part of what is free: others live here, too.
    let disk = free_bytes(folder).map(|free| free / 4);
    let memory = Facts::probe(&[], &[]).memory.headroom_bytes();
    let memory = memory.map(|free| free / 4);
    let room = disk.into_iter().chain(memory).min().unwrap_or(u64::MAX);
    if room < SMALLEST_FILE {
        let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size::bytes);
        bail!(
            "{}: calibrating takes a file of {}, and a quarter of what is free is {} on disk and {} \
             in memory",
            text::path(folder),
            size::bytes(SMALLEST_FILE),
            known(disk),
            known(memory),
        );
    }
    Ok(room)
}

/// Writes a file of noise that no file system can compress, and gives its length.
fn write(mut file: PendingFile, bytes: u64) -> tensora::Result<u64> {
    let start = Instant::now();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = vec![0; MIB as usize];
    let mut written = 0;
    while written + STEP <= bytes && (written == 0 || start.elapsed() < WRITE_TIME) {
        for _ in 0..STEP / MIB {
            for word in block.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            file.write_all(&block)
                .map_err(|error| Error::io("write", file.target(), error))?;
        }
        // Or the time would be that of copies.
        file.sync()?;
        written += STEP;
    }
    file.commit()?;
    Ok(written)
}
