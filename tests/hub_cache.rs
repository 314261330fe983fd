//! Models of the local Hub cache, from id to open checkpoint.
#![cfg(feature = "hub")]

use std::path::Path;

use tensora::hf_model::HubCache;
use tensora::{Checkpoint, ErrorKind};

fn cache(case: &str) -> HubCache {
    HubCache::at(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/cases")
            .join(case),
    )
}

#[test]
fn a_cached_model_opens_whatever_its_ref_ends_with() {
    for case in ["hf_cache_symlinks", "hf_cache_refs_trailing_newline"] {
        for revision in [None, Some("main")] {
            let path = cache(case).resolve("org/name", revision).unwrap();
            assert!(path.ends_with("snapshots/0123456789abcdef0123456789abcdef01234567"));
            let checkpoint = Checkpoint::open(path).unwrap();
            assert_eq!(checkpoint.sources().len(), 2, "{case}");
        }
    }
}

#[test]
fn an_unfinished_download_resolves_and_is_refused_on_opening() {
    let path = cache("hf_cache_incomplete_blob")
        .resolve("org/name", None)
        .unwrap();
    let error = Checkpoint::open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingShard);
    assert!(
        error
            .to_string()
            .contains("model-00002-of-000002.safetensors"),
        "{error}"
    );
}
