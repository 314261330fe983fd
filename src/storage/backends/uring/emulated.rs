//! A ring without a kernel: reads sources that have no descriptor, and brings the faults of tests
//! through the same state machine.

use std::collections::VecDeque;
use std::io;

use crate::storage::backends::uring::driver::Ring;
use crate::storage::{Access, Source};

/// Answers every read when it is pushed, and hands the answers out newest first: callers must not
/// rely on an order.
#[derive(Debug, Default)]
pub(super) struct EmulatedRing {
    answers: VecDeque<(u64, i32)>,
}

impl Ring for EmulatedRing {
    fn push(
        &mut self,
        token: u64,
        source: &dyn Source,
        _access: Access,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let answer = match source.read_at(offset, buffer) {
            Ok(count) => i32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?,
            // Errors without a number (replaced files, faults by kind) are answered at once.
            Err(error) => match error.raw_os_error() {
                Some(errno) => -errno,
                None => return Err(error),
            },
        };
        self.answers.push_front((token, answer));
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reap(&mut self) -> Option<(u64, i32)> {
        self.answers.pop_front()
    }

    fn cancel(&mut self, _tokens: &mut dyn Iterator<Item = u64>) {}
}
