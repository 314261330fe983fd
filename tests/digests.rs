//! Tensors that carry the digest of their bytes: on every backend, however they are loaded.

mod corpus;

use corpus::cases;
use sha2::{Digest as _, Sha256};
use tensora::sample::{SampleSpec, write_sample};
use tensora::{
    BackendKind, CancelToken, Checkpoint, Digests, ErrorKind, Loader, Order, Selection, Slice,
    Split, Tensor,
};

#[track_caller]
fn check<'a>(place: &str, tensors: impl IntoIterator<Item = &'a Tensor>) -> usize {
    let mut count = 0;
    for tensor in tensors {
        let expected: [u8; 32] = Sha256::digest(tensor.bytes()).into();
        assert_eq!(tensor.sha256(), Some(&expected), "{place}: {tensor:?}");
        count += 1;
    }
    count
}

/// Loads in every way, and gives how many tensors came.
#[track_caller]
fn check_all_ways(place: &str, loader: &Loader) -> usize {
    let loader = loader.clone().digests(Digests::Sha256);
    let loaded = loader
        .load()
        .unwrap_or_else(|error| panic!("{place}: {error}"));
    let count = check(place, &loaded);
    assert_eq!(count, loaded.len());
    for order in [Order::Arrival, Order::Name] {
        for budget in [1, 4096, 1 << 30] {
            let place = format!("{place}, stream by {order:?} under {budget}");
            let stream = loader.clone().order(order).budget(budget).stream().unwrap();
            let tensors: Vec<Tensor> = stream.map(Result::unwrap).collect();
            assert_eq!(check(&place, &tensors), count, "{place}");
            if order == Order::Name {
                assert!(tensors.is_sorted_by_key(Tensor::name), "{place}");
            }
        }
    }
    count
}

fn runs_here(checkpoint: &Checkpoint, backend: BackendKind) -> bool {
    let schedule = checkpoint.loader().backend(backend).schedule();
    if let Err(error) = &schedule {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        println!("skipped: {error}");
    }
    schedule.is_ok()
}

#[test]
fn every_case_of_the_corpus_has_the_digests_of_its_bytes() {
    let mut loads = 0;
    for case in cases().iter().filter(|case| case.accepted) {
        let checkpoint = Checkpoint::open(&case.path).unwrap();
        // Twenty thousand tensors once, not in six streams by every backend.
        let backends = match checkpoint.tensors().len() {
            ..1000 => &BackendKind::CONCRETE[..],
            _ => &BackendKind::CONCRETE[..1],
        };
        for &backend in backends {
            if runs_here(&checkpoint, backend) {
                let place = format!("{} by {backend}", case.name);
                check_all_ways(&place, &checkpoint.loader().backend(backend));
                loads += 1;
            }
        }
    }
    assert!(loads >= 21 * 3, "{loads}");
}

#[test]
fn random_slices_have_the_digests_of_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let spec = SampleSpec {
        total_bytes: 4 << 20,
        ..SampleSpec::default()
    };
    write_sample(folder.path(), &spec).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut state = 7_u64;
    let mut below = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % limit
    };
    for round in 0..12 {
        let metas = checkpoint.tensors();
        let chosen: Vec<_> = metas.iter().filter(|_| below(3) > 0).collect();
        let mut selection = Selection::names(chosen.iter().map(|meta| &*meta.name));
        for meta in chosen.iter().filter(|meta| !meta.shape.is_empty()) {
            let world = 1 + below(4);
            let slice = Slice::Shard {
                dim: below(meta.shape.len() as u64) as usize,
                rank: below(world),
                world,
                split: Split::Balanced,
            };
            selection = selection.with_slice(&meta.name, slice).unwrap();
        }
        let backend = BackendKind::CONCRETE[round % BackendKind::CONCRETE.len()];
        if runs_here(&checkpoint, backend) {
            let loader = checkpoint.loader().backend(backend).select(selection);
            let place = format!("round {round} by {backend}");
            assert_eq!(check_all_ways(&place, &loader), chosen.len());
        }
    }
}

/// A checkpoint of some tensors.
fn small() -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let spec = SampleSpec {
        total_bytes: 1 << 20,
        ..SampleSpec::default()
    };
    write_sample(folder.path(), &spec).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

#[test]
fn digests_come_when_asked_for_and_go_with_a_change() {
    let (_folder, checkpoint) = small();
    let plain = checkpoint.load().unwrap();
    assert!(plain.iter().all(|tensor| tensor.sha256().is_none()));
    let loaded = checkpoint.loader().digests(Digests::Sha256).load().unwrap();
    for mut tensor in loaded {
        assert!(tensor.clone().sha256().is_some(), "clones have it as well");
        if let Some(bytes) = tensor.bytes_mut() {
            bytes.fill(1);
            assert_eq!(tensor.sha256(), None);
        }
    }
}

#[test]
fn memory_of_the_caller_carries_none() {
    let (_folder, checkpoint) = small();
    let loader = checkpoint.loader().digests(Digests::Sha256);
    let error = loader.load_into([]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("digests"), "{error}");
}

#[test]
fn a_stream_that_is_dropped_or_cancelled_ends() {
    let (_folder, checkpoint) = small();
    let token = CancelToken::default();
    let loader = checkpoint
        .loader()
        .digests(Digests::Sha256)
        .budget(1)
        .cancel_with(token.clone());
    let mut dropped = loader.stream().unwrap();
    assert!(dropped.next().unwrap().is_ok());
    drop(dropped);
    let mut cancelled = loader.stream().unwrap();
    assert!(cancelled.next().unwrap().is_ok());
    token.cancel();
    let last = cancelled.last().unwrap().unwrap_err();
    assert_eq!(last.kind(), ErrorKind::Cancelled);
}
