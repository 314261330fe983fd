//! Which file sits in which slot of a ring's table of registered files.
//!
//! Pure bookkeeping: the table is a window over however many files a load has. A file stays in its
//! slot until the slot is wanted for another one, least recently used first, and never while a read
//! of it is in flight.

/// Slots of a window at most. Loads read file after file with a few at once; more slots would hold
/// files open that are done with.
const SLOTS: usize = 64;

/// Slots for `files` under a limit of `descriptors` open files, which the kernel applies to the
/// table as well: a quarter of it at most, because each ring has a table.
pub(super) fn slots_for(files: usize, descriptors: u64) -> usize {
    let limit = usize::try_from(descriptors / 4).unwrap_or(usize::MAX);
    files.min(SLOTS).min(limit)
}

/// Slots, what is in them, and how many reads use each.
#[derive(Debug)]
pub(super) struct Window<K> {
    slots: Vec<Slot<K>>,
    clock: u64,
}

#[derive(Debug)]
struct Slot<K> {
    key: Option<K>,
    reads: u32,
    used: u64,
}

/// A slot to read through. It counts as one read until it is [left](Window::leave).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// The file is in it.
    Taken(u32),
    /// The file has to be put into it, over another one or none, and
    /// [`settle`](Window::settle)d.
    Empty(u32),
}

impl<K: PartialEq> Window<K> {
    pub(super) fn new(slots: usize) -> Self {
        let empty = || Slot {
            key: None,
            reads: 0,
            used: 0,
        };
        Self {
            slots: std::iter::repeat_with(empty).take(slots).collect(),
            clock: 0,
        }
    }

    /// A slot for a read of `key`; `None` while reads in flight hold every slot.
    pub(super) fn seat(&mut self, key: &K) -> Option<Seat> {
        self.clock += 1;
        let taken = self
            .slots
            .iter()
            .position(|slot| slot.key.as_ref() == Some(key));
        let at = taken.or_else(|| self.least_recently_used())?;
        let slot = &mut self.slots[at];
        slot.used = self.clock;
        slot.reads += 1;
        if taken.is_none() {
            // Whatever happens to the table, the file that was there is not to be counted on.
            slot.key = None;
        }
        let at = at as u32;
        Some(taken.map_or(Seat::Empty(at), |_| Seat::Taken(at)))
    }

    /// The file of `key` is in the slot now.
    pub(super) fn settle(&mut self, slot: u32, key: K) {
        self.slots[slot as usize].key = Some(key);
    }

    /// A read through the slot is over.
    pub(super) fn leave(&mut self, slot: u32) {
        self.slots[slot as usize].reads -= 1;
    }

    fn least_recently_used(&self) -> Option<usize> {
        let idle = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.reads == 0);
        // Empty slots were never used, or failed to be filled.
        idle.min_by_key(|(_, slot)| (slot.key.is_some(), slot.used))
            .map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a seat for `key`, as a ring does.
    fn sit(window: &mut Window<u32>, key: u32) -> Option<u32> {
        match window.seat(&key)? {
            Seat::Taken(slot) => Some(slot),
            Seat::Empty(slot) => {
                window.settle(slot, key);
                Some(slot)
            }
        }
    }

    #[test]
    fn a_window_is_far_smaller_than_the_limit_on_open_files() {
        assert_eq!(slots_for(3, 1024), 3);
        assert_eq!(slots_for(1000, 1024), 64);
        assert_eq!(slots_for(1000, 64), 16);
        assert_eq!(slots_for(1000, 3), 0);
        assert_eq!(slots_for(1000, u64::MAX), 64);
    }

    #[test]
    fn the_least_recently_used_file_without_reads_makes_room() {
        let mut window = Window::new(3);
        let slots: Vec<_> = (0..3).map(|key| sit(&mut window, key).unwrap()).collect();
        assert_eq!(window.seat(&9), None, "all slots have reads in flight");
        assert_eq!(window.seat(&1), Some(Seat::Taken(slots[1])));
        window.leave(slots[1]);
        assert_eq!(window.seat(&9), None, "the other read is still in flight");
        window.leave(slots[1]);
        window.leave(slots[0]);
        assert_eq!(window.seat(&9), Some(Seat::Empty(slots[0])), "the older");
        window.settle(slots[0], 9);
        window.leave(slots[0]);
        assert_eq!(window.seat(&9), Some(Seat::Taken(slots[0])));
        assert_eq!(window.seat(&0), Some(Seat::Empty(slots[1])));
    }

    #[test]
    fn a_slot_that_could_not_be_filled_is_the_next_to_be_used() {
        let mut window = Window::new(2);
        let slot = sit(&mut window, 1).unwrap();
        window.leave(slot);
        let Some(Seat::Empty(other)) = window.seat(&2) else {
            panic!("2 was never there");
        };
        window.leave(other);
        assert_eq!(window.seat(&3), Some(Seat::Empty(other)));
        assert_eq!(window.seat(&1), Some(Seat::Taken(slot)));
    }

    #[test]
    fn two_hundred_files_in_turn_always_find_a_slot() {
        let mut window = Window::new(16);
        let mut flying = std::collections::VecDeque::new();
        for key in 0..200 {
            if flying.len() == 16 {
                window.leave(flying.pop_front().unwrap());
            }
            flying.push_back(sit(&mut window, key).expect("one read has ended"));
        }
        flying.into_iter().for_each(|slot| window.leave(slot));
        assert!(window.slots.iter().all(|slot| slot.reads == 0));
        let kept: Vec<_> = window.slots.iter().filter_map(|slot| slot.key).collect();
        assert!(kept.iter().all(|key| (184..200).contains(key)), "{kept:?}");
    }
}
