//! Where tensors go, for any sizes: partitions are balanced within the largest tensor, nothing
//! overlaps, everything is aligned, and what the index says is where the bytes are.

use std::sync::Arc;

use proptest::prelude::*;
use tensora::converters::{OutputPlan, OutputTensor, ServerlessLlmOptions, plan_serverlessllm};
use tensora::formats::serverlessllm::Dialect;
use tensora::storage::{MemorySource, Source};
use tensora::{Checkpoint, Dtype, Layout};

fn tensors(sizes: &[u64]) -> Vec<OutputTensor> {
    let named = sizes.iter().enumerate();
    named
        .map(|(i, &size)| OutputTensor::new(format!("t{i}"), Dtype::U8, [size]))
        .collect()
}

/// The plan's files, each byte of which says which tensor it belongs to.
fn files(plan: &OutputPlan) -> Vec<Arc<dyn Source>> {
    let mut files: Vec<Vec<u8>> = plan
        .files
        .iter()
        .map(|file| vec![0; file.len as usize])
        .collect();
    for (number, place) in plan.placements.iter().enumerate() {
        let range = place.offset as usize..(place.offset + place.len) as usize;
        let bytes = &mut files[place.file as usize][range];
        assert!(bytes.iter().all(|&byte| byte == 0), "tensors overlap");
        bytes.fill(number as u8 + 1);
    }
    let named = files.into_iter().enumerate();
    named
        .map(|(id, bytes)| -> Arc<dyn Source> {
            Arc::new(MemorySource::new(format!("tensor.data_{id}"), bytes))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn of_any_sizes(
        sizes in prop::collection::vec(prop_oneof![0_u64..3, 0_u64..200, 0_u64..5000], 0..60),
        partitions in 1_u32..12,
        dialect in prop::sample::select(&[(Dialect::Local, false), (Dialect::Local, true), (Dialect::Global, false)][..]),
    ) {
        let (dialect, packed) = dialect;
        let options = ServerlessLlmOptions { partitions: Some(partitions), dialect, packed };
        let plan = plan_serverlessllm(tensors(&sizes), &options).unwrap();
        let alignment = match (dialect, packed) {
            (Dialect::Local, false) => 64,
            (Dialect::Local, true) => 1,
            (Dialect::Global, _) => 8,
        };
        prop_assert!(plan.files.len() <= partitions as usize);
        let total: u64 = sizes.iter().map(|size| size.next_multiple_of(alignment)).sum();
        let largest = sizes.iter().max().map_or(0, |size| size.next_multiple_of(alignment));
        let share = total.div_ceil(u64::from(partitions));
        for file in &plan.files {
            prop_assert!(total == 0 || file.len > 0);
            prop_assert!(file.len <= share + largest, "{} of {share}", file.len);
            if dialect == Dialect::Local && plan.files.len() == partitions as usize {
                prop_assert!(file.len + 2 * largest >= share, "{} of {share}", file.len);
            }
        }
        for place in &plan.placements {
            prop_assert_eq!(place.offset % alignment, 0);
        }
        // The reader finds in each tensor the bytes that were put there.
        let index = plan.index.clone().unwrap();
        let checkpoint =
            Checkpoint::from_sources(Layout::ServerlessLlm, files(&plan), Some(&index.bytes)).unwrap();
        let loaded = checkpoint.load().unwrap();
        prop_assert_eq!(loaded.len(), sizes.len());
        for (number, &size) in sizes.iter().enumerate() {
            let tensor = loaded.get(&format!("t{number}")).unwrap();
            prop_assert_eq!(tensor.bytes().len() as u64, size);
            prop_assert!(tensor.bytes().iter().all(|&byte| byte == number as u8 + 1));
        }
    }
}
