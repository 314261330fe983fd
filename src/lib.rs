//! Tensora loads large language model checkpoints.
#![deny(unsafe_code)]

mod dtype;
mod engine;
mod error;
mod layout;
mod tensor;

pub mod converters;
#[cfg(feature = "hub")]
pub mod hf_model;
pub mod sample;
pub mod storage;

pub use dtype::Dtype;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use layout::Layout;
pub use storage::BackendKind;
pub use tensor::{Extent, Shape, TensorMeta, contiguous_strides};
