//! One suite that every backend passes: the same checkpoints, selections and settings, the same
//! faults and changes below, compared with plain `std::fs::read`.
// Filters, limits, descriptors and memory peaks are looked at as Linux shows them.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod cancel;
mod changes;
mod child;
mod counts;
mod denied;
mod deny_io_uring;
mod faults;
mod limits;
mod log;
mod memory;
mod random;
mod settings;
mod shapes;
mod support;
mod trace;
