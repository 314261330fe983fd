//! Schedules of random plans, facts and settings, carried out naively in memory.

use proptest::prelude::*;

use super::lower::lower;
use super::*;
use crate::dtype::Dtype;
use crate::facts::{DirectAlign, IoUringAvailability, IoUringFacts, Residency};
use crate::plan::cases::Case;
use crate::plan::{PlanOptions, PlanSource, Selection, Slice, Split};
use crate::policy::Preset;
use crate::random::Random;
use crate::settings::{AccessMode, Order, Settings};
use crate::storage::{BackendKind, PAGE};
use crate::tensor::{Extent, TensorMeta};

const PAGE_BYTES: u64 = PAGE as u64;

fn facts(random: &mut Random, plan: &ReadPlan) -> Facts {
    let mut facts = Facts::neutral(plan.sources.len());
    facts.io_uring = IoUringAvailability::Available(IoUringFacts {
        coop_taskrun: true,
        single_issuer: true,
        defer_taskrun: true,
    });
    facts.cores = 1 + random.below(4) as usize;
    for (source, planned) in facts.sources.iter_mut().zip(&plan.sources) {
        source.local = random.below(4) > 0;
        source.network = random.below(8) == 0;
        let align = |memory, offset| Some(DirectAlign { memory, offset });
        source.direct = random.pick(&[
            None,
            align(512, 512),
            align(4096, 4096),
            align(4, 512),
            align(512, 65_536),
        ]);
        let pages = planned.len.div_ceil(PAGE_BYTES) + 1;
        let resident: Vec<_> = (0..random.below(6))
            .map(|_| {
                let start = random.below(pages) * PAGE_BYTES;
                start..start + random.pick(&[1, 3, 20, 100]) * PAGE_BYTES
            })
            .collect();
        let whole = 0..pages * PAGE_BYTES;
        source.residency = Residency::from_ranges(PAGE_BYTES, [whole], resident);
    }
    facts
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        backend: random.pick(&[
            BackendKind::Default,
            BackendKind::Sync,
            BackendKind::IoUring,
            BackendKind::Mmap,
        ]),
        access: random.pick(&[AccessMode::Auto, AccessMode::Buffered, AccessMode::Direct]),
        workers: random.pick(&[None, Some(1), Some(3)]),
        queue_depth: random.pick(&[None, Some(1), Some(9)]),
        chunk_bytes: random.pick(&[None, None, Some(4096), Some(5000), Some(65_536)]),
        budget: random.pick(&[None, Some(1), Some(4096), Some(16 << 20), Some(64 << 20)]),
        align: random.pick(&[None, None, Some(1), Some(64), Some(4096)]),
        order: random.pick(&[Order::Arrival, Order::Name]),
    }
}

/// Lowers a plan in a random way and checks everything that a schedule promises.
fn check(random: &mut Random, plan: &ReadPlan, sources: &[Vec<u8>]) {
    let facts = facts(random, plan);
    let settings = settings(random);
    let preset = Preset {
        // Also smaller than a caller may ask for, so that small plans are cut too.
        buffered_chunk: random.pick(&[16, 100, 4096, 8 << 20]),
        direct_chunk: random.pick(&[512, 700, 4096, 2 << 20]),
        island_bytes: random.pick(&[0, 8192, 1 << 20]),
        ..Preset::default()
    };
    let lent: Option<Vec<u64>> = (random.below(4) == 0).then(|| {
        let into_page = |_| random.pick(&[0, 0, 8, 512]);
        plan.tensors.iter().map(into_page).collect()
    });
    let lent = lent.as_deref();
    let schedule = lower(plan, &facts, &settings, &preset.into(), lent)
        .unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    check_regions(plan, &settings, &schedule);
    check_requests(plan, &facts, &schedule, lent);
    check_bytes(random, plan, sources, &schedule);
    let explanation = schedule.explain();
    assert!(explanation.direct_bytes <= explanation.read_bytes);
    assert!(!explanation.to_string().is_empty());
}

fn check_regions(plan: &ReadPlan, settings: &Settings, schedule: &Schedule) {
    let cap = match settings.budget {
        Some(budget) => (budget / 8).clamp(1 << 20, 1 << 30),
        None => 1 << 30,
    };
    for region in &schedule.regions {
        assert_eq!(region.slots.len(), region.tenants.len());
        let mut end = 0;
        for (slot, tenants) in region.slots.iter().zip(&region.tenants) {
            assert!(slot.bytes.start >= end, "slots are ascending and disjoint");
            assert_eq!(slot.tenants as usize, tenants.len());
            end = slot.bytes.end;
        }
        assert!(end as u64 <= region.len);
        assert!(
            region.slots.len() == 1 || region.len <= cap + 2 * PAGE_BYTES,
            "{} bytes in {} slots under a cap of {cap}",
            region.len,
            region.slots.len()
        );
        let gathered = |tensor: &u32| {
            let planned = &plan.tensors[*tensor as usize];
            if planned.gather.is_some() {
                planned.nbytes
            } else {
                0
            }
        };
        let gathered: u64 = region.tenants.iter().flatten().map(gathered).sum();
        assert_eq!(region.charge, region.len + gathered);
        if let Origin::File { offset, .. } = region.origin {
            assert_eq!(offset % PAGE_BYTES, 0);
        }
    }
    for (index, (planned, place)) in plan.tensors.iter().zip(&schedule.places).enumerate() {
        assert_eq!(schedule.stored[index], planned.stored_bytes);
        assert_eq!(place.is_some(), planned.stored_bytes > 0);
        let Some(place) = place else { continue };
        let region = &schedule.regions[place.region as usize];
        let slot = &region.slots[place.slot as usize].bytes;
        assert!(slot.start as u64 <= place.offset);
        assert!(place.offset + planned.stored_bytes <= slot.end as u64);
        assert!(region.tenants[place.slot as usize].contains(&(index as u32)));
        match region.origin {
            Origin::Lent { tensor } => {
                assert_eq!((tensor, place.offset), (index as u32, 0));
                assert_eq!(region.len, planned.nbytes);
            }
            _ if planned.gather.is_none() => {
                let align = planned.dtype.alignment().max(settings.align.unwrap_or(1));
                assert_eq!(place.offset % align, 0, "{} in {settings:?}", planned.name);
            }
            _ => {}
        }
    }
    if settings.order == Order::Name {
        let mut by_name: Vec<_> = plan.tensors.iter().zip(&schedule.places).collect();
        by_name.sort_by_key(|(planned, _)| &planned.name);
        let regions: Vec<u32> = by_name
            .iter()
            .filter_map(|(_, place)| Some(place.as_ref()?.region))
            .collect();
        assert!(regions.is_sorted(), "regions hold names in a row");
    }
}

fn check_requests(plan: &ReadPlan, facts: &Facts, schedule: &Schedule, lent: Option<&[u64]>) {
    assert!(schedule.requests.is_sorted_by_key(|request| request.region));
    let mut used = vec![false; schedule.regions.len()];
    let mut landings: Vec<(u32, u64, u64)> = Vec::new();
    for request in &schedule.requests {
        used[request.region as usize] = true;
        let region = &schedule.regions[request.region as usize];
        assert!(request.needed > 0 && request.needed <= request.len);
        assert!(request.offset + request.needed <= plan.sources[request.source as usize].len);
        let unit = match request.access {
            Access::Buffered => {
                assert_eq!(request.needed, request.len);
                1
            }
            Access::Direct => {
                let direct = facts.sources[request.source as usize].direct.unwrap();
                u64::from(direct.memory.max(direct.offset))
            }
        };
        assert_eq!((request.offset % unit, request.len % unit), (0, 0));
        assert!(request.len - request.needed < unit);
        match &request.landing {
            LandingSpec::InPlace { at } => {
                assert!(
                    at + request.len <= region.len,
                    "landings lie in their region"
                );
                let base = match region.origin {
                    Origin::Lent { tensor } => lent.unwrap()[tensor as usize],
                    Origin::Arena => 0,
                    Origin::File { .. } => {
                        assert_eq!(unit, 1, "mappings are not read around the page cache");
                        0
                    }
                };
                assert_eq!((base + at) % unit, 0, "direct reads land aligned");
                if let Origin::File { source, offset } = region.origin {
                    assert_eq!((request.source, request.offset), (source, offset + at));
                }
                landings.push((request.region, *at, request.len));
            }
            LandingSpec::Staged { copies } => {
                assert!(request.len <= schedule.staging_bytes);
                assert!(!copies.is_empty());
                for copy in &schedule.copies[copies.start as usize..copies.end as usize] {
                    let end = copy.from + (copy.count - 1) * copy.stride + copy.run;
                    assert!(copy.run > 0 && end <= request.needed);
                    assert_eq!(
                        schedule.places[copy.tensor as usize].unwrap().region,
                        request.region
                    );
                }
            }
        }
    }
    assert!(used.into_iter().all(|used| used), "regions have requests");
    landings.sort_unstable();
    for pair in landings.windows(2) {
        let ((region, at, len), (next_region, next_at, _)) = (pair[0], pair[1]);
        assert!(
            region != next_region || at + len <= next_at,
            "landings are disjoint"
        );
    }
}

/// Carries the schedule out in a random order and compares every tensor with its pieces.
fn check_bytes(random: &mut Random, plan: &ReadPlan, sources: &[Vec<u8>], schedule: &Schedule) {
    let mut memory: Vec<Vec<u8>> = schedule
        .regions
        .iter()
        .map(|region| match region.origin {
            Origin::File { source, offset } => {
                let from = offset as usize;
                sources[source as usize][from..from + region.len as usize].to_vec()
            }
            _ => vec![0xcd; region.len as usize],
        })
        .collect();
    let mut credited = vec![0; plan.tensors.len()];
    let mut order: Vec<usize> = (0..schedule.requests.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    for index in order {
        let request = &schedule.requests[index];
        let region = &mut memory[request.region as usize];
        let source = &sources[request.source as usize];
        let end = ((request.offset + request.len) as usize).min(source.len());
        let read = &source[request.offset as usize..end];
        match &request.landing {
            LandingSpec::InPlace { at } => {
                region[*at as usize..*at as usize + read.len()].copy_from_slice(read);
                for (tensor, place) in schedule.places.iter().enumerate() {
                    let Some(place) = place.filter(|place| place.region == request.region) else {
                        continue;
                    };
                    let start = place.offset.max(*at);
                    let end = (place.offset + schedule.stored[tensor]).min(at + request.needed);
                    credited[tensor] += end.saturating_sub(start);
                }
            }
            LandingSpec::Staged { copies } => {
                for copy in &schedule.copies[copies.start as usize..copies.end as usize] {
                    for k in 0..copy.count {
                        let from = (copy.from + k * copy.stride) as usize;
                        let to = (copy.to + k * copy.run) as usize;
                        let run = copy.run as usize;
                        region[to..to + run].copy_from_slice(&read[from..from + run]);
                    }
                    credited[copy.tensor as usize] += copy.run * copy.count;
                }
            }
        }
    }
    assert_eq!(credited, schedule.stored, "every byte is credited once");
    for (index, expected) in stored_naively(plan, sources).iter().enumerate() {
        if let Some(place) = schedule.places[index] {
            let from = place.offset as usize;
            let bytes = &memory[place.region as usize][from..from + expected.len()];
            assert!(bytes == expected, "{}", plan.tensors[index].name);
        }
    }
}

/// The buffers that a plan's pieces fill.
fn stored_naively(plan: &ReadPlan, sources: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut buffers: Vec<Vec<u8>> = plan
        .tensors
        .iter()
        .map(|tensor| vec![0; tensor.stored_bytes as usize])
        .collect();
    for piece in &plan.pieces {
        for k in 0..piece.count {
            let from = (piece.offset + k * piece.stride) as usize;
            let to = (piece.dest + k * piece.run) as usize;
            let run = piece.run as usize;
            buffers[piece.tensor as usize][to..to + run]
                .copy_from_slice(&sources[piece.source as usize][from..from + run]);
        }
    }
    buffers
}

/// Tensors around the sizes that the lowering has limits at, some tied, some across two sources.
fn large(random: &mut Random) -> (ReadPlan, Vec<Vec<u8>>) {
    let lens: Vec<u64> = (0..1 + random.below(2))
        .map(|_| 200_000 + random.below(1_500_000))
        .collect();
    let sources: Vec<Vec<u8>> = lens
        .iter()
        .enumerate()
        .map(|(source, &len)| {
            let byte =
                |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ source as u8;
            (0..len).map(byte).collect()
        })
        .collect();
    let mut tensors: Vec<TensorMeta> = Vec::new();
    let mut selection = Selection::all();
    let mut at: Vec<u64> = lens.iter().map(|_| random.below(5000)).collect();
    for index in 0..2 + random.below(10) {
        let source = random.below(lens.len() as u64) as usize;
        let dtype = random.pick(&[Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64]);
        let rows = 1 + random.below(8);
        let row = random.pick(&[3, 500, 8192, 20_000, 70_000]);
        let size = dtype.nbytes(&[rows, row]).unwrap();
        let name = format!("{}{index}", random.pick(&["a", "m", "z"]));
        let tie = (random.below(6) == 0)
            .then(|| tensors.last().cloned())
            .flatten();
        if let Some(mut tied) = tie {
            tied.name = name.into();
            tensors.push(tied);
            continue;
        }
        let start = match random.below(3) {
            0 => at[source].next_multiple_of(64),
            _ => at[source],
        };
        if start + size > lens[source] {
            continue;
        }
        at[source] = start + size + random.below(3) * random.below(60_000);
        if random.below(3) == 0 {
            let slice = Slice::Shard {
                dim: random.below(2) as usize,
                rank: 0,
                world: 1 + random.below(3),
                split: Split::Balanced,
            };
            selection = selection.with_slice(&name, slice).unwrap();
        }
        tensors.push(TensorMeta {
            name: name.into(),
            dtype,
            shape: [rows, row].as_slice().into(),
            strides: None,
            extents: [Extent {
                source: source as u32,
                offset: start,
                len: size,
            }]
            .as_slice()
            .into(),
        });
    }
    let planned = lens
        .iter()
        .enumerate()
        .map(|(index, &len)| PlanSource {
            path: format!("part-{index}").into(),
            len,
        })
        .collect();
    let options = PlanOptions {
        gap_limit: random.pick(&[0, 100, 32 << 10]),
        ..PlanOptions::default()
    };
    let plan = ReadPlan::from_parts(&tensors, planned, &selection, &options).unwrap();
    (plan, sources)
}

#[test]
fn schedules_of_large_plans_deliver_them() {
    for seed in 1..=60_u64 {
        let mut random = Random::new(seed);
        let (plan, sources) = large(&mut random);
        for _ in 0..4 {
            check(&mut random, &plan, &sources);
        }
    }
}

#[test]
fn threads_and_tasks_read_the_same() {
    for seed in 1..=40_u64 {
        let mut random = Random::new(seed);
        let (plan, _) = large(&mut random);
        let facts = facts(&mut random, &plan);
        let settings = settings(&mut random);
        let of = |backend| {
            let settings = Settings {
                backend,
                ..settings.clone()
            };
            Schedule::lower(&plan, &facts, &settings).unwrap()
        };
        let (threads, tasks) = (of(BackendKind::Sync), of(BackendKind::Async));
        assert_eq!(threads.regions, tasks.regions);
        assert_eq!(threads.requests, tasks.requests);
        assert_eq!(threads.copies, tasks.copies);
        assert_eq!(threads.decision.workers, tasks.decision.workers);
    }
}

/// The tensors of one file, one behind the other, by their sizes in bytes.
fn in_a_row(sizes: &[u64]) -> ReadPlan {
    let mut end = 0;
    let tensors = sizes.iter().enumerate().map(|(index, &size)| {
        let offset = end;
        end += size;
        TensorMeta {
            name: format!("t{index}").into(),
            dtype: Dtype::U8,
            shape: [size].as_slice().into(),
            strides: None,
            extents: [Extent {
                source: 0,
                offset,
                len: size,
            }]
            .as_slice()
            .into(),
        }
    });
    let tensors: Vec<_> = tensors.collect();
    let source = PlanSource {
        path: "model.safetensors".into(),
        len: end,
    };
    let options = PlanOptions::default();
    ReadPlan::from_parts(&tensors, vec![source], &Selection::all(), &options).unwrap()
}

#[test]
fn a_small_tensor_comes_before_a_first_one_that_takes_long() {
    const MIB: u64 = 1 << 20;
    let facts = Facts::neutral(1);
    for (sizes, first) in [
        (&[100 * MIB, 4096, 100 * MIB][..], 1),
        (&[100 * MIB, 90 * MIB, 200 * MIB, MIB], 3),
        // Soon there anyway, or nothing smaller.
        (&[MIB, 4096, 100 * MIB], 0),
        (&[100 * MIB, 90 * MIB], 0),
    ] {
        let plan = in_a_row(sizes);
        let first_of = |order| {
            let settings = Settings {
                order,
                ..Settings::default()
            };
            let applied = Preset::default().into();
            let schedule = lower(&plan, &facts, &settings, &applied, None).unwrap();
            let read: u64 = schedule.requests.iter().map(|request| request.needed).sum();
            assert_eq!(read, sizes.iter().sum::<u64>(), "{sizes:?}");
            let starts = |place: &Place| place.region == 0 && place.offset < PAGE_BYTES;
            let at = |place: &Option<Place>| place.as_ref().is_some_and(starts);
            schedule.places.iter().position(at)
        };
        assert_eq!(first_of(Order::Arrival), Some(first), "{sizes:?}");
        assert_eq!(first_of(Order::Name), Some(0), "{sizes:?}");
    }
}

#[test]
fn many_small_spans_are_gathered() {
    // More spans than regions of their own are worth: one byte every two pages.
    let tensors: Vec<TensorMeta> = (0..2000_u64)
        .map(|index| TensorMeta {
            name: format!("t{index}").into(),
            dtype: Dtype::U8,
            shape: [1].as_slice().into(),
            strides: None,
            extents: [Extent {
                source: 0,
                offset: index * 8192,
                len: 1,
            }]
            .as_slice()
            .into(),
        })
        .collect();
    let sources = vec![
        (0..2000 * 8192_u64)
            .map(|at| (at >> 13) as u8)
            .collect::<Vec<u8>>(),
    ];
    let planned = vec![PlanSource {
        path: "part".into(),
        len: sources[0].len() as u64,
    }];
    let options = PlanOptions {
        gap_limit: 0,
        ..PlanOptions::default()
    };
    let plan = ReadPlan::from_parts(&tensors, planned, &Selection::all(), &options).unwrap();
    let schedule = Schedule::lower(&plan, &Facts::neutral(1), &Settings::default()).unwrap();
    let memory: u64 = schedule.regions.iter().map(|region| region.len).sum();
    assert!(memory < 1 << 20, "{memory} bytes for 2000");
    check(&mut Random::new(7), &plan, &sources);
}

#[test]
fn direct_reads_land_in_memory_of_the_caller_where_it_is_aligned() {
    let len = 3 << 20;
    let tensor = TensorMeta {
        name: "t".into(),
        dtype: Dtype::U8,
        shape: [len].as_slice().into(),
        strides: None,
        extents: [Extent {
            source: 0,
            offset: 4096,
            len,
        }]
        .as_slice()
        .into(),
    };
    let planned = vec![PlanSource {
        path: "part".into(),
        len: len + 4096,
    }];
    let options = PlanOptions::default();
    let plan = ReadPlan::from_parts(&[tensor], planned, &Selection::all(), &options).unwrap();
    let mut facts = Facts::neutral(1);
    facts.sources[0].direct = Some(DirectAlign {
        memory: 512,
        offset: 512,
    });
    let staged = |into_page: u64| {
        let settings = Settings::default();
        let preset = Preset::default().into();
        let lent = [into_page];
        let schedule = lower(&plan, &facts, &settings, &preset, Some(&lent)).unwrap();
        let explanation = schedule.explain();
        assert_eq!(explanation.direct_bytes, len);
        explanation.staged_bytes
    };
    assert_eq!((staged(0), staged(512)), (0, 0));
    assert_eq!(staged(64), len);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn schedules_of_small_plans_deliver_them(
        bytes in prop::collection::vec(any::<u8>(), 0..300), seed in 1..u64::MAX,
    ) {
        let case = Case::from_bytes(&bytes);
        if let Some(plan) = case.plan() {
            check(&mut Random::new(seed), &plan, &case.sources);
        }
    }
}
