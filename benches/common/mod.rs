//! What the Criterion benches share: what is loaded, in which order, by whom, and the proof that it
//! is the right bytes.
//!
//! `TENSORA_MODEL_ID` names a model in the local Hugging Face cache, or a path; without it a sample
//! of [`SAMPLE_BYTES`] is made. Everything that is written goes below the target folder.
#![allow(dead_code)] // Each bench is a program of its own and takes what it needs.

pub mod loads;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use criterion::Criterion;
use criterion::measurement::WallTime;
use tempfile::TempDir;
use tensora::converters::ConvertOptions;
use tensora::facts::IoUringAvailability;
use tensora::sample::{SampleSpec, write_sample};
use tensora::{BackendKind, Checkpoint, Engine, Layout, Tensor, hf_model};

/// Bytes of the sample: many chunks for every backend, and some milliseconds a load.
const SAMPLE_BYTES: u64 = 64 << 20;

/// Bytes between touches of a mapping: the smallest page there is.
const TOUCH_BYTES: usize = 4096;

/// Few samples and short ones: loads take milliseconds to minutes. Command-line options win.
pub fn criterion() -> Criterion<WallTime> {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}

/// The backends among `wanted` that can run here, with their names in groups. Says in one line when
/// io_uring cannot.
pub fn available(wanted: &[BackendKind]) -> Vec<(BackendKind, String)> {
    let mut backends = wanted.to_vec();
    if let IoUringAvailability::Unavailable(reason) = Engine::shared().io_uring() {
        backends.retain(|&backend| backend != BackendKind::IoUring);
        println!("io_uring groups are left out: {reason}");
    }
    let named = |backend: BackendKind| (backend, backend.name().replace('-', "_"));
    backends.into_iter().map(named).collect()
}

/// The checkpoint that is loaded. Nothing is written or converted before it is asked for, so that
/// filtered-out loads cost nothing.
pub struct Subject {
    layout: Layout,
    /// The model's path, where one was chosen.
    model: Option<PathBuf>,
    name: String,
    bytes: u64,
    made: OnceCell<Made>,
}

struct Made {
    /// Where the checkpoint is our own work; removed at the end.
    _folder: Option<TempDir>,
    path: PathBuf,
    checkpoint: Checkpoint,
}

impl Subject {
    /// The chosen model, or a sample, in `layout`.
    pub fn new(layout: Layout) -> Self {
        let id = std::env::var("TENSORA_MODEL_ID").unwrap_or_default();
        let (name, model, bytes) = if id.is_empty() {
            let tensors = sample_spec(layout).list().expect("a spec of our own");
            let sizes = tensors.iter().map(|tensor| tensor.nbytes());
            let bytes = sizes.sum::<tensora::Result<u64>>();
            ("sample".to_owned(), None, bytes.expect("whole bytes"))
        } else {
            let found = hf_model::resolve(&id, None).and_then(|path| {
                let bytes = Checkpoint::open(&path)?.total_bytes();
                Ok((path, bytes))
            });
            let (path, bytes) = found.unwrap_or_else(|error| panic!("TENSORA_MODEL_ID: {error}"));
            (id, Some(path), bytes)
        };
        Self {
            layout,
            model,
            name,
            bytes,
            made: OnceCell::new(),
        }
    }

    /// How it lies on disk.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// What reports call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What a user would name to load it.
    pub fn path(&self) -> &PathBuf {
        &self.made().path
    }

    /// The opened checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.made().checkpoint
    }

    /// Paths of the files with tensors.
    pub fn files(&self) -> Vec<PathBuf> {
        let sources = self.checkpoint().sources().iter();
        sources.map(|source| source.path().to_owned()).collect()
    }

    /// Names of the tensors as they lie in the files.
    pub fn in_file_order(&self) -> Vec<String> {
        let tensors = self.checkpoint().tensors().iter();
        tensors.map(|tensor| tensor.name.to_string()).collect()
    }

    /// The same names in an order that is random, but the same every time.
    pub fn in_random_order(&self) -> Vec<String> {
        let mut names = self.in_file_order();
        let mut state = 0x5eed_u64;
        for end in (1..names.len()).rev() {
            names.swap(end, (splitmix64(&mut state) % (end as u64 + 1)) as usize);
        }
        names
    }

    fn made(&self) -> &Made {
        self.made.get_or_init(|| {
            let (folder, path) = self.make();
            let checkpoint = Checkpoint::options()
                .layout(self.layout)
                .open(&path)
                .unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(checkpoint.total_bytes(), self.bytes);
            Made {
                _folder: folder,
                path,
                checkpoint,
            }
        })
    }

    fn make(&self) -> (Option<TempDir>, PathBuf) {
        let Some(path) = &self.model else {
            let folder = scratch();
            let path = folder.path().join("sample");
            write_sample(&path, &sample_spec(self.layout)).expect("a sample");
            return (Some(folder), path);
        };
        let checkpoint = Checkpoint::open(path).expect("it was opened before");
        if checkpoint.layout() == self.layout {
            return (None, path.clone());
        }
        let folder = scratch();
        let path = folder.path().join("converted");
        convert(&checkpoint, &path, BackendKind::Default);
        (Some(folder), path)
    }
}

fn sample_spec(layout: Layout) -> SampleSpec {
    SampleSpec {
        total_bytes: SAMPLE_BYTES,
        layout,
        ..SampleSpec::default()
    }
}

/// A folder that removes itself, on the disk of the target folder.
pub fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("tensora-bench-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a scratch folder")
}

/// Writes the checkpoint into `folder` in the other layout, as the `convert` program does.
pub fn convert(checkpoint: &Checkpoint, folder: &PathBuf, backend: BackendKind) {
    let options = ConvertOptions {
        backend,
        ..ConvertOptions::default()
    };
    tensora::converters::convert(checkpoint, folder, &options).expect("a conversion");
}

/// Panics unless `tensors` are those of `checkpoint`, all of them and byte for byte, as
/// [`std::fs::read`] reads them.
pub fn assert_right<'a>(checkpoint: &Checkpoint, tensors: impl IntoIterator<Item = &'a Tensor>) {
    let loaded: HashMap<&str, &Tensor> = tensors
        .into_iter()
        .map(|tensor| (tensor.name(), tensor))
        .collect();
    assert_eq!(
        loaded.len(),
        checkpoint.tensors().len(),
        "number of tensors"
    );
    for (number, source) in checkpoint.sources().iter().enumerate() {
        let file = std::fs::read(source.path()).expect("a file of the checkpoint");
        for meta in checkpoint.tensors() {
            let bytes = loaded[&*meta.name].bytes();
            assert!(
                meta.strides.is_none(),
                "{}: the benches compare contiguous tensors only",
                meta.name
            );
            assert_eq!(bytes.len() as u64, meta.nbytes(), "{}", meta.name);
            let mut begin = 0;
            for extent in &meta.extents {
                let end = begin + extent.len as usize;
                if extent.source as usize == number {
                    let stored = &file[extent.offset as usize..extent.end() as usize];
                    assert!(bytes[begin..end] == *stored, "{} differs", meta.name);
                }
                begin = end;
            }
        }
    }
}

/// Reads a byte of every page, so that a mapping's bytes are in hand.
pub fn touch(tensor: &Tensor) -> u64 {
    let pages = tensor.bytes().iter().step_by(TOUCH_BYTES);
    std::hint::black_box(pages.map(|&byte| u64::from(byte)).sum())
}

/// Runs `check` when it is called for the first time: Criterion calls what it measures again for
/// each sample, and not at all where it is filtered out.
pub fn once(check: impl FnOnce()) -> impl FnMut() {
    let mut check = Some(check);
    move || {
        if let Some(check) = check.take() {
            check();
        }
    }
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
