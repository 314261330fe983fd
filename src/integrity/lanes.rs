//! Digests of large tensors: read in pieces, in order, and hashed along several lanes.
//!
//! A digest takes its bytes in order, and so by one core; several tensors are under way at once, one
//! in each lane. All pieces come out of one stream, in the order in which the lanes take turns.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use sha2::Digest as _;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::pieces::{Cut, cuts_of, piece_number, rename_piece};
use crate::error::{Error, ErrorKind, Result};
use crate::integrity::digest::Sha256;
use crate::integrity::options::HashOptions;
use crate::settings::Order;
use crate::tensor::Tensor;

/// Bytes of a piece at most, and at least: smaller reads would cost more than they save.
const PIECE_BYTES: u64 = 16 << 20;
const SMALLEST_PIECE: u64 = 64 << 10;

/// Lanes are only added as long as pieces keep this many bytes.
const LANE_PIECE: u64 = 1 << 20;

/// How the budget is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shares {
    lanes: u64,
    piece: u64,
    /// What the stream may hold in flight and not yet taken.
    stream: u64,
}

impl Shares {
    /// Half of the budget for pieces that were taken: one in each lane, and one on its way there.
    fn of(budget: u64, cores: u64, tensors: u64) -> Self {
        let fit = (budget / 2 / LANE_PIECE).saturating_sub(1);
        let lanes = cores.min(tensors).min(fit).max(1);
        let taken = lanes + 1;
        let piece = (budget / 2 / taken).clamp(SMALLEST_PIECE, PIECE_BYTES) / 4096 * 4096;
        Self {
            lanes,
            piece,
            stream: budget.saturating_sub(taken * piece).max(1),
        }
    }
}

/// A piece on its way to a lane, and the tensor that it ends.
type Parcel = (Tensor, Option<usize>);

/// The digests of the tensors at these positions, none of them strided or empty.
pub(super) fn digests(
    checkpoint: &Checkpoint,
    positions: &[usize],
    options: &HashOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<HashMap<usize, Sha256>> {
    if positions.is_empty() {
        return Ok(HashMap::new());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let shares = Shares::of(options.budget(), cores as u64, positions.len() as u64);
    let turns = turns(checkpoint, positions, shares);
    let pieces = checkpoint.pieces(turns.iter().map(|turn| turn.cut).enumerate())?;
    // Pieces are named by their turns.
    let stream = options
        .loader(&pieces, shares.stream, Order::Name)
        .stream()?;
    let name = |turn: usize| &*checkpoint.tensors()[turns[turn].cut.tensor].name;
    std::thread::scope(|scope| {
        let (mut senders, mut workers) = (Vec::<SyncSender<Parcel>>::new(), Vec::new());
        for number in 1..=shares.lanes {
            // Nothing waits between: what is there is in somebody's hands.
            let (sender, receiver) = sync_channel(0);
            let named = std::thread::Builder::new().name(format!("tensora-lane-{number}"));
            let worker = named.spawn_scoped(scope, || hash_lane(receiver, progress));
            let failed = "cannot start a thread that hashes";
            workers.push(worker.map_err(|error| Error::new(ErrorKind::Io, failed).because(error))?);
            senders.push(sender);
        }
        let mut outcome = Ok(());
        for piece in stream {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    outcome = Err(rename_piece(error, name));
                    break;
                }
            };
            let Turn { lane, cut, ends } = turns[piece_number(&piece)];
            if senders[lane]
                .send((piece, ends.then_some(cut.tensor)))
                .is_err()
            {
                // The lane has panicked, which is raised below.
                break;
            }
        }
        drop(senders);
        let mut digests = HashMap::with_capacity(positions.len());
        for worker in workers {
            let hashed = worker.join();
            digests.extend(hashed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        outcome.map(|()| digests)
    })
}

/// Hashes what comes, tensor after tensor.
fn hash_lane(pieces: Receiver<Parcel>, progress: &(dyn Fn(u64) + Sync)) -> Vec<(usize, Sha256)> {
    let mut hasher = sha2::Sha256::new();
    let mut hashed = Vec::new();
    for (piece, ends) in pieces {
        hasher.update(piece.bytes());
        progress(piece.bytes().len() as u64);
        if let Some(tensor) = ends {
            let digest: [u8; 32] = std::mem::take(&mut hasher).finalize().into();
            hashed.push((tensor, digest.into()));
        }
    }
    hashed
}

/// A piece, and the lane whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    lane: usize,
    cut: Cut,
    /// Whether it is the last piece of its tensor.
    ends: bool,
}

/// The lanes take turns, piece by piece; one whose tensor is at its end goes on with the next that
/// nobody has begun.
fn turns(checkpoint: &Checkpoint, positions: &[usize], shares: Shares) -> Vec<Turn> {
    let cuts = |&tensor: &usize| {
        let meta = &checkpoint.tensors()[tensor];
        // Cut where the file is at a multiple, too, so that no page is read for two pieces.
        let start = meta.extents.first().map_or(0, |extent| extent.offset) % shares.piece;
        cuts_of(tensor, meta, start, shares.piece).peekable()
    };
    let mut waiting = positions.iter().map(cuts);
    let mut lanes: Vec<_> = (0..shares.lanes).map(|_| waiting.next()).collect();
    let mut turns = Vec::new();
    while lanes.iter().any(Option::is_some) {
        for (lane, under_way) in lanes.iter_mut().enumerate() {
            let Some(cuts) = under_way else { continue };
            let cut = cuts.next().expect("a tensor at its end is replaced");
            let ends = cuts.peek().is_none();
            turns.push(Turn { lane, cut, ends });
            if ends {
                *under_way = waiting.next();
            }
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::formats::Layout;
    use crate::storage::{MemorySource, Source};

    #[test]
    fn every_byte_has_its_turn_in_the_one_lane_of_its_tensor() {
        let lens = [100_000_u64, 5, 70_000, 1, 4096, 30_000, 4097];
        let mut index = serde_json::Map::new();
        let mut offset = 3;
        for (number, len) in lens.iter().enumerate() {
            let entry = serde_json::json!([offset, len, [len], [1], "torch.uint8", 0]);
            index.insert(format!("t{number}"), entry);
            offset += len;
        }
        let index = serde_json::Value::from(index).to_string();
        let source = MemorySource::new("tensor.data_0", vec![0; offset as usize]);
        let sources: Vec<Arc<dyn Source>> = vec![Arc::new(source)];
        let layout = Layout::ServerlessLlm;
        let checkpoint = Checkpoint::from_sources(layout, sources, Some(index.as_bytes())).unwrap();
        let positions: Vec<usize> = (0..lens.len()).rev().collect();
        for lanes in 1..9 {
            let shares = Shares {
                lanes,
                piece: 4096,
                stream: 1,
            };
            let mut under_way: HashMap<usize, Cut> = HashMap::new();
            let mut ended = Vec::new();
            for Turn { lane, cut, ends } in turns(&checkpoint, &positions, shares) {
                assert!((lane as u64) < lanes && cut.len <= 4096);
                let before = under_way.insert(lane, cut);
                match before.filter(|before| before.tensor == cut.tensor) {
                    Some(before) => assert_eq!(cut.at, before.at + before.len),
                    None => assert!(cut.at == 0 && !ended.contains(&cut.tensor)),
                }
                let len = checkpoint.tensors()[cut.tensor].nbytes();
                assert_eq!(ends, cut.at + cut.len == len);
                if ends {
                    ended.push(cut.tensor);
                }
            }
            ended.sort_unstable();
            assert!(
                ended.iter().copied().eq(0..lens.len()),
                "{lanes}: {ended:?}"
            );
        }
    }

    #[test]
    fn what_is_taken_and_what_is_read_fit_into_the_budget() {
        const MIB: u64 = 1 << 20;
        for cores in [1, 2, 7, 16, 64, 512] {
            for tensors in [1, 3, 1000] {
                for budget in [1, 2, 3, 8, 16, 100, 512, 4096].map(|n| n * MIB) {
                    let shares = Shares::of(budget, cores, tensors);
                    let used = (shares.lanes + 1) * shares.piece + shares.stream;
                    assert!(used <= budget, "{budget}: {shares:?}");
                    assert!(shares.stream >= shares.piece, "{budget}: {shares:?}");
                    assert!(shares.lanes >= 1 && shares.lanes <= tensors.min(cores));
                    assert!(shares.piece.is_multiple_of(4096));
                    assert!(shares.piece <= PIECE_BYTES);
                    assert!(shares.lanes == 1 || shares.piece >= LANE_PIECE - 4096);
                }
            }
        }
        let tiny = Shares::of(1, 8, 8);
        assert_eq!((tiny.lanes, tiny.piece), (1, SMALLEST_PIECE));
        // The usual case has the largest pieces on all of sixteen cores, but for rounding.
        let usual = Shares::of(512 * MIB, 16, 100);
        assert!(
            usual.lanes == 16 && usual.piece > 15 * MIB - 4096,
            "{usual:?}"
        );
    }
}
