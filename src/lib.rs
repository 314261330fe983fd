//! Tensora loads large language model checkpoints.
#![deny(unsafe_code)]

mod dtype;
mod engine;
mod error;
mod tensor;

pub mod facts;
pub mod storage;

pub use dtype::Dtype;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use facts::Facts;
pub use storage::BackendKind;
pub use tensor::{Extent, Shape, TensorMeta, contiguous_strides};
