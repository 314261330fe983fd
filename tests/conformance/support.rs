//! Checkpoints made by hand, their bytes as an oracle, and every way to load them.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use futures_core::Stream;
use tensora::facts::IoUringAvailability;
use tensora::plan::check::slice_naively;
use tensora::{
    BackendKind, Checkpoint, Dtype, Engine, Error, Loader, Selection, Settings, Slice, Tensor,
};

/// What a load must deliver: shape and bytes by name.
pub type Expected = BTreeMap<String, (Vec<u64>, Vec<u8>)>;

/// Backends that can run here. One that cannot is reported, past the capture of test output.
pub fn backends() -> Vec<BackendKind> {
    static REPORT: Once = Once::new();
    let mut kinds = vec![BackendKind::Default];
    kinds.extend(BackendKind::CONCRETE);
    if let IoUringAvailability::Unavailable(reason) = Engine::shared().io_uring() {
        kinds.retain(|kind| *kind != BackendKind::IoUring);
        REPORT.call_once(|| {
            use std::io::Write;
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: every io-uring row of the conformance suite: {reason}"
            );
        });
    }
    kinds
}

/// Aborts the process, and with it a load that hangs, a minute after it was made.
pub struct Watchdog(Sender<()>);

impl Watchdog {
    pub fn new(what: &str) -> Self {
        let (alive, dog) = channel();
        let what = what.to_owned();
        std::thread::spawn(move || {
            if dog.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                use std::io::Write;
                let _ = writeln!(std::io::stderr(), "HANGS: {what}");
                std::process::abort();
            }
        });
        Self(alive)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Bytes without a period that a wrong offset could hide in.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A SafeTensors file in memory. `pad` spaces after the header move the data off its alignment.
pub fn safetensors(tensors: &[(&str, Dtype, &[u64])], seed: u64, pad: usize) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, dtype, shape) in tensors {
        let len = dtype.nbytes(shape).unwrap();
        let entry = serde_json::json!({
            "dtype": dtype.name(), "shape": shape, "data_offsets": [at, at + len],
        });
        header.insert((*name).to_owned(), entry);
        at += len;
    }
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(text.len().next_multiple_of(8) + pad, b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(noise(seed, at as usize));
    file
}

/// Files on disk, the checkpoint in them, and their contents.
pub struct Sample {
    pub folder: tempfile::TempDir,
    pub checkpoint: Checkpoint,
    pub contents: Vec<Vec<u8>>,
}

impl Sample {
    /// Writes `files` into a fresh folder and opens it with an engine of its own.
    pub fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        Self::open(folder)
    }

    pub fn open(folder: tempfile::TempDir) -> Self {
        let options = Checkpoint::options().engine(Engine::new());
        let checkpoint = options.open(folder.path()).unwrap();
        let read =
            |source: &Arc<dyn tensora::storage::Source>| std::fs::read(source.path()).unwrap();
        let contents = checkpoint.sources().iter().map(read).collect();
        Self {
            folder,
            checkpoint,
            contents,
        }
    }

    /// One SafeTensors file.
    pub fn single(tensors: &[(&str, Dtype, &[u64])], pad: usize) -> Self {
        Self::new(&[("model.safetensors", safetensors(tensors, 1, pad))])
    }

    pub fn path(&self, source: usize) -> PathBuf {
        self.checkpoint.sources()[source].path().to_owned()
    }

    /// What loading everything must deliver.
    pub fn all(&self) -> Expected {
        self.parts(|_| Some(None))
    }

    /// What a selection must deliver: `choose` says of each name whether it is selected, and how
    /// it is sliced.
    pub fn parts(&self, choose: impl Fn(&str) -> Option<Option<Slice>>) -> Expected {
        expected(&self.checkpoint, &self.contents, choose)
    }
}

/// See [`Sample::parts`].
pub fn expected(
    checkpoint: &Checkpoint,
    contents: &[Vec<u8>],
    choose: impl Fn(&str) -> Option<Option<Slice>>,
) -> Expected {
    let mut expected = Expected::new();
    for meta in checkpoint.tensors() {
        let Some(slice) = choose(&meta.name) else {
            continue;
        };
        let bytes = if slice.is_none() && meta.strides.is_none() {
            let range = |extent: &tensora::Extent| {
                &contents[extent.source as usize][extent.offset as usize..extent.end() as usize]
            };
            meta.extents.iter().flat_map(range).copied().collect()
        } else {
            slice_naively(meta, slice.as_ref(), contents).unwrap()
        };
        let shape = (0..meta.shape.len())
            .map(|dim| rows(slice.as_ref(), dim, meta.shape[dim]))
            .collect();
        expected.insert(meta.name.to_string(), (shape, bytes));
    }
    expected
}

fn rows(slice: Option<&Slice>, dim: usize, rows: u64) -> u64 {
    match slice {
        Some(Slice::Ranges(ranges)) => match &ranges[dim] {
            Some(range) => range.end - range.start,
            None => rows,
        },
        Some(Slice::Steps(steps)) => steps[dim].map_or(rows, |steps| steps.count),
        Some(Slice::Shard {
            dim: cut,
            rank,
            world,
            ..
        }) if *cut == dim => rows / world + u64::from(*rank < rows % world),
        _ => rows,
    }
}

/// Compares tensors, in whatever order they came, with what was expected.
#[track_caller]
pub fn compare<'a>(what: &str, tensors: impl IntoIterator<Item = &'a Tensor>, expected: &Expected) {
    let mut seen = 0;
    for tensor in tensors {
        let name = tensor.name();
        let (shape, bytes) = expected
            .get(name)
            .unwrap_or_else(|| panic!("{what}: {name} was not asked for"));
        assert_eq!(tensor.shape(), shape.as_slice(), "{what}: shape of {name}");
        assert_eq!(tensor.nbytes(), bytes.len(), "{what}: length of {name}");
        if tensor.bytes() != bytes {
            let at = (0..bytes.len()).find(|&at| tensor.bytes()[at] != bytes[at]);
            panic!("{what}: {name} differs from byte {at:?} of {}", bytes.len());
        }
        if !bytes.is_empty() {
            let align = tensor.dtype().alignment() as usize;
            assert_eq!(
                tensor.bytes().as_ptr().align_offset(align),
                0,
                "{what}: address of {name}"
            );
        }
        seen += 1;
    }
    assert_eq!(seen, expected.len(), "{what}: tensors");
}

/// Loads in every way there is, and compares each.
#[track_caller]
pub fn check_every_verb(what: &str, loader: &Loader, expected: &Expected) {
    let say = |verb: &str, error: Error| -> ! { panic!("{what}: {verb}: {error}") };
    let loaded = loader.load().unwrap_or_else(|error| say("load", error));
    compare(&format!("{what}: load"), &loaded, expected);
    for name in expected.keys() {
        assert_eq!(loaded.get(name).unwrap().name(), name);
    }
    assert!(
        loaded.report().reads > 0
            || loaded.report().mapped_bytes > 0
            || expected.values().all(|(_, bytes)| bytes.is_empty())
    );

    let loaded = block_on(loader.load_async()).unwrap_or_else(|error| say("async", error));
    compare(&format!("{what}: async"), &loaded, expected);

    let stream = loader.stream().unwrap_or_else(|error| say("stream", error));
    let tensors: Vec<_> = stream
        .map(|item| item.unwrap_or_else(|error| say("stream", error)))
        .collect();
    compare(&format!("{what}: stream"), &tensors, expected);

    let mut stream = loader.stream().unwrap_or_else(|error| say("stream", error));
    let mut tensors = Vec::new();
    while let Some(item) = block_on(next(&mut stream)) {
        tensors.push(item.unwrap_or_else(|error| say("futures stream", error)));
    }
    compare(&format!("{what}: futures stream"), &tensors, expected);

    let ordered = loader.clone().order(tensora::Order::Name);
    let stream = ordered
        .stream()
        .unwrap_or_else(|error| say("by name", error));
    let tensors: Vec<_> = stream
        .map(|item| item.unwrap_or_else(|error| say("by name", error)))
        .collect();
    assert!(
        tensors.is_sorted_by_key(|tensor| tensor.name().to_owned()),
        "{what}: by name"
    );
    compare(&format!("{what}: by name"), &tensors, expected);

    let mut buffers: Vec<(&str, Vec<u8>)> = expected
        .iter()
        .map(|(name, (_, bytes))| (name.as_str(), vec![0xAA; bytes.len()]))
        .collect();
    loader
        .load_into(
            buffers
                .iter_mut()
                .map(|(name, buffer)| (*name, &mut buffer[..])),
        )
        .unwrap_or_else(|error| say("load_into", error));
    for (name, buffer) in &buffers {
        assert!(*buffer == expected[*name].1, "{what}: load_into: {name}");
    }
}

/// Lazy handles: whole tensors one by one, and a selection.
#[track_caller]
pub fn check_lazy(what: &str, checkpoint: &Checkpoint, selection: Selection, expected: &Expected) {
    let lazy = checkpoint.lazy();
    assert_eq!(lazy.metas().len(), checkpoint.tensors().len());
    let tensors = lazy.select(selection).unwrap();
    compare(&format!("{what}: lazy"), &tensors, expected);
}

/// The engine's future on a thread that does nothing else, without any executor.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The next item of a futures stream.
pub fn next<S: Stream + Unpin>(stream: &mut S) -> impl Future<Output = Option<S::Item>> {
    std::future::poll_fn(move |context| Pin::new(&mut *stream).poll_next(context))
}

/// Small chunks, several workers and a queue: every request boundary there is.
pub fn settings(backend: BackendKind) -> Settings {
    Settings {
        backend,
        workers: Some(3),
        queue_depth: Some(4),
        chunk_bytes: Some(4096),
        ..Settings::default()
    }
}

/// The message and those below it.
pub fn full_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        text.push_str(&format!(": {error}"));
        below = error.source();
    }
    text
}
