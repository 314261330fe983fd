//! Tensora gets a large language model's checkpoint from storage into memory.
//!
//! ```no_run
//! let checkpoint = tensora::Checkpoint::open("path/to/model")?;
//! let tensors = checkpoint.load()?;
//! for tensor in &tensors {
//!     println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
//! }
//! # Ok::<(), tensora::Error>(())
//! ```
//!
//! [`Checkpoint::open`] reads headers only and validates them. A [`Loader`] narrows and tunes what
//! follows: a [`Selection`] with [`Slice`]s, a [`BackendKind`], a budget. [`Loader::plan`] and
//! [`Loader::schedule`] show what would be read, and how, without reading it; [`Loader::load`],
//! [`Loader::load_async`], [`Loader::stream`] and [`Loader::load_into`] read it, and
//! [`Checkpoint::lazy`] maps tensors one by one. [`Loader::trace`] records where the time goes.
//!
//! Every error has a [kind](Error::kind), and a message with the file, the tensor, the numbers and
//! what to do. After an error there are no tensors: never a partial model, never zeros.
//!
//! # Features
//! - `hub` (default): model ids of the Hugging Face Hub, its cache and downloads into it, in
//!   `hf_model`.
//! - `io-uring` (default): the Linux io_uring backend. Without it, or elsewhere, choosing that
//!   backend is an error and [`BackendKind::Default`] does without.
//! - `digest`: tensors that carry the SHA-256 of their bytes, with [`Loader::digests`]; digests,
//!   manifests, verifying and comparing of checkpoints, in `integrity`; conversions that are verified.
#![deny(unsafe_code)]

/// The examples of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod checkpoint;
mod dtype;
mod engine;
mod error;
mod load;
mod locks;
mod near;
mod policy;
#[cfg(test)]
mod random;
mod schedule;
mod settings;
mod tensor;

pub mod converters;
pub mod facts;
pub mod formats;
#[doc(hidden)]
pub mod fuzz_bodies;
#[cfg(feature = "hub")]
pub mod hf_model;
#[cfg(feature = "digest")]
pub mod integrity;
pub mod plan;
pub mod sample;
pub mod storage;
pub mod text;
pub mod trace;

pub use checkpoint::{Checkpoint, OpenOptions};
pub use dtype::Dtype;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use facts::Facts;
pub use formats::{Layout, UnknownLayout};
pub use load::{CancelToken, Digests, LazyTensors, LoadReport, Loader, TensorStream, Tensors};
pub use plan::{PlanOptions, ReadPlan, Selection, Slice, Split, Steps};
pub use policy::{Decision, Machine, Preset, Profile};
pub use schedule::{Schedule, ScheduleExplanation};
pub use settings::{AccessMode, Order, Settings};
pub use storage::BackendKind;
pub use tensor::{Extent, Shape, Tensor, TensorMeta, contiguous_strides};
pub use trace::Trace;
