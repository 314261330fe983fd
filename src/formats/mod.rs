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

/// A conversion has begun to replace what the folder holds, and is not done: until this file is
/// gone, no checkpoint of the folder is whole.
pub const INCOMPLETE_FILE: &str = ".tensora-incomplete";

/// What a conversion has done so far, beside files that have no final names yet. A checkpoint that
/// the folder held before is still whole.
pub const JOURNAL_FILE: &str = ".tensora-convert";

pub(crate) use names::Names;
pub(crate) use sniff::sniff;
