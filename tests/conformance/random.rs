//! Random checkpoints of both layouts, random selections, random settings: every backend delivers
//! what element-by-element slicing does.

use tensora::{AccessMode, Dtype, Order, PlanOptions, Selection, Settings, Slice, Split, Steps};

use crate::support::{
    Expected, Sample, Watchdog, backends, check_every_verb, check_lazy, noise, safetensors,
};

/// Cases, each on every backend by every verb: a few seconds without optimisation.
const CASES: u64 = 60;

const DTYPES: [Dtype; 8] = [
    Dtype::U8,
    Dtype::F8E4M3,
    Dtype::I16,
    Dtype::BF16,
    Dtype::F32,
    Dtype::C64,
    Dtype::F64,
    Dtype::Bool,
];

/// A small generator of our own, so that a failing seed can be run again anywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn shape(&mut self) -> Vec<u64> {
        let rank = self.below(4);
        let mut shape: Vec<u64> = (0..rank)
            .map(|_| self.pick(&[1, 2, 3, 5, 8, 13, 16]))
            .collect();
        if self.one_in(4) {
            shape.push(self.pick(&[1000, 4095, 4096, 4097, 5000]));
        }
        if self.one_in(12) {
            shape.push(0);
        }
        while shape.iter().product::<u64>() > 12_000 {
            shape.remove(0);
        }
        shape
    }
}

fn shards(random: &mut Random) -> Sample {
    let count = 1 + random.below(3);
    let mut files = Vec::new();
    for shard in 0..count {
        let tensors: Vec<(String, Dtype, Vec<u64>)> = (0..random.below(7))
            .map(|i| {
                let name = format!("{}.{shard}.{i}", random.pick(&["a", "layers", "z"]));
                (name, random.pick(&DTYPES), random.shape())
            })
            .collect();
        let list: Vec<(&str, Dtype, &[u64])> = tensors
            .iter()
            .map(|(name, dtype, shape)| (name.as_str(), *dtype, shape.as_slice()))
            .collect();
        let pad = random.pick(&[0, 0, 1, 2, 4, 700]);
        files.push((
            format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
            safetensors(&list, random.below(1 << 40), pad),
        ));
    }
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    Sample::new(&files)
}

/// Either dialect; offsets overlap, leave gaps, tie tensors, and cross partitions in the one of
/// five elements.
fn partitions(random: &mut Random) -> Sample {
    let sizes: Vec<u64> = (0..1 + random.below(4))
        .map(|_| 1 + random.below(60_000))
        .collect();
    let global = random.one_in(2);
    let total: u64 = sizes.iter().sum();
    let mut index = serde_json::Map::new();
    for i in 0..random.below(8) {
        let dtype = random.pick(&DTYPES);
        let width = u64::from(dtype.bits() / 8);
        let mut shape = random.shape();
        let mut strides: Vec<u64> = tensora::contiguous_strides(&shape).to_vec();
        if shape.len() > 1 && !shape.contains(&0) && random.one_in(3) {
            shape.reverse();
            strides.reverse();
        }
        let size = shape.iter().product::<u64>() * width;
        let partition = random.below(sizes.len() as u64);
        let room = if global {
            total
        } else {
            sizes[partition as usize]
        };
        if size > room {
            continue;
        }
        let mut offset = random.below(room - size + 1);
        if random.one_in(2) {
            offset -= offset % 64;
        }
        let mut entry = vec![
            serde_json::json!(offset),
            serde_json::json!(size),
            serde_json::json!(shape),
            serde_json::json!(strides),
            serde_json::json!(format!("torch.{}", dtype.torch_name().unwrap())),
        ];
        if !global {
            entry.push(serde_json::json!(partition));
        }
        let name = format!("{}.{i}", random.pick(&["a", "m", "z"]));
        index.insert(name.clone(), entry.clone().into());
        if random.one_in(4) {
            index.insert(format!("tied to {name}"), entry.into());
        }
    }
    let mut files = vec![(
        "tensor_index.json".to_owned(),
        serde_json::to_vec(&index).unwrap(),
    )];
    for (id, size) in sizes.iter().enumerate() {
        files.push((
            format!("tensor.data_{id}"),
            noise(random.below(1 << 40), *size as usize),
        ));
    }
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    Sample::new(&files)
}

fn slice(random: &mut Random, shape: &[u64]) -> Slice {
    if !shape.is_empty() && random.one_in(3) {
        let dim = random.below(shape.len() as u64) as usize;
        let world = 1 + random.below(5);
        let split = if shape[dim].is_multiple_of(world) {
            Split::Even
        } else {
            Split::Balanced
        };
        return Slice::Shard {
            dim,
            rank: random.below(world),
            world,
            split,
        };
    }
    if random.one_in(2) {
        let steps = |rows: &u64, random: &mut Random| {
            random.one_in(2).then(|| {
                let (start, step) = (random.below(rows + 1), 1 + random.below(7));
                let count = random.below((rows - start).div_ceil(step) + 1);
                Steps { start, count, step }
            })
        };
        return Slice::Steps(shape.iter().map(|rows| steps(rows, random)).collect());
    }
    let range = |rows: &u64, random: &mut Random| {
        random.one_in(2).then(|| {
            let start = random.below(rows + 1);
            start..start + random.below(rows - start + 1)
        })
    };
    Slice::Ranges(shape.iter().map(|rows| range(rows, random)).collect())
}

fn selection(random: &mut Random, sample: &Sample) -> (Selection, Expected) {
    let mut wanted: Vec<(&str, Option<Slice>)> = Vec::new();
    let everything = random.one_in(2);
    for meta in sample.checkpoint.tensors() {
        if everything || random.one_in(2) {
            let cut = random.one_in(3).then(|| slice(random, &meta.shape));
            wanted.push((&meta.name, cut));
        }
    }
    let mut selection = if everything {
        Selection::all()
    } else {
        Selection::names(wanted.iter().map(|(name, _)| *name))
    };
    for (name, cut) in &wanted {
        if let Some(cut) = cut {
            selection = selection.with_slice(name, cut.clone()).unwrap();
        }
    }
    let expected = sample.parts(|name| {
        let found = wanted.iter().find(|(wanted, _)| *wanted == name);
        found.map(|(_, cut)| cut.clone())
    });
    (selection, expected)
}

#[test]
fn every_backend_delivers_what_naive_slicing_does() {
    for seed in 1..=CASES {
        let _dog = Watchdog::new(&format!("seed {seed}"));
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let sample = if random.one_in(2) {
            shards(&mut random)
        } else {
            partitions(&mut random)
        };
        let (selection, expected) = selection(&mut random, &sample);
        let options = PlanOptions {
            gap_limit: random.pick(&[0, 1, 64, 4096, 32 << 10]),
            dense_row_limit: random.pick(&[0, 100, 4 << 20]),
        };
        let common = Settings {
            access: random.pick(&[AccessMode::Auto, AccessMode::Buffered, AccessMode::Direct]),
            workers: random.pick(&[None, Some(1), Some(2), Some(7)]),
            queue_depth: random.pick(&[None, Some(1), Some(2), Some(33)]),
            chunk_bytes: random.pick(&[None, Some(4096), Some(5001), Some(65_536)]),
            budget: random.pick(&[None, Some(1), Some(4096), Some(1 << 20)]),
            align: random.pick(&[None, None, Some(64), Some(4096)]),
            order: Order::Arrival,
            ..Settings::default()
        };
        for backend in backends() {
            let settings = Settings {
                backend,
                ..common.clone()
            };
            let what = format!("seed {seed}, {options:?}, {settings:?}");
            let loader = sample
                .checkpoint
                .loader()
                .select(selection.clone())
                .plan_options(options)
                .settings(settings);
            check_every_verb(&what, &loader, &expected);
        }
        check_lazy(
            &format!("seed {seed}"),
            &sample.checkpoint,
            selection,
            &expected,
        );
    }
}
