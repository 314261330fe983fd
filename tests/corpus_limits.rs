//! The corpus under its limits: 64 descriptors and 2 GiB of address space. A file of its own,
//! because the limits hold for the whole process.
#![cfg(unix)]

mod corpus;

use corpus::cases;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensora::Checkpoint;
use tensora::storage::read_exact_at;

#[test]
fn every_case_opens_or_is_refused_within_the_limits() {
    for (resource, limit) in [(Resource::Nofile, 64), (Resource::As, 2 << 30)] {
        let maximum = getrlimit(resource).maximum;
        let current = Some(limit);
        setrlimit(resource, Rlimit { current, maximum }).unwrap();
    }
    for case in cases() {
        let opened = Checkpoint::open(&case.path);
        assert_eq!(opened.is_ok(), case.accepted, "{}: {opened:?}", case.name);
        let Ok(checkpoint) = opened else { continue };
        for meta in checkpoint.tensors() {
            for extent in &meta.extents {
                let source = &checkpoint.sources()[extent.source as usize];
                let mut bytes = vec![0; extent.len as usize];
                read_exact_at(&**source, extent.offset, &mut bytes).unwrap();
            }
        }
    }
}
