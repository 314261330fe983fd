//! What the reference writer writes is read back with the same names, dtypes, shapes and bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proptest::prelude::*;
use safetensors::tensor::{Dtype as TheirDtype, TensorView, serialize};
use tensora::storage::{MemorySource, Source, read_exact_at};
use tensora::{Checkpoint, Dtype, Layout};

#[derive(Debug, Clone)]
struct Wanted {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
    shard: usize,
}

fn tensor() -> impl Strategy<Value = Wanted> {
    let dtype = prop::sample::select(Dtype::ALL);
    (
        dtype,
        prop::collection::vec(0_usize..5, 0..4),
        any::<u8>(),
        0_usize..4,
    )
        .prop_map(|(dtype, mut shape, fill, shard)| {
            if dtype.bits() < 8 {
                // Packed types fill whole bytes.
                shape.push(4);
            }
            let dims: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
            let count = dtype.nbytes(&dims).unwrap() as usize;
            let bytes = (0..count).map(|i| fill.wrapping_add(i as u8)).collect();
            Wanted {
                dtype,
                shape,
                bytes,
                shard,
            }
        })
}

fn tensors() -> impl Strategy<Value = BTreeMap<String, Wanted>> {
    prop::collection::btree_map("\\PC{0,12}|model\\.[a-z]{1,3}\\.[0-9]", tensor(), 0..20).prop_map(
        |mut tensors| {
            tensors.remove("__metadata__");
            tensors
        },
    )
}

fn written<'a>(tensors: impl Iterator<Item = (&'a String, &'a Wanted)>) -> Vec<u8> {
    let views: Vec<(&str, TensorView)> = tensors
        .map(|(name, wanted)| {
            let dtype = serde_json::Value::String(wanted.dtype.name().into());
            let dtype: TheirDtype = serde_json::from_value(dtype).unwrap();
            let view = TensorView::new(dtype, wanted.shape.clone(), &wanted.bytes).unwrap();
            (&**name, view)
        })
        .collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize(views, Some(metadata)).unwrap()
}

fn compare(checkpoint: &Checkpoint, tensors: &BTreeMap<String, Wanted>) {
    assert_eq!(checkpoint.tensors().len(), tensors.len());
    for (name, wanted) in tensors {
        let meta = checkpoint.require(name).unwrap();
        assert_eq!(meta.dtype, wanted.dtype);
        assert!(
            meta.shape
                .iter()
                .map(|&dim| dim as usize)
                .eq(wanted.shape.iter().copied())
        );
        let mut bytes = vec![0; meta.nbytes() as usize];
        if let [extent] = meta.extents[..] {
            let source = &checkpoint.sources()[extent.source as usize];
            read_exact_at(&**source, extent.offset, &mut bytes).unwrap();
        }
        assert_eq!(bytes, wanted.bytes);
    }
    let places: Vec<_> = checkpoint
        .tensors()
        .iter()
        .filter_map(|meta| meta.extents.first())
        .map(|extent| (extent.source, extent.offset))
        .collect();
    assert!(places.is_sorted());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn one_file(tensors in tensors()) {
        let source: Arc<dyn Source> =
            Arc::new(MemorySource::new("model.safetensors", written(tensors.iter())));
        let checkpoint = Checkpoint::from_sources(Layout::SafeTensors, vec![source], None).unwrap();
        compare(&checkpoint, &tensors);
        prop_assert_eq!(&checkpoint.metadata()["format"], "pt");
    }

    #[test]
    fn shards_with_an_index(tensors in tensors().prop_filter("an index lists something", |t| !t.is_empty())) {
        let shard = |at: usize| format!("model-{at:05}-of-00004.safetensors");
        let map: BTreeMap<&String, String> =
            tensors.iter().map(|(name, wanted)| (name, shard(wanted.shard))).collect();
        let index = serde_json::json!({"metadata": {"total_size": 0}, "weight_map": map}).to_string();
        let sources: Vec<Arc<dyn Source>> = (0..4)
            .map(|at| -> Arc<dyn Source> {
                let of_shard = tensors.iter().filter(|(_, wanted)| wanted.shard == at);
                Arc::new(MemorySource::new(format!("/m/{}", shard(at)), written(of_shard)))
            })
            .collect();
        let index = index.as_bytes();
        let checkpoint = Checkpoint::from_sources(Layout::SafeTensors, sources.clone(), Some(index)).unwrap();
        compare(&checkpoint, &tensors);

        // And as files, whose index is found by its name.
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        for (at, source) in sources.iter().enumerate() {
            let mut bytes = vec![0; source.len() as usize];
            read_exact_at(&**source, 0, &mut bytes).unwrap();
            std::fs::write(folder.path().join(shard(at)), bytes).unwrap();
        }
        compare(&Checkpoint::open(folder.path()).unwrap(), &tensors);
    }
}
