//! The kernel's ring.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use crate::storage::backends::uring::driver::Ring;
use crate::storage::{Access, Source};

/// User data of cancellations, whose answers mean nothing to us.
const CANCELLATION: u64 = u64::MAX;

pub(super) struct KernelRing {
    ring: IoUring,
    /// Files of the reads in flight, so that no descriptor is closed under the kernel.
    files: HashMap<u64, Arc<File>>,
}

impl KernelRing {
    /// A ring for `depth` reads at once. Asks for one submitting thread and for completion work
    /// without interrupts, and does without where the kernel is older.
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        let entries = (depth as u32).next_power_of_two();
        let mut tuned = IoUring::builder();
        tuned
            .dontfork()
            .setup_clamp()
            .setup_submit_all()
            .setup_coop_taskrun()
            .setup_single_issuer();
        let ring = match tuned.build(entries) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                IoUring::builder().dontfork().setup_clamp().build(entries)?
            }
            other => other?,
        };
        Ok(Self {
            ring,
            files: HashMap::new(),
        })
    }

    fn queue(&mut self, entry: &io_uring::squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: reads point into landings that the driver keeps until their answers are
            // reaped, or leaks; cancellations point to nothing.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            // Full: let the kernel take what is there.
            self.ring.submit()?;
        }
    }
}

impl Ring for KernelRing {
    fn push(
        &mut self,
        token: u64,
        source: &dyn Source,
        access: Access,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let file = source
            .local()
            .ok_or(io::ErrorKind::Unsupported)?
            .descriptor(access)?;
        if i64::try_from(offset).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // One read moves at most 0x7ffff000 bytes; the driver asks again for the rest.
        let len = buffer.len().min(0x7fff_f000) as u32;
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), len)
            .offset(offset)
            .build()
            .user_data(token);
        self.files.insert(token, file);
        self.queue(&entry).inspect_err(|_| {
            self.files.remove(&token);
        })
    }

    fn wait(&mut self) -> io::Result<()> {
        self.ring.submit_and_wait(1).map(drop)
    }

    fn reap(&mut self) -> Option<(u64, i32)> {
        let answer = self.ring.completion().next()?;
        self.files.remove(&answer.user_data());
        Some((answer.user_data(), answer.result()))
    }

    fn cancel(&mut self, tokens: &mut dyn Iterator<Item = u64>) {
        for token in tokens {
            let entry = opcode::AsyncCancel::new(token)
                .build()
                .user_data(CANCELLATION);
            // Best effort: what is not cancelled ends by itself.
            if self.queue(&entry).is_err() {
                break;
            }
        }
    }
}
