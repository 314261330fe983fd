//! The kernel's ring, with a window of registered files.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, opcode, squeue, types};

use crate::storage::backends::uring::driver::Ring;
use crate::storage::backends::uring::window::{Seat, Window};
use crate::storage::{Access, LocalFile, Source};

/// User data of cancellations, whose answers mean nothing to us.
const CANCELLATION: u64 = u64::MAX;

pub(super) struct KernelRing {
    ring: IoUring,
    /// `None` where files cannot be registered.
    window: Option<Window<(u64, Access)>>,
    /// What the reads in flight go through.
    held: HashMap<u64, Held>,
    /// Whether the load has said that it goes without registered files.
    said: Arc<AtomicBool>,
}

/// The file of a read in flight, which nobody may close under the kernel.
#[derive(Debug)]
enum Held {
    /// A slot of the table, which keeps its file open.
    Slot(u32),
    Open(Arc<File>),
}

impl KernelRing {
    /// A ring for `depth` reads at once, with `slots` for registered files. Asks for one submitting
    /// thread and for completion work without interrupts, and does without where the kernel is
    /// older. A refusal to register files is told once for each `said`.
    pub(super) fn new(depth: usize, slots: usize, said: &Arc<AtomicBool>) -> io::Result<Self> {
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
        let mut ring = Self {
            ring,
            window: None,
            held: HashMap::new(),
            said: Arc::clone(said),
        };
        if slots > 0 {
            match ring.ring.submitter().register_files_sparse(slots as u32) {
                Ok(()) => ring.window = Some(Window::new(slots)),
                Err(error) => ring.go_without_window(&error),
            }
        }
        Ok(ring)
    }

    /// From now on reads go through plain descriptors. Those in flight keep their slots.
    fn go_without_window(&mut self, error: &io::Error) {
        self.window = None;
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::debug!(%error, "io_uring: files cannot be registered; using plain descriptors");
        }
    }

    /// What a read of `file` goes through: a slot of the window, or else a descriptor.
    fn hold(&mut self, file: &LocalFile, access: Access) -> io::Result<Held> {
        let key = (file.id(), access);
        let seat = self.window.as_mut().and_then(|window| window.seat(&key));
        match seat {
            None => file.descriptor(access).map(Held::Open),
            Some(Seat::Taken(slot)) => Ok(Held::Slot(slot)),
            Some(Seat::Empty(slot)) => {
                let held = Held::Slot(slot);
                let open = match file.descriptor(access) {
                    Ok(open) => open,
                    Err(error) => {
                        self.release(&held);
                        return Err(error);
                    }
                };
                // The slot's earlier file, which no read uses any more, is closed by this.
                let put = [open.as_raw_fd()];
                match self.ring.submitter().register_files_update(slot, &put) {
                    Ok(_) => {
                        if let Some(window) = &mut self.window {
                            window.settle(slot, key);
                        }
                        Ok(held)
                    }
                    Err(error) => {
                        self.go_without_window(&error);
                        Ok(Held::Open(open))
                    }
                }
            }
        }
    }

    fn release(&mut self, held: &Held) {
        if let (Held::Slot(slot), Some(window)) = (held, &mut self.window) {
            window.leave(*slot);
        }
    }

    fn queue(&mut self, entry: &squeue::Entry) -> io::Result<()> {
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
        let file = source.local().ok_or(io::ErrorKind::Unsupported)?;
        if i64::try_from(offset).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let len = u32::try_from(buffer.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let held = self.hold(file, access)?;
        let at = buffer.as_mut_ptr();
        let read = match &held {
            Held::Slot(slot) => opcode::Read::new(types::Fixed(*slot), at, len),
            Held::Open(file) => opcode::Read::new(types::Fd(file.as_raw_fd()), at, len),
        };
        match self.queue(&read.offset(offset).build().user_data(token)) {
            Ok(()) => {
                self.held.insert(token, held);
                Ok(())
            }
            Err(error) => {
                self.release(&held);
                Err(error)
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        self.ring.submit_and_wait(1).map(drop)
    }

    fn reap(&mut self) -> Option<(u64, i32)> {
        let answer = self.ring.completion().next()?;
        if let Some(held) = self.held.remove(&answer.user_data()) {
            self.release(&held);
        }
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

// Miri knows no rings.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::storage::DescriptorCache;

    /// One answered read of a byte at `offset`, and what it went through.
    fn read(ring: &mut KernelRing, token: u64, file: &LocalFile, offset: u64) -> (u8, bool) {
        let mut byte = [0];
        ring.push(token, file, Access::Buffered, offset, &mut byte)
            .unwrap();
        let through_slot = matches!(ring.held[&token], Held::Slot(_));
        ring.wait().unwrap();
        assert_eq!(ring.reap(), Some((token, 1)));
        (byte[0], through_slot)
    }

    /// `None` where this system has no io_uring, which other tests report.
    fn ring(slots: usize) -> Option<KernelRing> {
        KernelRing::new(4, slots, &Arc::default()).ok()
    }

    #[test]
    fn files_come_and_go_in_a_small_window() {
        let Some(mut ring) = ring(3) else { return };
        let registers = ring.window.is_some();
        let folder = tempfile::tempdir().unwrap();
        let cache = Arc::new(DescriptorCache::new(1));
        let files: Vec<_> = (0..20_u8)
            .map(|number| {
                let path = folder.path().join(number.to_string());
                std::fs::write(&path, [number, number + 100]).unwrap();
                LocalFile::open(path, &cache).unwrap()
            })
            .collect();
        let mut token = 0;
        for round in 0..2 {
            for (number, file) in files.iter().enumerate() {
                for offset in 0..2 {
                    token += 1;
                    let (byte, through_slot) = read(&mut ring, token, file, offset);
                    assert_eq!(u64::from(byte), number as u64 + 100 * offset, "{round}");
                    assert_eq!(through_slot, registers, "no slot is lost");
                }
            }
        }
        assert!(ring.held.is_empty());
    }

    #[test]
    fn reads_of_more_files_than_slots_use_descriptors() {
        let Some(mut ring) = ring(1) else { return };
        let registers = ring.window.is_some();
        let folder = tempfile::tempdir().unwrap();
        let cache = Arc::new(DescriptorCache::new(1));
        let mut bytes = [[0_u8; 1]; 3];
        for (number, byte) in bytes.iter_mut().enumerate() {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, [number as u8 + 1]).unwrap();
            let file = LocalFile::open(path, &cache).unwrap();
            ring.push(number as u64, &file, Access::Buffered, 0, byte)
                .unwrap();
            let in_slot = matches!(ring.held[&(number as u64)], Held::Slot(_));
            assert_eq!(in_slot, registers && number == 0);
        }
        while !ring.held.is_empty() {
            ring.wait().unwrap();
            while let Some((_, answer)) = ring.reap() {
                assert_eq!(answer, 1);
            }
        }
        assert_eq!(bytes, [[1], [2], [3]]);
    }

    #[test]
    fn a_table_that_is_refused_leaves_plain_descriptors() {
        // More slots than any limit on open files allows.
        let Some(mut ring) = ring(1 << 30) else {
            return;
        };
        assert!(ring.window.is_none());
        assert!(ring.said.load(Ordering::Relaxed));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"x").unwrap();
        let file = LocalFile::open(path, &Arc::new(DescriptorCache::new(1))).unwrap();
        assert_eq!(read(&mut ring, 7, &file, 0), (b'x', false));
    }
}
