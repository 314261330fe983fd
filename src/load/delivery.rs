//! The hand-over between reading and taking: a queue of finished tensors with a budget.
//!
//! Readers ask for room before they start on a region and push tensors as these complete; the
//! taker pops them, blocking or as a future. What was taken no longer counts against the budget.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Tensor;

/// A finished tensor, its number in the plan, and what taking it gives back to the budget.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) index: u32,
    pub(crate) tensor: Tensor,
    pub(crate) credit: u64,
}

#[derive(Debug)]
pub(crate) struct Delivery {
    state: Mutex<State>,
    /// Something to take, or the end.
    ready: Condvar,
    /// Room in the budget, or the end.
    room: Condvar,
    started: Instant,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Parcel>,
    /// In a named order: finished tensors whose turn has not come, by rank.
    waiting: BTreeMap<u32, Parcel>,
    /// Rank of each tensor when an order was asked for.
    ranks: Option<Box<[u32]>>,
    next_rank: u32,
    budget: Option<u64>,
    /// Bytes admitted and not yet taken.
    used: u64,
    cancelled: bool,
    failure: Option<Error>,
    finished: bool,
    first_at: Option<Duration>,
    taker: Option<Waker>,
    readers: Vec<Waker>,
    /// Threads that wait for `ready` and for `room`: waking nobody is a system call, too, and
    /// there would be two for each tensor.
    blocked_takers: usize,
    blocked_readers: usize,
}

impl Delivery {
    /// `ranks[tensor]` is its position when tensors are to be handed out in a set order.
    pub(crate) fn new(budget: Option<u64>, ranks: Option<Box<[u32]>>) -> Self {
        Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                waiting: BTreeMap::new(),
                ranks,
                next_rank: 0,
                budget,
                used: 0,
                cancelled: false,
                failure: None,
                finished: false,
                first_at: None,
                taker: None,
                readers: Vec::new(),
                blocked_takers: 0,
                blocked_readers: 0,
            }),
            ready: Condvar::new(),
            room: Condvar::new(),
            started: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` of the budget if they fit, or if nothing else is held: one oversized region
    /// goes through alone.
    pub(crate) fn try_admit(&self, bytes: u64) -> bool {
        self.lock().try_admit(bytes)
    }

    /// Waits until something was taken or the load ended. Returns at once when room for `bytes`
    /// is there already.
    pub(crate) fn wait_for_room(&self, bytes: u64) {
        let mut state = self.lock();
        while !state.has_room(bytes) && !state.has_ended() {
            state.blocked_readers += 1;
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.blocked_readers -= 1;
        }
    }

    /// As [`wait_for_room`](Self::wait_for_room), for tasks.
    pub(crate) fn poll_room(&self, bytes: u64, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.has_room(bytes) || state.has_ended() {
            return Poll::Ready(());
        }
        state.readers.push(context.waker().clone());
        Poll::Pending
    }

    pub(crate) fn push(&self, parcel: Parcel) {
        let mut state = self.lock();
        if state.cancelled {
            return;
        }
        let now = self.started.elapsed();
        state.first_at.get_or_insert(now);
        match state
            .ranks
            .as_ref()
            .map(|ranks| ranks[parcel.index as usize])
        {
            None => state.queue.push_back(parcel),
            Some(rank) => {
                state.waiting.insert(rank, parcel);
                while let Some(parcel) = {
                    let rank = state.next_rank;
                    state.waiting.remove(&rank)
                } {
                    state.queue.push_back(parcel);
                    state.next_rank += 1;
                }
            }
        }
        self.notify_taker(state);
    }

    /// The first failure wins; readers see the end. What was read to its end cannot fail any more.
    pub(crate) fn fail(&self, error: Error) {
        let mut state = self.lock();
        if state.finished {
            return;
        }
        state.failure.get_or_insert(error);
        state.cancelled = true;
        self.notify_readers(&mut state);
        self.notify_taker(state);
    }

    /// The taker lost interest.
    pub(crate) fn cancel(&self) {
        let mut state = self.lock();
        state.cancelled = true;
        state.queue.clear();
        state.waiting.clear();
        self.notify_readers(&mut state);
        self.notify_taker(state);
    }

    /// Somebody other than the taker ends the load, who is told by an error in place of what was
    /// still to come.
    pub(crate) fn end_from_outside(&self) {
        let mut state = self.lock();
        if state.finished && state.queue.is_empty() {
            return;
        }
        state.failure.get_or_insert_with(cancelled);
        state.cancelled = true;
        state.queue.clear();
        state.waiting.clear();
        self.notify_readers(&mut state);
        self.notify_taker(state);
    }

    /// Every reader has stopped, and nothing is in flight.
    pub(crate) fn finish(&self) {
        let mut state = self.lock();
        state.finished = true;
        self.notify_taker(state);
    }

    /// Whether readers should stop.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// The next tensor; `None` at the end. After a failure nothing more is handed out.
    pub(crate) fn take(&self) -> Option<Result<Parcel>> {
        let mut state = self.lock();
        loop {
            if let Some(outcome) = self.next_of(&mut state) {
                return outcome;
            }
            state.blocked_takers += 1;
            state = self
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.blocked_takers -= 1;
        }
    }

    /// As [`take`](Self::take), but waits no longer than `timeout`; pending: nothing came.
    pub(crate) fn take_within(&self, timeout: Duration) -> Poll<Option<Result<Parcel>>> {
        // A time beyond what the clock counts is never reached.
        let Some(deadline) = Instant::now().checked_add(timeout) else {
            return Poll::Ready(self.take());
        };
        let mut state = self.lock();
        loop {
            if let Some(outcome) = self.next_of(&mut state) {
                return Poll::Ready(outcome);
            }
            // Others may be woken, and the kernel may wake early: what counts is the clock.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Poll::Pending;
            }
            state.blocked_takers += 1;
            (state, _) = self
                .ready
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state.blocked_takers -= 1;
        }
    }

    /// As [`take`](Self::take), for tasks.
    pub(crate) fn poll_take(&self, context: &Context<'_>) -> Poll<Option<Result<Parcel>>> {
        let mut state = self.lock();
        match self.next_of(&mut state) {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.taker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// When the load started.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Time from the start of the load to the first finished tensor.
    pub(crate) fn first_tensor_after(&self) -> Option<Duration> {
        self.lock().first_at
    }

    /// Outer `None`: nothing yet. A failure is reported once everything has stopped.
    fn next_of(&self, state: &mut MutexGuard<'_, State>) -> Option<Option<Result<Parcel>>> {
        if state.cancelled {
            if !state.finished {
                return None;
            }
            return Some(state.failure.take().map(Err));
        }
        if let Some(parcel) = state.queue.pop_front() {
            state.used = state.used.saturating_sub(parcel.credit);
            self.notify_readers(state);
            return Some(Some(Ok(parcel)));
        }
        state.finished.then_some(None)
    }

    fn notify_taker(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.taker.take();
        let blocked = state.blocked_takers > 0;
        drop(state);
        if blocked {
            self.ready.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn notify_readers(&self, state: &mut MutexGuard<'_, State>) {
        if state.blocked_readers > 0 {
            self.room.notify_all();
        }
        state.readers.drain(..).for_each(Waker::wake);
    }
}

impl State {
    fn has_ended(&self) -> bool {
        self.cancelled || self.finished
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.used == 0
            || self
                .budget
                .is_none_or(|budget| self.used.saturating_add(bytes) <= budget)
    }

    fn try_admit(&mut self, bytes: u64) -> bool {
        let room = self.has_room(bytes);
        if room {
            self.used = self.used.saturating_add(bytes);
        }
        room
    }
}

/// The error of a load that was cancelled from outside.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the load was cancelled")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn parcel(index: u32, credit: u64) -> Parcel {
        let tensor = Tensor::empty(index.to_string().into(), Dtype::U8, smallvec::smallvec![0]);
        Parcel {
            index,
            tensor,
            credit,
        }
    }

    #[test]
    fn a_budget_admits_until_full_and_again_after_taking() {
        let delivery = Delivery::new(Some(10), None);
        assert!(delivery.try_admit(6));
        assert!(!delivery.try_admit(5));
        assert!(delivery.try_admit(4));
        delivery.push(parcel(0, 6));
        assert!(!delivery.try_admit(1), "pushed is not taken");
        delivery.take().unwrap().unwrap();
        assert!(delivery.try_admit(6));
    }

    #[test]
    fn one_oversized_region_goes_through_alone() {
        let delivery = Delivery::new(Some(10), None);
        assert!(delivery.try_admit(100));
        assert!(!delivery.try_admit(1));
    }

    #[test]
    fn a_set_order_holds_back_what_is_early() {
        let delivery = Delivery::new(None, Some([2, 0, 1].into()));
        let ready = |n: usize| {
            (0..n)
                .map(|_| delivery.take().unwrap().unwrap().index)
                .collect::<Vec<_>>()
        };
        delivery.push(parcel(0, 0));
        delivery.push(parcel(2, 0));
        delivery.push(parcel(1, 0));
        assert_eq!(ready(3), [1, 2, 0]);
    }

    #[test]
    fn after_a_failure_nothing_is_handed_out_but_the_first_error_once() {
        let delivery = Delivery::new(None, None);
        delivery.push(parcel(0, 0));
        delivery.fail(Error::new(ErrorKind::Io, "first"));
        delivery.fail(Error::new(ErrorKind::Io, "second"));
        delivery.finish();
        assert!(delivery.is_cancelled());
        assert_eq!(delivery.take().unwrap().unwrap_err().to_string(), "first");
        assert!(delivery.take().is_none());
    }
    #[test]
    fn a_taker_in_a_hurry_tells_nothing_yet_from_the_end() {
        let soon = Duration::from_millis(5);
        let index = |taken: Poll<Option<Result<Parcel>>>| match taken {
            Poll::Ready(Some(Ok(parcel))) => Some(parcel.index),
            _ => None,
        };
        let delivery = Delivery::new(Some(10), None);
        assert!(delivery.take_within(Duration::ZERO).is_pending());
        let asked = Instant::now();
        assert!(delivery.take_within(soon).is_pending());
        assert!(asked.elapsed() >= soon);

        assert!(delivery.try_admit(10));
        delivery.push(parcel(7, 10));
        assert_eq!(index(delivery.take_within(Duration::ZERO)), Some(7));
        assert!(delivery.try_admit(10), "taking gives back to the budget");

        // Woken by what comes, long before the time is over, and at the longest of times.
        for timeout in [Duration::from_secs(600), Duration::MAX] {
            std::thread::scope(|scope| {
                let taker = scope.spawn(|| delivery.take_within(timeout));
                std::thread::sleep(soon);
                delivery.push(parcel(8, 0));
                assert_eq!(index(taker.join().unwrap()), Some(8));
            });
        }

        delivery.fail(Error::new(ErrorKind::Io, "broken"));
        assert!(delivery.take_within(soon).is_pending(), "reads in flight");
        delivery.finish();
        match delivery.take_within(soon) {
            Poll::Ready(Some(Err(error))) => assert_eq!(error.to_string(), "broken"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(delivery.take_within(soon), Poll::Ready(None)));
        assert_eq!(delivery.lock().blocked_takers, 0);
    }
}
