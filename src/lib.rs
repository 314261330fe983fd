//! Tensora loads large language model checkpoints.
#![deny(unsafe_code)]

mod checkpoint;
mod dtype;
mod engine;
mod error;
mod tensor;

pub mod formats;
#[doc(hidden)]
pub mod fuzz_bodies;
pub mod storage;

pub use checkpoint::{Checkpoint, Layout, OpenOptions, UnknownLayout};
pub use dtype::Dtype;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use storage::BackendKind;
pub use tensor::{Extent, Shape, TensorMeta, contiguous_strides};
