//! From measurements to constants.

use tensora::Preset;

use super::grid::{Measured, Setting, Way};
use crate::spread::Spread;

/// Settings within this part of the best are as good: medians of a few repetitions differ by as
/// much when nothing else does.
const TOLERANCE: f64 = 0.04;

/// Where repetitions differ by more than this part of their median, medians say little, and only
/// ranges that do not overlap speak against the built-in setting.
const NOISE: f64 = 0.15;

/// What was found for one way of reading, as positions among the measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    pub way: Way,
    pub built_in: Option<usize>,
    pub chosen: usize,
    pub best: usize,
    /// By what part of their median repetitions typically differ.
    pub noise: f64,
}

impl Found {
    pub fn is_noisy(&self) -> bool {
        self.noise > NOISE
    }
}

/// Constants, and what they rest on.
#[derive(Debug)]
pub struct Chosen {
    pub preset: Preset,
    found: Vec<Found>,
}

impl Chosen {
    pub fn of(&self, way: Way) -> Option<Found> {
        self.found.iter().copied().find(|found| found.way == way)
    }
}

/// The smallest setting of each way that is about as fast as the best. What was not measured keeps
/// its built-in constant.
pub fn choose(measured: &[Measured], cores: usize) -> Chosen {
    let mut preset = Preset::default();
    let mut found = Vec::new();
    let mut pick = |way, chunk: Option<u64>| {
        let one = find(measured, cores, way, chunk)?;
        found.push(one);
        Some(measured[one.chosen].setting)
    };
    let ring = pick(Way::DirectRing, None);
    // Threads and rings share their read size. The ring's counts, unless threads are faster.
    let best = |way| find(measured, cores, way, None);
    preset.ring_pays = best(Way::DirectRing)
        .zip(best(Way::DirectThreads))
        .is_none_or(|(ring, threads)| {
            let noisy = ring.is_noisy() || threads.is_noisy();
            let [ring, threads] = [ring, threads].map(|found| measured[found.best].gib_per_s);
            ring.median >= threads.median * (1.0 - TOLERANCE) || (noisy && ring.max >= threads.min)
        });
    let chunk = ring
        .filter(|_| preset.ring_pays)
        .map(|ring| ring.chunk_bytes);
    let threads = pick(Way::DirectThreads, chunk).or_else(|| pick(Way::DirectThreads, None));
    if let Some(threads) = threads {
        preset.direct_workers = threads.count;
        preset.direct_chunk = threads.chunk_bytes;
    }
    if let Some(ring) = ring {
        preset.ring_depth = ring.count;
        preset.direct_chunk = chunk.unwrap_or(preset.direct_chunk);
    }
    if let Some(one) = pick(Way::ReadAhead, None) {
        preset.read_ahead_workers = one.count;
    }
    if let Some(copies) = pick(Way::Copies, None) {
        preset.buffered_chunk = copies.chunk_bytes;
        // As many as there are cores is what the built-in limit comes to.
        if copies.count < cores.min(preset.copy_workers) {
            preset.copy_workers = copies.count;
        }
    }
    Chosen { preset, found }
}

/// The best and the chosen setting of one way, of this read size only where one is given.
fn find(measured: &[Measured], cores: usize, way: Way, chunk: Option<u64>) -> Option<Found> {
    let fits = |setting: &Setting| {
        setting.way == way && chunk.is_none_or(|chunk| setting.chunk_bytes == chunk)
    };
    let of_this_way = || (0..measured.len()).filter(|&at| fits(&measured[at].setting));
    let median = |at: &usize| measured[*at].gib_per_s.median;
    let best = of_this_way().max_by(|a, b| median(a).total_cmp(&median(b)))?;
    let enough = median(&best) * (1.0 - TOLERANCE);
    let chosen = of_this_way()
        .filter(|at| median(at) >= enough)
        .min_by_key(|&at| measured[at].setting.weight())?;
    let built_in = Setting::built_in(way, cores);
    let built_in = of_this_way().find(|&at| measured[at].setting == built_in);
    let spread = |at: usize| {
        let Spread { median, min, max } = measured[at].gib_per_s;
        (max - min) / median
    };
    let mut found = Found {
        way,
        built_in,
        chosen,
        best,
        noise: Spread::of(of_this_way().map(spread))?.median,
    };
    let overlaps = |at: &usize| measured[*at].gib_per_s.max >= measured[found.best].gib_per_s.min;
    if let Some(built_in) = built_in.filter(overlaps).filter(|_| found.is_noisy()) {
        found.chosen = built_in;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn measured(way: Way, count: usize, chunk: u64, gib_per_s: f64) -> Measured {
        let setting = Setting {
            way,
            count,
            chunk_bytes: chunk * MIB,
        };
        Measured::new(setting, &[gib_per_s; 3]).unwrap()
    }

    #[test]
    fn the_smallest_of_those_that_are_about_as_fast() {
        let all = [
            measured(Way::DirectRing, 16, 2, 3.40),
            measured(Way::DirectRing, 32, 4, 3.50),
            measured(Way::DirectRing, 8, 2, 3.38),
            measured(Way::DirectRing, 8, 1, 2.00),
            measured(Way::DirectThreads, 8, 2, 3.30),
            measured(Way::DirectThreads, 4, 2, 3.25),
            measured(Way::DirectThreads, 4, 8, 3.50),
            measured(Way::Copies, 4, 8, 20.0),
            measured(Way::Copies, 2, 4, 19.5),
        ];
        let chosen = choose(&all, 4);
        let preset = chosen.preset;
        assert_eq!((preset.ring_depth, preset.direct_chunk), (8, 2 * MIB));
        assert_eq!(preset.direct_workers, 4, "of the ring's read size");
        assert!(preset.ring_pays);
        assert_eq!((preset.copy_workers, preset.buffered_chunk), (2, 4 * MIB));
        let ring = chosen.of(Way::DirectRing).unwrap();
        assert_eq!((ring.built_in, ring.chosen, ring.best), (Some(0), 2, 1));
        assert!(chosen.of(Way::ReadAhead).is_none());
    }

    #[test]
    fn a_slow_ring_leaves_the_read_size_to_threads() {
        let all = [
            measured(Way::DirectRing, 16, 2, 2.0),
            measured(Way::DirectThreads, 8, 2, 2.0),
            measured(Way::DirectThreads, 8, 8, 3.0),
        ];
        let preset = choose(&all, 2).preset;
        assert!(!preset.ring_pays);
        assert_eq!((preset.direct_workers, preset.direct_chunk), (8, 8 * MIB));
        assert_eq!(preset.ring_depth, 16);
    }

    #[test]
    fn noise_speaks_against_nothing() {
        let noisy = |count, chunk, rates: [f64; 3]| {
            let setting = Setting {
                way: Way::DirectThreads,
                count,
                chunk_bytes: chunk * MIB,
            };
            Measured::new(setting, &rates).unwrap()
        };
        let overlapping = [noisy(8, 2, [1.0, 2.0, 3.0]), noisy(4, 8, [2.0, 3.0, 4.0])];
        let chosen = choose(&overlapping, 2);
        assert!(chosen.of(Way::DirectThreads).unwrap().is_noisy());
        assert_eq!(chosen.preset, Preset::default());
        let separate = [noisy(8, 2, [1.0, 2.0, 3.0]), noisy(4, 8, [4.0, 5.0, 6.0])];
        assert_eq!(choose(&separate, 2).preset.direct_workers, 4);
    }

    #[test]
    fn what_was_not_measured_stays_as_it_is() {
        assert_eq!(choose(&[], 2).preset, Preset::default());
        let all_cores = [measured(Way::Copies, 2, 8, 20.0)];
        assert_eq!(choose(&all_cores, 2).preset, Preset::default());
        let read_ahead = [measured(Way::ReadAhead, 4, 8, 1.0)];
        assert_eq!(choose(&read_ahead, 2).preset.read_ahead_workers, 4);
    }
}
