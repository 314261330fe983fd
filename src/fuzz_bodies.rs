//! What the fuzz targets and the random-input tests run: whole readers over arbitrary bytes.
//!
//! Each function returns for any input. What is accepted must keep the promises of
//! [`Checkpoint`]; a broken promise panics, which is the finding.

use std::path::PathBuf;
use std::sync::Arc;

pub use crate::plan::cases::plan;

use crate::checkpoint::Checkpoint;
use crate::formats::Layout;
use crate::formats::index::ShardIndex;
use crate::storage::{MemorySource, Source};

/// Opens `bytes` as a SafeTensors file.
pub fn header(bytes: &[u8]) {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new("fuzz.safetensors", bytes));
    if let Ok(checkpoint) = Checkpoint::from_sources(Layout::SafeTensors, vec![source], None) {
        check(&checkpoint);
        // Every byte of a SafeTensors file belongs to the header or to one tensor.
        let header = u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes were read"));
        assert_eq!(8 + header + checkpoint.total_bytes(), bytes.len() as u64);
    }
}

/// Parses `bytes` as the index of a sharded checkpoint.
pub fn index(bytes: &[u8]) {
    let Ok(index) = ShardIndex::parse(bytes) else {
        return;
    };
    for shard in index.shards() {
        let path = PathBuf::from(&**shard);
        let mut parts = path.components();
        assert!(
            parts.all(|part| matches!(part, std::path::Component::Normal(_))),
            "{shard:?} leaves its folder"
        );
    }
    for (at, (name, shard)) in index.entries().iter().enumerate() {
        assert!((*shard as usize) < index.shards().len());
        assert_eq!(index.position(name), Some(at));
    }
}

/// Opens `bytes` as the `tensor_index.json` of three partitions of 64, 0 and 40 bytes.
pub fn serverlessllm_index(bytes: &[u8]) {
    let partition = |len: usize| -> Arc<dyn Source> {
        Arc::new(MemorySource::new("tensor.data", vec![0; len]))
    };
    let sources = vec![partition(64), partition(0), partition(40)];
    if let Ok(checkpoint) = Checkpoint::from_sources(Layout::ServerlessLlm, sources, Some(bytes)) {
        check(&checkpoint);
    }
}

fn check(checkpoint: &Checkpoint) {
    let mut total = 0;
    for (at, tensor) in checkpoint.tensors().iter().enumerate() {
        assert_eq!(checkpoint.position(&tensor.name), Some(at));
        for extent in &tensor.extents {
            assert!(extent.len > 0, "{tensor:?}");
            let len = checkpoint.sources()[extent.source as usize].len();
            assert!(
                extent.offset.checked_add(extent.len).unwrap() <= len,
                "{tensor:?}"
            );
        }
        match &tensor.strides {
            None => assert_eq!(tensor.stored_bytes(), tensor.nbytes(), "{tensor:?}"),
            Some(strides) => {
                let last: u64 = (tensor.shape.iter().zip(strides))
                    .map(|(dim, stride)| (dim - 1) * stride)
                    .sum();
                let bytes = tensor.dtype.bytes_for(last + 1);
                assert_eq!(bytes, Some(tensor.stored_bytes()), "{tensor:?}");
            }
        }
        total += tensor.nbytes();
    }
    assert_eq!(checkpoint.total_bytes(), total);
}
