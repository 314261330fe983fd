//! Tensora loads large language model checkpoints.
#![deny(unsafe_code)]

mod dtype;
mod engine;
mod error;
mod tensor;

pub mod plan;
pub mod storage;

pub use dtype::Dtype;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use plan::{PlanOptions, ReadPlan, Selection, Slice, Split};
pub use storage::BackendKind;
pub use tensor::{Extent, Shape, TensorMeta, contiguous_strides};
