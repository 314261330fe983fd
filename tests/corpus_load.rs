//! Every accepted case of the corpus, loaded: by every backend, at once, as a stream and lazily.
//! Every refused one is refused before a backend is asked.

mod corpus;

use std::collections::BTreeMap;

use corpus::cases;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tensora::{BackendKind, Checkpoint, ErrorKind, Order, Tensor};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What `_expect` has for a tensor, compared with one that was loaded.
fn check(case: &str, tensor: &Tensor, facts: &Value) {
    let place = format!("{case}: {}", tensor.name());
    assert_eq!(tensor.dtype().name(), facts["dtype"], "{place}");
    let shape: Value = tensor.shape().iter().copied().collect();
    assert_eq!(shape, facts["shape"], "{place}");
    let address = tensor.bytes().as_ptr() as u64;
    assert!(
        address.is_multiple_of(tensor.dtype().alignment()),
        "{place}"
    );
    if let Some(rows) = facts.get("logical_f32").and_then(Value::as_array) {
        let expected: Vec<f32> = rows
            .iter()
            .flat_map(|row| row.as_array().unwrap())
            .map(|value| value.as_f64().unwrap() as f32)
            .collect();
        let loaded: Vec<f32> = tensor
            .bytes()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert_eq!(loaded, expected, "{place}");
        return;
    }
    assert_eq!(tensor.nbytes() as u64, facts["nbytes"], "{place}");
    assert_eq!(
        hex(&Sha256::digest(tensor.bytes())),
        facts["sha256"],
        "{place}"
    );
    if let Some(expected) = facts.get("hex") {
        assert_eq!(&hex(tensor.bytes()), expected, "{place}");
    }
}

fn expectations(case: &str) -> (BTreeMap<String, Value>, Option<usize>) {
    let path = corpus::folder().join(format!("_expect/{case}.json"));
    let expected: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tensors = expected.get("tensors").or(expected.get("sample")).unwrap();
    let tensors = tensors.as_object().unwrap().clone().into_iter().collect();
    let count = expected.get("count").and_then(Value::as_u64);
    (tensors, count.map(|count| count as usize))
}

/// The backends that can run here; a missing io_uring is said, and is the only one that may be.
fn backends(checkpoint: &Checkpoint) -> Vec<BackendKind> {
    let all = BackendKind::CONCRETE
        .into_iter()
        .chain([BackendKind::Default]);
    all.filter(
        |&backend| match checkpoint.loader().backend(backend).schedule() {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert_eq!(backend, BackendKind::IoUring, "{error}");
                println!("skipped: {error}");
                false
            }
        },
    )
    .collect()
}

#[test]
fn accepted_cases_load_exactly_on_every_backend() {
    let mut loaded = 0;
    for case in cases().iter().filter(|case| case.accepted) {
        let name = &case.name;
        let checkpoint = Checkpoint::open(&case.path).unwrap();
        let (expected, count) = expectations(name);
        let count = count.unwrap_or(expected.len());
        for backend in backends(&checkpoint) {
            let place = format!("{name} by {backend}");
            let loader = checkpoint.loader().backend(backend);
            let tensors = loader
                .load()
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(tensors.len(), count, "{place}");
            for (tensor, facts) in &expected {
                check(&place, tensors.get(tensor).unwrap(), facts);
            }
            for order in [Order::Arrival, Order::Name] {
                let stream = loader.clone().budget(4096).order(order).stream().unwrap();
                let streamed: Vec<Tensor> = stream.map(|tensor| tensor.unwrap()).collect();
                assert_eq!(streamed.len(), count, "{place}");
                if order == Order::Name {
                    assert!(streamed.is_sorted_by_key(Tensor::name), "{place}");
                }
                for tensor in &streamed {
                    assert_eq!(
                        tensor.bytes(),
                        tensors.get(tensor.name()).unwrap().bytes(),
                        "{place}"
                    );
                }
            }
            loaded += 1;
        }
        let lazy = checkpoint.lazy();
        for (tensor, facts) in &expected {
            check(
                &format!("{name}, lazily"),
                &lazy.tensor(tensor).unwrap(),
                facts,
            );
            let alone = checkpoint.read(tensor).unwrap();
            check(&format!("{name}, one by one"), &alone, facts);
        }
    }
    // 21 accepted cases by at least four backends.
    assert!(loaded >= 21 * 4, "{loaded}");
}

#[test]
fn refused_cases_never_reach_a_backend() {
    let refused: Vec<_> = cases().into_iter().filter(|case| !case.accepted).collect();
    assert_eq!(refused.len(), 30);
    for case in refused {
        assert!(Checkpoint::open(&case.path).is_err(), "{}", case.name);
    }
}
