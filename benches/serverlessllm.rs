//! Loads of a ServerlessLLM checkpoint on every backend.
//!
//! `cargo bench --bench serverlessllm [-- FILTER]`; `TENSORA_MODEL_ID` chooses a model, which is
//! converted first.

mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use tensora::Layout;

use common::{Subject, criterion, loads};

fn all(criterion: &mut Criterion) {
    loads::layout_groups(criterion, &Subject::new(Layout::ServerlessLlm));
}

criterion_group!(name = benches; config = criterion(); targets = all);
criterion_main!(benches);
