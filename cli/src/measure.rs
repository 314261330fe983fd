//! One measured load: the same figures for every backend and for plain reads.
//!
//! Measured from the path to all bytes in hand: opening (headers, index), planning, reading. What
//! comes before (evicting, mapping for the sake of the figure) and after (comparing, freeing) is
//! left out.

use std::hint::black_box;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Serialize;
use tensora::facts::process;
use tensora::trace::TraceSummary;
use tensora::{BackendKind, Error, ErrorKind, ReadPlan, Result, Settings, Tensors, Trace};

use crate::model::Subject;
use crate::size;

/// Who reads.
#[derive(Debug, Clone)]
pub enum Reader {
    /// The library.
    Library(Settings),
    /// [`std::fs::read`] of file after file.
    Native,
    /// [`std::fs::read`] of all files at once, on a thread each.
    NativeParallel,
}

/// What one load took. Times in milliseconds; `None` where the system does not tell.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Who read.
    pub backend: String,
    /// Why.
    pub reason: String,
    /// Threads or rings.
    pub workers: u64,
    /// Which constants the library decided with: `built-in`, or the file of a measured profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// From the path to all bytes in hand.
    pub ms: f64,
    /// Of these, opening: headers and index.
    pub open_ms: f64,
    /// To the first tensor, or to the first file of a plain read.
    pub first_tensor_ms: Option<f64>,
    /// To a mapping of all tensors without a byte in hand: mmap only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map_ms: Option<f64>,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Their number.
    pub tensors: u64,
    /// Files that were read from.
    pub files: u64,
    /// Bytes of tensors per time.
    pub gib_per_s: f64,
    /// Processor time of all threads, in seconds.
    pub cpu_s: Option<f64>,
    /// Largest resident set, with what the program itself takes.
    pub peak_rss_bytes: Option<u64>,
    /// Bytes of the plan that were in the page cache.
    pub resident_before_bytes: u64,
    /// Bytes that came from the disk.
    pub disk_read_bytes: Option<u64>,
    /// Where the time went, of a load that was traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Box<TraceSummary>>,
}

/// A checkpoint, its plan, and what measuring needs of them.
#[derive(Debug)]
pub struct Bench {
    subject: Subject,
    checkpoint: tensora::Checkpoint,
    plan: ReadPlan,
}

impl Bench {
    /// Opens the checkpoint once, for its plan.
    pub fn new(subject: Subject) -> Result<Self> {
        let checkpoint = subject.open()?;
        let plan = checkpoint.loader().plan()?;
        Ok(Self {
            subject,
            checkpoint,
            plan,
        })
    }

    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    pub fn checkpoint(&self) -> &tensora::Checkpoint {
        &self.checkpoint
    }

    /// The files that the plan reads from, links followed.
    pub fn files(&self) -> Vec<&Path> {
        let mut used: Vec<u32> = self.plan.spans.iter().map(|span| span.source).collect();
        used.dedup();
        used.iter()
            .map(|&source| self.plan.sources[source as usize].path.as_path())
            .collect()
    }

    /// Drops the plan's files from the page cache, and gives the bytes that stay.
    pub fn evict(&self) -> Result<u64> {
        self.files().into_iter().map(process::evict).sum()
    }

    /// Bytes that the plan's spans cover.
    pub fn span_bytes(&self) -> u64 {
        self.plan.figures().span_bytes
    }

    /// Bytes of the plan that are in the page cache now.
    pub fn resident_bytes(&self) -> u64 {
        let facts = self.checkpoint.loader().facts(&self.plan);
        let resident = |span: &tensora::plan::Span| {
            let residency = &facts.sources[span.source as usize].residency;
            residency.resident_bytes(span.offset..span.offset + span.len)
        };
        self.plan.spans.iter().map(resident).sum()
    }

    /// Time from the path to a lazy mapping of all tensors: nothing is read but headers.
    pub fn map(&self) -> Result<f64> {
        let start = Instant::now();
        let lazy = self.subject.open()?.lazy();
        let tensors = lazy.select(tensora::Selection::all())?;
        let ms = size::millis(start.elapsed());
        drop(tensors);
        Ok(ms)
    }

    /// Loads once. The tensors are given back, so that they can be compared; plain reads have none.
    pub fn run(&self, reader: &Reader) -> Result<(Figures, Option<Tensors>)> {
        self.run_traced(reader, None)
    }

    /// As [`run`](Self::run), recording a load of the library in `trace`.
    pub fn run_traced(
        &self,
        reader: &Reader,
        trace: Option<&Trace>,
    ) -> Result<(Figures, Option<Tensors>)> {
        let resident_before_bytes = self.resident_bytes();
        process::reset_peak_rss();
        let before = process::usage();
        let (figures, tensors) = match reader {
            Reader::Library(settings) => {
                let (figures, tensors) = self.load(settings, trace)?;
                (figures, Some(tensors))
            }
            Reader::Native => (self.read(false)?, None),
            Reader::NativeParallel => (self.read(true)?, None),
        };
        let used = process::usage().since(&before);
        let figures = Figures {
            gib_per_s: size::gib_per_s(figures.bytes, figures.ms),
            cpu_s: used
                .user_s
                .zip(used.system_s)
                .map(|(user, system)| user + system),
            peak_rss_bytes: used.peak_rss_bytes,
            resident_before_bytes,
            disk_read_bytes: used.read_bytes,
            files: self.files().len() as u64,
            trace: trace.map(|trace| Box::new(trace.summary())),
            ..figures
        };
        Ok((figures, tensors))
    }

    fn load(&self, settings: &Settings, trace: Option<&Trace>) -> Result<(Figures, Tensors)> {
        let start = Instant::now();
        let checkpoint = self.subject.open()?;
        let open = start.elapsed();
        let mut loader = checkpoint.loader().settings(settings.clone());
        if let Some(trace) = trace {
            loader = loader.trace(trace);
        }
        let tensors = loader.load()?;
        if tensors.report().decision.backend == BackendKind::Mmap {
            touch(&tensors);
        }
        let all = start.elapsed();
        let report = tensors.report();
        let decision = &report.decision;
        // The library counts from its first read; users wait for what comes before as well.
        let before_reading = all.saturating_sub(report.elapsed);
        let first = report.first_tensor.map(|first| before_reading + first);
        let figures = Figures {
            workers: decision.workers as u64,
            profile: Some(decision.profile.clone()),
            bytes: report.bytes,
            tensors: report.tensors,
            ..Figures::timed(decision.backend.name(), &decision.reason, open, first, all)
        };
        Ok((figures, tensors))
    }

    /// Refuses a plain read that got other bytes than the figures would speak of.
    fn check_len(&self, path: &Path, read: u64) -> Result<()> {
        let mut sources = self.plan.sources.iter();
        match sources.find(|source| source.path == path) {
            Some(source) if source.len != read => Err(Error::new(
                ErrorKind::SourceChanged,
                format!(
                    "{read} bytes were read of this file, which had {} when it was opened",
                    source.len
                ),
            )
            .at(path)
            .help("measure again when nothing writes to it")),
            _ => Ok(()),
        }
    }

    fn read(&self, parallel: bool) -> Result<Figures> {
        let files = self.files();
        let start = Instant::now();
        let first = Mutex::new(None);
        let read = |path: &Path| {
            let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
            self.check_len(path, bytes.len() as u64)?;
            let mut first = first
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            first.get_or_insert_with(|| start.elapsed());
            Ok(bytes)
        };
        let contents: Vec<Vec<u8>> = if parallel {
            std::thread::scope(|scope| {
                let readers: Vec<_> = files
                    .iter()
                    .map(|&path| {
                        let read = &read;
                        scope.spawn(move || read(path))
                    })
                    .collect();
                readers
                    .into_iter()
                    .map(|reader| {
                        reader
                            .join()
                            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    })
                    .collect::<Result<_>>()
            })?
        } else {
            files
                .iter()
                .map(|&path| read(path))
                .collect::<Result<_>>()?
        };
        let all = start.elapsed();
        black_box(&contents);
        let first = first
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (name, reason, workers) = if parallel {
            (
                "native-parallel",
                "std::fs::read, one thread for each file",
                files.len(),
            )
        } else {
            ("native", "std::fs::read, one file after the other", 1)
        };
        let figures = self.plan.figures();
        Ok(Figures {
            workers: workers as u64,
            bytes: figures.result_bytes,
            tensors: figures.tensors,
            ..Figures::timed(name, reason, Duration::ZERO, first, all)
        })
    }
}

impl Figures {
    fn timed(
        backend: &str,
        reason: &str,
        open: Duration,
        first: Option<Duration>,
        all: Duration,
    ) -> Self {
        Self {
            backend: backend.to_owned(),
            reason: reason.to_owned(),
            workers: 0,
            profile: None,
            ms: size::millis(all),
            open_ms: size::millis(open),
            first_tensor_ms: first.map(size::millis),
            map_ms: None,
            bytes: 0,
            tensors: 0,
            files: 0,
            gib_per_s: 0.0,
            cpu_s: None,
            peak_rss_bytes: None,
            resident_before_bytes: 0,
            disk_read_bytes: None,
            trace: None,
        }
    }
}

/// Reads one byte of each page: a mapping has its bytes in hand only then.
fn touch(tensors: &Tensors) {
    let sum = |bytes: &[u8]| {
        bytes
            .iter()
            .step_by(4096)
            .fold(0_u8, |sum, byte| sum ^ byte)
    };
    black_box(
        tensors
            .iter()
            .map(|tensor| sum(tensor.bytes()))
            .fold(0, |a, b| a ^ b),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensora::Layout;
    use tensora::sample::{SampleSpec, write_sample};

    #[test]
    fn plain_reads_of_a_file_that_shrank_are_no_measurement() {
        let folder = tempfile::tempdir().unwrap();
        let spec = SampleSpec {
            total_bytes: 1 << 20,
            ..SampleSpec::default()
        };
        write_sample(folder.path(), &spec).unwrap();
        let bench = Bench::new(Subject {
            path: folder.path().to_owned(),
            layout: Layout::SafeTensors,
        })
        .unwrap();
        assert!(bench.run(&Reader::Native).is_ok());
        let file = bench.files()[0].to_owned();
        let len = std::fs::metadata(&file).unwrap().len();
        let short = std::fs::File::options().write(true).open(&file).unwrap();
        short.set_len(len - 1).unwrap();
        for reader in [Reader::Native, Reader::NativeParallel] {
            let error = bench.run(&reader).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SourceChanged);
            assert_eq!(error.path(), Some(&*file));
            let text = error.to_string();
            assert!(text.contains(&len.to_string()), "{text}");
            assert!(text.contains(&(len - 1).to_string()), "{text}");
        }
    }
}
