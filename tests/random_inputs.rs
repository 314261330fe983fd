//! The fuzz bodies over seeded random and mutated inputs: a bounded share of fuzzing in every test
//! run. Nothing may panic; what is accepted must keep its promises (the bodies check them).

use std::fs;
use std::path::Path;

use tensora::fuzz_bodies;

/// SplitMix64: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Pieces that headers are made of, to be spliced into others.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\u0000",
    "\\ud83d",
    "null",
    "true",
    "0",
    "-1",
    "1e30",
    "18446744073709551615",
    "18446744073709551616",
    "4294967296",
    "[0,0]",
    "[0,4]",
    "[4,0]",
    "\"dtype\":\"F4\",",
    "\"F32\"",
    "\"shape\":[],",
    "\"data_offsets\"",
    "\"__metadata__\":{},",
    "\"weight_map\":{",
    "\"../x\"",
    "\"torch.float16\"",
    " ",
    "\n",
    "\u{feff}",
    "層",
];

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => {
                let piece = PIECES[random.below(PIECES.len())];
                bytes.splice(at..at, piece.bytes());
            }
            4 => {
                let end = (at + random.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let end = (at + random.below(64)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
        }
    }
}

/// Files of the corpus with this name that are small enough to be mutated many times.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut seeds: Vec<(std::path::PathBuf, Vec<u8>)> = fs::read_dir(cases)
        .unwrap()
        .filter_map(|case| {
            let path = case.unwrap().path().join(name);
            let bytes = fs::read(&path).ok().filter(|bytes| bytes.len() < 8192)?;
            Some((path, bytes))
        })
        .collect();
    seeds.sort();
    assert!(seeds.len() >= 5, "{name}");
    seeds.into_iter().map(|(_, bytes)| bytes).collect()
}

fn run(seed: u64, rounds: usize, seeds: &[Vec<u8>], body: impl Fn(&[u8])) {
    let mut random = Random(seed);
    body(b"");
    for seed in seeds {
        body(seed);
        for cut in 0..seed.len().min(600) {
            body(&seed[..cut]);
        }
    }
    for _ in 0..rounds {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        mutate(&mut random, &mut bytes);
        body(&bytes);
    }
    for _ in 0..rounds / 4 {
        let noise: Vec<u8> = (0..random.below(80)).map(|_| random.next() as u8).collect();
        body(&noise);
        let pieces: String = (0..random.below(30))
            .map(|_| PIECES[random.below(PIECES.len())])
            .collect();
        body(pieces.as_bytes());
    }
}

#[test]
fn headers() {
    let seeds = seeds("model.safetensors");
    run(1, 20_000, &seeds, fuzz_bodies::header);
    // Mutations of the JSON alone, with a length that fits it, get further into the parser.
    let headers: Vec<Vec<u8>> = seeds
        .iter()
        .filter_map(|file| {
            let len = u64::from_le_bytes(*file.first_chunk()?) as usize;
            Some(file.get(8..len.checked_add(8)?)?.to_vec())
        })
        .collect();
    run(2, 20_000, &headers, |json| {
        for data in [0, 4, 24] {
            let mut file = (json.len() as u64).to_le_bytes().to_vec();
            file.extend_from_slice(json);
            file.resize(file.len() + data, 0);
            fuzz_bodies::header(&file);
        }
    });
}

#[test]
fn indexes() {
    run(
        3,
        30_000,
        &seeds("model.safetensors.index.json"),
        fuzz_bodies::index,
    );
}

#[test]
fn partition_indexes() {
    run(
        4,
        30_000,
        &seeds("tensor_index.json"),
        fuzz_bodies::serverlessllm_index,
    );
}
