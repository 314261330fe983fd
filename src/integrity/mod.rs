//! Whether a checkpoint holds what it should: digests of its tensors, manifests of them, and what
//! differs between two checkpoints (feature `digest`).
//!
//! [`hash`] gives the SHA-256 of every tensor, whatever the layout and the backend, and within a
//! budget that no tensor exceeds. A [`Manifest`] keeps them; [`verify`] compares a checkpoint with
//! one, and [`compare`] one with another. None of them prints: progress goes to a closure, and what
//! is wrong into a report that serializes.
//!
//! ```
//! use tensora::Checkpoint;
//! use tensora::integrity::{HashOptions, Manifest, VerifyOptions, hash, verify};
//! use tensora::sample::{SampleSpec, write_sample};
//!
//! let folder = std::env::temp_dir().join(format!("tensora-integrity-{}", std::process::id()));
//! let spec = SampleSpec { total_bytes: 1 << 20, ..SampleSpec::default() };
//! write_sample(&folder, &spec)?;
//!
//! let checkpoint = Checkpoint::open(&folder)?;
//! let entries = hash(&checkpoint, &HashOptions::default(), &|_bytes| {})?;
//! assert_eq!(entries.len(), checkpoint.tensors().len());
//!
//! let manifest = Some(Manifest::new(entries));
//! let options = VerifyOptions { manifest, ..VerifyOptions::default() };
//! let report = verify(&folder, &options, &|_bytes| {})?;
//! assert!(report.ok && report.compared);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok::<(), tensora::Error>(())
//! ```

mod compare;
mod digest;
mod hash;
mod lanes;
mod manifest;
mod options;
mod verify;

#[cfg(test)]
mod tests;

pub use compare::{CompareOptions, Comparison, Difference, What, compare};
pub use digest::{BadSha256, Entries, Entry, Sha256};
pub use hash::hash;
pub use manifest::Manifest;
pub use options::HashOptions;
pub use verify::{Problem, VerifyOptions, VerifyReport, verify, verify_checkpoint};
