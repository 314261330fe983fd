//! Turns, medians and verdicts.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::time::Instant;

use memmap2::MmapOptions;
use tensora::facts::process::{evict, usage};
use tensora::{BackendKind, Checkpoint, Facts};

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

    fn prepare(self, files: &[PathBuf]) {
        for file in files {
            if self != State::Warm {
                let left = evict(file).expect("our own file");
                assert_eq!(left, 0, "{}: pages stayed after evicting", file.display());
            }
            let len = std::fs::metadata(file).expect("our own file").len();
            let wanted = match self {
                State::Cold => 0,
                State::Warm => len,
                State::Half => len / 2,
            };
            let mut source =
                std::io::Read::take(std::fs::File::open(file).expect("our own file"), wanted);
            std::io::copy(&mut source, &mut std::io::sink()).expect("our own file");
        }
    }
}

/// One way to get the bytes; what it returns is dropped after the clock has stopped.
pub struct Way<'a>(Box<dyn Fn() -> Box<dyn Any> + 'a>);

impl<'a> Way<'a> {
    pub fn new(run: impl Fn() -> Box<dyn Any> + 'a) -> Self {
        Self(Box::new(run))
    }
}

/// One line: what is measured, in which state, over which files, for how many bytes (0: times are
/// compared and not rates).
pub struct Case<'a> {
    pub measure: String,
    pub state: State,
    pub files: &'a [PathBuf],
    pub bytes: u64,
}

impl<'a> Case<'a> {
    pub fn new(measure: impl Into<String>, state: State, files: &'a [PathBuf], bytes: u64) -> Self {
        Self {
            measure: measure.into(),
            state,
            files,
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
                case.state.prepare(case.files);
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
        let figure = |runs: &Runs| Spread::of(&runs.cpu);
        self.line(
            &case.measure,
            case.state.name(),
            figure(&runs[0]),
            figure(&runs[1]),
            Goal::AtMost(at_most),
        );
    }

    /// CPU seconds per GB, against a number.
    pub fn cpu(&mut self, case: &Case<'_>, ours: Way<'_>, at_most: f64) {
        if self.skips(&case.measure) {
            return;
        }
        let runs = self.turns(case, &[&ours]);
        let figure = Spread::of(&runs[0].cpu).times(1e9 / case.bytes as f64);
        let one = Spread {
            mid: 1.0,
            low: 1.0,
            high: 1.0,
        };
        self.line(
            &case.measure,
            case.state.name(),
            figure,
            one,
            Goal::AtMost(at_most),
        );
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
    pub fn first_tensor(
        &mut self,
        measure: &str,
        files: &[PathBuf],
        checkpoint: &Checkpoint,
        at_most: f64,
    ) {
        if self.skips(measure) {
            return;
        }
        let (mut first, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..self.repetitions {
            State::Cold.prepare(files);
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

    /// Disk reads of a warm load, and what a cold one leaves in the page cache, as parts of the bytes.
    pub fn pages(&mut self, measure: &str, checkpoint: &Checkpoint, files: &[PathBuf]) {
        let bytes = checkpoint.total_bytes() as f64;
        let load = || {
            checkpoint
                .loader()
                .backend(BackendKind::Default)
                .load()
                .expect("a load")
        };
        let exact = |value: f64| Spread {
            mid: value,
            low: value,
            high: value,
        };
        let name = format!("{measure}: disk bytes of a warm load / bytes");
        if !self.skips(&name) {
            State::Warm.prepare(files);
            let before = usage();
            drop(load());
            let read = usage().since(&before).read_bytes.unwrap_or(0) as f64;
            self.line(&name, "warm", exact(read), exact(bytes), Goal::AtMost(0.01));
        }
        let name = format!("{measure}: page cache growth of a cold load / bytes");
        if !self.skips(&name) {
            State::Cold.prepare(files);
            drop(load());
            let resident = resident_bytes(checkpoint) as f64;
            self.line(
                &name,
                "cold",
                exact(resident),
                exact(bytes),
                Goal::AtMost(0.05),
            );
        }
    }

    /// A ratio that is known without measuring.
    pub fn note(&mut self, measure: &str, ratio: f64) {
        if !self.skips(measure) {
            println!("{measure}\t\t\t\t{ratio:.3}\tshown\t");
        }
    }

    fn line(&mut self, measure: &str, state: &str, ours: Spread, rival: Spread, goal: Goal) {
        let ratio = ours.mid / rival.mid;
        // The ratio that the ranges still allow: only where even that misses is the line missed.
        let (goal, verdict) = match goal {
            Goal::Shown => ("shown".to_owned(), "".to_owned()),
            Goal::AtLeast(least) => (
                format!(">= {least}"),
                verdict(ratio >= least, ours.high / rival.low >= least),
            ),
            Goal::AtMost(most) => (
                format!("<= {most:.2}"),
                verdict(ratio <= most, ours.low / rival.high <= most),
            ),
        };
        self.missed += u32::from(verdict == "MISSED");
        println!("{measure}\t{state}\t{ours}\t{rival}\t{ratio:.3}\t{goal}\t{verdict}");
    }
}

fn verdict(by_median: bool, by_range: bool) -> String {
    match (by_median, by_range) {
        (true, _) => "ok",
        (false, true) => "not separable",
        (false, false) => "MISSED",
    }
    .to_owned()
}

/// The files that a checkpoint's tensors lie in.
pub fn files_of(checkpoint: &Checkpoint) -> Vec<PathBuf> {
    checkpoint
        .sources()
        .iter()
        .map(|source| source.path().to_owned())
        .collect()
}

fn resident_bytes(checkpoint: &Checkpoint) -> u64 {
    let ranges: Vec<_> = checkpoint
        .sources()
        .iter()
        .enumerate()
        .map(|(index, source)| (index as u32, 0, source.len()))
        .collect();
    let facts = Facts::probe(checkpoint.sources(), &ranges);
    facts
        .sources
        .iter()
        .zip(checkpoint.sources())
        .map(|(facts, source)| facts.residency.resident_bytes(0..source.len()))
        .sum()
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
