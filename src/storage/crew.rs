//! Threads that the loads of an engine share.
//!
//! A load leads on its own thread and *calls* for helpers. Helpers come from the crew, which is never
//! larger than what one of the loads under way called for: loads at once share the threads instead
//! of each bringing its own, and the helpers of one that ends go to the next. A helper that would
//! only wait for its load (whose taker is slow) leaves it, so that a stream at rest holds nobody.
//! Threads that nobody calls for end after a moment.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a helper stays without a call. Streams call again whenever a tensor was taken, and a new
/// thread costs some 50 microseconds.
const LINGER: Duration = Duration::from_millis(50);

/// Why a helper stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// There is nothing more to do.
    Done,
    /// There will be, when the leader calls again.
    Paused,
}

type Help = dyn Fn() -> Left + Send + Sync;

/// The threads of an engine.
#[derive(Default)]
pub(crate) struct Crew {
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Default)]
struct State {
    /// The threads are those of this process: a forked child has none of them.
    process: u32,
    calls: VecDeque<Arc<Call>>,
    threads: usize,
    idle: usize,
}

struct Call {
    helpers: usize,
    seats: Mutex<Seats>,
    left: Condvar,
}

struct Seats {
    /// Gone when the call is over: what it holds must not outlive the load.
    help: Option<Arc<Help>>,
    open: usize,
    taken: usize,
    paused: usize,
    panic: Option<Box<dyn Any + Send>>,
}

impl Crew {
    /// Runs `lead` on this thread while up to `helpers` threads run `help`. Returns when all of them
    /// have come back; a panic of one of them is raised here.
    pub(crate) fn work(
        self: &Arc<Self>,
        helpers: usize,
        help: impl Fn() -> Left + Send + Sync + 'static,
        lead: impl FnOnce(&Helpers<'_>),
    ) {
        let call = Arc::new(Call {
            helpers,
            seats: Mutex::new(Seats {
                help: Some(Arc::new(help)),
                open: helpers,
                taken: 0,
                paused: 0,
                panic: None,
            }),
            left: Condvar::new(),
        });
        let helpers = Helpers {
            crew: self,
            call: Arc::clone(&call),
        };
        self.invite(&call);
        lead(&helpers);
        drop(helpers);
        let panic = call.lock().panic.take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a call where helpers see it, and brings new ones as far as the call needs more.
    fn invite(self: &Arc<Self>, call: &Arc<Call>) {
        let open = call.lock().open;
        if open == 0 {
            return;
        }
        let mut state = self.lock();
        let process = std::process::id();
        if state.process != process {
            *state = State {
                process,
                ..State::default()
            };
        }
        if !state.calls.iter().any(|other| Arc::ptr_eq(other, call)) {
            state.calls.push_back(Arc::clone(call));
        }
        let missing = open.saturating_sub(state.idle);
        let room = call.helpers.saturating_sub(state.threads);
        for _ in 0..missing.min(room) {
            state.threads += 1;
            let crew = Arc::clone(self);
            let named = std::thread::Builder::new().name(format!("tensora-{}", state.threads));
            if named.spawn(move || crew.serve()).is_err() {
                // A system short of threads still loads, with those that it gave.
                state.threads -= 1;
                tracing::warn!(
                    threads = state.threads,
                    "fewer workers than planned: no more threads"
                );
                break;
            }
        }
        drop(state);
        self.called.notify_all();
    }

    /// The life of a helper.
    fn serve(&self) {
        let mut state = self.lock();
        let mut waited = false;
        loop {
            let call = state.calls.iter().find(|call| call.sit_down()).cloned();
            if let Some(call) = call {
                drop(state);
                call.help();
                drop(call);
                state = self.lock();
                waited = false;
                continue;
            }
            if waited {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let (woken, timeout) = self
                .called
                .wait_timeout(state, LINGER)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            waited = timeout.timed_out();
        }
    }
}

impl Call {
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sit_down(&self) -> bool {
        let mut seats = self.lock();
        let free = seats.open > 0 && seats.help.is_some();
        if free {
            seats.open -= 1;
            seats.taken += 1;
        }
        free
    }

    /// One helper's share, from taking a seat to leaving it.
    fn help(&self) {
        let Some(help) = self.lock().help.clone() else {
            return;
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| help()));
        // Before the seat is free: the leader must find nobody else holding on to its load.
        drop(help);
        let mut seats = self.lock();
        match outcome {
            Ok(Left::Done) => {}
            Ok(Left::Paused) => seats.paused += 1,
            Err(panic) => seats.panic = Some(panic),
        }
        seats.taken -= 1;
        drop(seats);
        self.left.notify_all();
    }
}

/// The helpers of one load, in the hands of its leader.
pub(crate) struct Helpers<'a> {
    crew: &'a Arc<Crew>,
    call: Arc<Call>,
}

impl Helpers<'_> {
    /// Calls those back that left because there was nothing to do for the moment.
    pub(crate) fn call_again(&self) {
        let mut seats = self.call.lock();
        if seats.paused == 0 {
            return;
        }
        seats.open += std::mem::take(&mut seats.paused);
        drop(seats);
        self.crew.invite(&self.call);
    }
}

impl Drop for Helpers<'_> {
    /// Waits for those at work; nobody else comes. Also when the leader panics.
    fn drop(&mut self) {
        self.crew
            .lock()
            .calls
            .retain(|call| !Arc::ptr_eq(call, &self.call));
        let mut seats = self.call.lock();
        seats.open = 0;
        while seats.taken > 0 {
            seats = self
                .call
                .left
                .wait(seats)
                .unwrap_or_else(PoisonError::into_inner);
        }
        seats.help = None;
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Crew")
            .field("threads", &state.threads)
            .field("idle", &state.idle)
            .field("calls", &state.calls.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};
    use std::thread::ThreadId;

    use super::*;

    #[test]
    fn as_many_help_as_were_called_for_and_all_come_back() {
        let crew = Arc::new(Crew::default());
        for helpers in [0, 1, 5] {
            // Passed only when leader and helpers are there at the same time.
            let together = Arc::new(Barrier::new(helpers + 1));
            let ended = Arc::new(AtomicUsize::new(0));
            let (meet, count) = (Arc::clone(&together), Arc::clone(&ended));
            let help = move || {
                meet.wait();
                count.fetch_add(1, Ordering::SeqCst);
                Left::Done
            };
            crew.work(helpers, help, |_| {
                together.wait();
            });
            assert_eq!(ended.load(Ordering::SeqCst), helpers);
            assert_eq!(Arc::strong_count(&together), 1, "the help is gone");
        }
    }

    #[test]
    fn loads_at_once_share_the_threads() {
        let crew = Arc::new(Crew::default());
        let threads: Arc<Mutex<HashSet<ThreadId>>> = Arc::default();
        let inside = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let (threads, inside) = (Arc::clone(&threads), Arc::clone(&inside));
                    let help = move || {
                        threads.lock().unwrap().insert(std::thread::current().id());
                        let now = inside.0.fetch_add(1, Ordering::SeqCst) + 1;
                        inside.1.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.0.fetch_sub(1, Ordering::SeqCst);
                        Left::Paused
                    };
                    crew.work(3, help, |helpers| {
                        for _ in 0..50 {
                            std::thread::yield_now();
                            helpers.call_again();
                        }
                    });
                });
            }
        });
        assert!(inside.1.load(Ordering::SeqCst) <= 3);
        assert!(!threads.lock().unwrap().is_empty());
    }

    #[test]
    fn who_pauses_is_free_for_others_and_comes_back_when_called() {
        let crew = Arc::new(Crew::default());
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let help = move || {
            tell.lock().unwrap().send(()).unwrap();
            Left::Paused
        };
        crew.work(1, help, |helpers| {
            told.recv().unwrap();
            // The one thread helps another load meanwhile.
            let (other, seen) = mpsc::channel();
            let other = Mutex::new(other);
            let help = move || {
                other.lock().unwrap().send(()).unwrap();
                Left::Done
            };
            crew.work(1, help, |_| seen.recv().unwrap());
            // It may not have left its seat yet: called until it comes.
            loop {
                helpers.call_again();
                if told.recv_timeout(Duration::from_millis(1)).is_ok() {
                    break;
                }
            }
        });
    }

    #[test]
    fn panics_of_helpers_and_of_leaders_are_the_loads_own() {
        let crew = Arc::new(Crew::default());
        let started = Arc::new(Barrier::new(2));
        let meet = Arc::clone(&started);
        let help = move || {
            meet.wait();
            panic!("of a helper")
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            crew.work(1, help, |_| {
                started.wait();
            });
        }));
        assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"of a helper"));

        let outcome = catch_unwind(AssertUnwindSafe(|| {
            crew.work(2, || Left::Done, |_| panic!("of the leader"));
        }));
        assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"of the leader"));
        // Nothing is broken.
        crew.work(2, || Left::Done, |_| {});
        assert!(crew.lock().calls.is_empty());
    }
}
