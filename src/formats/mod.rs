//! The checkpoint layouts as pure functions from bytes to metadata. No file is opened here.
//!
//! Every function treats its input as hostile: a declared number is compared with a real one
//! before anything is allocated or computed from it, and every refusal has its kind and numbers.
//! Callers add the path.

pub mod index;
pub mod safetensors;
pub mod serverlessllm;

mod json;
mod layout;
mod names;
mod sniff;

pub use layout::{Layout, UnknownLayout};

pub(crate) use names::Names;
pub(crate) use sniff::sniff;
