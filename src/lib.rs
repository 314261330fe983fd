//! Tensora loads large language model checkpoints.
#![deny(unsafe_code)]

mod checkpoint;
mod dtype;
mod engine;
mod error;
mod load;
mod policy;
mod schedule;
mod tensor;

pub mod converters;
pub mod facts;
pub mod formats;
#[doc(hidden)]
pub mod fuzz_bodies;
#[cfg(feature = "hub")]
pub mod hf_model;
pub mod plan;
pub mod sample;
pub mod storage;

pub use checkpoint::{Checkpoint, Layout, OpenOptions, UnknownLayout};
pub use dtype::Dtype;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use facts::Facts;
pub use load::{CancelToken, LazyTensors, LoadReport, Loader, TensorStream, Tensors};
pub use plan::{PlanOptions, ReadPlan, Selection, Slice, Split};
pub use policy::Decision;
pub use schedule::{AccessMode, Order, Schedule, ScheduleExplanation, Settings};
pub use storage::BackendKind;
pub use tensor::{Extent, Shape, Tensor, TensorMeta, contiguous_strides};
