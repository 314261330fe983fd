//! Turns, medians and verdicts.

use std::any::Any;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use memmap2::MmapOptions;
use tensora::facts::process::{evict, usage};
use tensora::storage::{DescriptorCache, LocalFile, Source};
use tensora::{Checkpoint, Facts, Loader};

/// What is in the page cache before a timed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Cold,
    Warm,
    /// The first half of every file.
    Half,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Cold => "cold",
            State::Warm => "warm",
            State::Half => "half",
        }
    }

    /// Brings the page cache into this state.
    pub fn prepare(self, extents: &[Extent]) {
        for extent in extents {
            let len = extent.range.end - extent.range.start;
            let wanted = match self {
                State::Cold => 0,
                State::Warm => len,
                State::Half => len / 2,
            };
            if self != State::Warm {
                let left = evict(&extent.path).expect("our own file");
                let path = extent.path.display();
                assert_eq!(left, 0, "{path}: pages stayed after evicting");
            } else if extent.is_resident() {
                continue;
            }
            let mut file = File::open(&extent.path).expect("our own file");
            file.seek(SeekFrom::Start(extent.range.start))
                .expect("our own file");
            std::io::copy(&mut file.take(wanted), &mut std::io::sink()).expect("our own file");
        }
    }
}

/// The part of a file that a case reads.
#[derive(Debug, Clone)]
pub struct Extent {
    pub path: PathBuf,
    pub range: Range<u64>,
}

impl Extent {
    fn is_resident(&self) -> bool {
        let len = self.range.end - self.range.start;
        resident_bytes(std::slice::from_ref(self)) >= len
    }
}

/// The files that a checkpoint's tensors lie in, whole.
pub fn files_of(checkpoint: &Checkpoint) -> Vec<Extent> {
    let whole = |source: &Arc<dyn Source>| Extent {
        path: source.path().to_owned(),
        range: 0..source.len(),
    };
    checkpoint.sources().iter().map(whole).collect()
}

/// The parts of files that a selection reads.
pub fn extents_of(loader: &Loader) -> Vec<Extent> {
    let plan = loader.plan().expect("a plan");
    let mut parts: Vec<Option<Range<u64>>> = vec![None; plan.sources.len()];
    for span in &plan.spans {
        let end = span.offset + span.len;
        let part = parts[span.source as usize].get_or_insert(span.offset..end);
        *part = part.start.min(span.offset)..part.end.max(end);
    }
    let sources = plan.sources.iter().zip(parts);
    sources
        .filter_map(|(source, range)| {
            Some(Extent {
                path: source.path.clone(),
                range: range?,
            })
        })
        .collect()
}

fn resident_bytes(extents: &[Extent]) -> u64 {
    let cache = Arc::new(DescriptorCache::new(1));
    let of = |extent: &Extent| {
        let file = LocalFile::open(&extent.path, &cache).expect("our own file");
        let len = extent.range.end - extent.range.start;
        let facts = Facts::probe(&[Arc::new(file)], &[(0, extent.range.start, len)]);
        facts.sources[0]
            .residency
            .resident_bytes(extent.range.clone())
    };
    extents.iter().map(of).sum()
}

/// One way to get the bytes; what it returns is dropped after the clock has stopped.
pub struct Way<'a>(Box<dyn Fn() -> Box<dyn Any> + 'a>);

impl<'a> Way<'a> {
    pub fn new(run: impl Fn() -> Box<dyn Any> + 'a) -> Self {
        Self(Box::new(run))
    }
}

/// One line: what is measured, in which state, over which parts of files, for how many bytes (0:
/// times are compared and not rates).
pub struct Case<'a> {
    pub measure: String,
    pub state: State,
    pub extents: &'a [Extent],
    pub bytes: u64,
}

impl<'a> Case<'a> {
    pub fn new(
        measure: impl Into<String>,
        state: State,
        extents: &'a [Extent],
        bytes: u64,
    ) -> Self {
        Self {
            measure: measure.into(),
            state,
            extents,
            bytes,
        }
    }
}

/// What a ratio must be for its line to pass.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// For comparison only.
    Shown,
}

/// Seconds and CPU seconds of repeated runs.
#[derive(Debug, Default, Clone)]
struct Runs {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

/// Median, smallest and largest.
#[derive(Debug, Clone, Copy)]
struct Spread {
    mid: f64,
    low: f64,
    high: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
        Self {
            mid: sorted[sorted.len() / 2],
            low,
            high,
        }
    }

    fn exact(value: f64) -> Self {
        Self {
            mid: value,
            low: value,
            high: value,
        }
    }

    fn per(self, amount: f64) -> Self {
        Self {
            mid: amount / self.mid,
            low: amount / self.high,
            high: amount / self.low,
        }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            mid: self.mid * factor,
            low: self.low * factor,
            high: self.high * factor,
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} ({:.3}-{:.3})", self.mid, self.low, self.high)
    }
}

pub struct Bench {
    repetitions: usize,
    only: Option<String>,
    missed: u32,
}

impl Bench {
    pub fn new(repetitions: usize, only: Option<String>) -> Self {
        Self {
            repetitions,
            only,
            missed: 0,
        }
    }

    pub fn missed(&self) -> u32 {
        self.missed
    }

    fn skips(&self, measure: &str) -> bool {
        self.only
            .as_ref()
            .is_some_and(|word| !measure.contains(word.as_str()))
    }

    /// The ways take turns; the first one of a round changes from round to round.
    fn turns(&self, case: &Case<'_>, ways: &[&Way<'_>]) -> Vec<Runs> {
        let mut runs = vec![Runs::default(); ways.len()];
        for round in 0..self.repetitions {
            for turn in 0..ways.len() {
                let index = (round + turn) % ways.len();
                case.state.prepare(case.extents);
                back_memory(case.bytes);
                let (before, begun) = (usage(), Instant::now());
                let kept = (ways[index].0)();
                runs[index].wall.push(begun.elapsed().as_secs_f64());
                let used = usage().since(&before);
                drop(kept);
                runs[index]
                    .cpu
                    .push(used.user_s.unwrap_or(0.0) + used.system_s.unwrap_or(0.0));
            }
        }
        runs
    }

    /// Ours against one rival: rates in GB/s, or seconds when `bytes` is 0.
    pub fn compare(&mut self, case: &Case<'_>, ours: Way<'_>, rival: Way<'_>, goal: Goal) {
        if self.skips(&case.measure) {
            return;
        }
        let runs = self.turns(case, &[&ours, &rival]);
        let figure = |runs: &Runs| match case.bytes {
            0 => Spread::of(&runs.wall),
            bytes => Spread::of(&runs.wall).per(bytes as f64 / 1e9),
        };
        self.line(
            &case.measure,
            case.state.name(),
            figure(&runs[0]),
            figure(&runs[1]),
            goal,
        );
    }

    /// CPU seconds of ours against those of a rival.
    pub fn compare_cpu(&mut self, case: &Case<'_>, ours: Way<'_>, rival: Way<'_>, at_most: f64) {
        if self.skips(&case.measure) {
            return;
        }
        let runs = self.turns(case, &[&ours, &rival]);
        let figure = |runs: &Runs| Spread::of(&runs.cpu).times(1e9 / case.bytes as f64);
        self.line(
            &case.measure,
            case.state.name(),
            figure(&runs[0]),
            figure(&runs[1]),
            Goal::AtMost(at_most),
        );
    }

    /// CPU seconds per GB, against a number; beside it what the same bytes cost those who do
    /// nothing else, which no loader can go below.
    pub fn cpu(&mut self, case: &Case<'_>, ours: Way<'_>, least: Way<'_>, at_most: f64) {
        if self.skips(&case.measure) {
            return;
        }
        let runs = self.turns(case, &[&ours, &least]);
        let figure = |runs: &Runs| Spread::of(&runs.cpu).times(1e9 / case.bytes as f64);
        let (ours, least) = (figure(&runs[0]), figure(&runs[1]));
        self.figure(&case.measure, case.state.name(), ours, at_most);
        let measure = format!("{} / least possible", case.measure);
        self.line(&measure, case.state.name(), ours, least, Goal::Shown);
    }

    /// Which of several ways is the fastest.
    pub fn best<T: Copy>(&mut self, case: &Case<'_>, ways: Vec<(String, T, Way<'_>)>) -> Option<T> {
        if self.only.is_some() && self.skips("default / best raw") {
            return None;
        }
        let runs = self.turns(case, &ways.iter().map(|way| &way.2).collect::<Vec<_>>());
        let mut rates: Vec<(Spread, usize)> = runs
            .iter()
            .enumerate()
            .map(|(index, runs)| (Spread::of(&runs.wall).per(case.bytes as f64 / 1e9), index))
            .collect();
        rates.sort_by(|a, b| b.0.mid.total_cmp(&a.0.mid));
        for (rate, index) in &rates {
            println!(
                "{}: {}\t{}\t{rate}\t\t\t\t",
                case.measure,
                ways[*index].0,
                case.state.name()
            );
        }
        Some(ways[rates[0].1].1)
    }

    /// `default` against the fastest of the explicit ways.
    pub fn regret(
        &mut self,
        case: &Case<'_>,
        ours: Way<'_>,
        explicit: Vec<(String, Way<'_>)>,
        at_most: f64,
    ) {
        if self.skips(&case.measure) {
            return;
        }
        let ways: Vec<&Way<'_>> = std::iter::once(&ours)
            .chain(explicit.iter().map(|way| &way.1))
            .collect();
        let runs = self.turns(case, &ways);
        let (best, name) = runs[1..]
            .iter()
            .zip(&explicit)
            .map(|(runs, (name, _))| (Spread::of(&runs.wall), name))
            .min_by(|a, b| a.0.mid.total_cmp(&b.0.mid))
            .expect("explicit backends");
        let measure = format!("{} (best: {name}), time", case.measure);
        self.line(
            &measure,
            case.state.name(),
            Spread::of(&runs[0].wall),
            best,
            Goal::AtMost(1.0 + at_most),
        );
    }

    /// Time to the first tensor as a part of the whole load, cold.
    pub fn first_tensor(&mut self, measure: &str, checkpoint: &Checkpoint, at_most: f64) {
        if self.skips(measure) {
            return;
        }
        let files = files_of(checkpoint);
        let (mut first, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..self.repetitions {
            State::Cold.prepare(&files);
            back_memory(checkpoint.total_bytes());
            let tensors = checkpoint.load().expect("a load");
            let report = tensors.report();
            first.push(report.first_tensor.expect("tensors").as_secs_f64());
            whole.push(report.elapsed.as_secs_f64());
        }
        self.line(
            measure,
            "cold",
            Spread::of(&first),
            Spread::of(&whole),
            Goal::AtMost(at_most),
        );
    }

    /// Disk reads of a warm load, and what a cold one leaves in the page cache, as parts of the
    /// bytes.
    pub fn pages(&mut self, measure: &str, checkpoint: &Checkpoint) {
        let files = files_of(checkpoint);
        let bytes = checkpoint.total_bytes() as f64;
        let name = format!("{measure}: disk bytes of a warm load / bytes");
        if !self.skips(&name) {
            State::Warm.prepare(&files);
            let before = usage();
            drop(checkpoint.load().expect("a load"));
            let read = usage().since(&before).read_bytes.unwrap_or(0) as f64;
            self.figure(&name, "warm", Spread::exact(read / bytes), 0.01);
        }
        let name = format!("{measure}: page cache growth of a cold load / bytes");
        if !self.skips(&name) {
            State::Cold.prepare(&files);
            drop(checkpoint.load().expect("a load"));
            let resident = resident_bytes(&files) as f64;
            self.figure(&name, "cold", Spread::exact(resident / bytes), 0.05);
        }
    }

    /// A number that is no time, counted once, against its limit.
    pub fn count(&mut self, measure: &str, counted: impl FnOnce() -> f64, at_most: f64) {
        if !self.skips(measure) {
            let counted = counted();
            self.figure(measure, "", Spread::exact(counted), at_most);
        }
    }

    fn figure(&mut self, measure: &str, state: &str, figure: Spread, at_most: f64) {
        let verdict = verdict(figure.mid <= at_most, figure.low <= at_most);
        self.missed += u32::from(verdict == MISSED);
        println!("{measure}\t{state}\t{figure}\t\t\t<= {at_most}\t{verdict}");
    }

    fn line(&mut self, measure: &str, state: &str, ours: Spread, rival: Spread, goal: Goal) {
        let ratio = ours.mid / rival.mid;
        // The ratio that the ranges still allow: only where even that misses is the line missed.
        let (goal, verdict) = match goal {
            Goal::Shown => ("shown".to_owned(), ""),
            Goal::AtLeast(least) => (
                format!(">= {least}"),
                verdict(ratio >= least, ours.high / rival.low >= least),
            ),
            Goal::AtMost(most) => (
                format!("<= {most:.2}"),
                verdict(ratio <= most, ours.low / rival.high <= most),
            ),
        };
        self.missed += u32::from(verdict == MISSED);
        println!("{measure}\t{state}\t{ours}\t{rival}\t{ratio:.3}\t{goal}\t{verdict}");
    }
}

const MISSED: &str = "MISSED";

fn verdict(by_median: bool, by_range: bool) -> &'static str {
    match (by_median, by_range) {
        (true, _) => "ok",
        (false, true) => "not separable",
        (false, false) => MISSED,
    }
}

/// Touches `bytes` of memory and gives them back.
fn back_memory(bytes: u64) {
    let mut map = MmapOptions::new()
        .len((bytes as usize).max(1))
        .map_anon()
        .expect("memory");
    advise_huge(&map);
    map.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
}

/// Asks for huge pages, as arenas do.
pub fn advise_huge(map: &memmap2::MmapMut) {
    // Refused where there are none, for everybody alike.
    let _ = map.advise(memmap2::Advice::HugePage);
}

/// A file opened around the page cache.
pub fn open_direct(path: &Path) -> std::fs::File {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    options.open(path).expect("a file system with O_DIRECT")
}
