//! Regions: reference-counted memory that reads land in and tensors live in.
//!
//! A region is an arena, a private mapping of a file, or memory that the caller lent. Reads get a
//! [`Landing`], the exclusive right to write one stretch; it keeps the region alive, so nothing the
//! kernel may still write to is ever freed. Tensors get a [`Tenancy`], shared read access to one
//! *slot*; when the last tenant of a slot leaves, the pages that only this slot covered go back to
//! the system, neighbours together.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapOptions, MmapRaw};

use crate::storage::PAGE;
use crate::storage::arena::Arena;

/// A region keeps at most one of so many parts of its memory, and so many bytes, that nobody needs.
const KEPT_PART: usize = 64;
const MOST_KEPT: usize = 1 << 20;

/// Memory with slots for tensors.
pub(crate) struct Region {
    memory: Memory,
    base: NonNull<u8>,
    len: usize,
    slots: Box<[Slot]>,
    /// Pages at slot borders, ascending, with the number of slots on them that still have tenants.
    border_pages: Box<[(usize, AtomicU32)]>,
    /// Bytes of whole pages that nobody needs and the system does not have yet: shorter than
    /// [`Region::return_step`].
    leaving: Mutex<Range<usize>>,
}

enum Memory {
    Arena(Arena),
    File(MmapRaw),
    Lent,
}

struct Slot {
    bytes: Range<usize>,
    /// Tensors that were not dropped yet, delivered or not.
    tenants: AtomicU32,
}

// SAFETY: the pointer is to memory that the region owns or keeps alive. All writing goes through
// landings (exclusive, disjoint) and all reading through tenancies (after the writing).
unsafe impl Send for Region {}
// SAFETY: as for Send; the counters are atomic.
unsafe impl Sync for Region {}

/// A slot to be: where it lies in its region, and how many tensors share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotSpec {
    pub(crate) bytes: Range<usize>,
    pub(crate) tenants: u32,
}

/// Mappings of single tensors start at a multiple of this in the file. A fault brings in what is
/// around it in such a stretch of addresses (64 KiB, `fault_around_bytes` of Linux) as far as the
/// page cache has it in one piece: where addresses and file have their borders at the same places, a
/// 1 GiB checkpoint of 89 tensors takes 1,806 faults and not 3,790.
const FAULT_AROUND: u64 = 64 << 10;

impl Region {
    /// Fresh anonymous memory of `len` bytes. Slots must be ascending and disjoint.
    pub(crate) fn arena(len: usize, slots: &[SlotSpec]) -> io::Result<Arc<Self>> {
        let arena = Arena::new(len)?;
        let base = arena.base();
        Ok(Self::build(Memory::Arena(arena), base, len, slots))
    }

    /// A private, copy-on-write mapping of `len` bytes of `file` from the page-aligned `offset`:
    /// what is written to the region never reaches the file.
    ///
    /// The bytes show what the file shows: changes by others may appear in pages that were not
    /// written to, and a file truncated later raises SIGBUS on touch. Callers check the size
    /// before, and populate where bytes in hand are promised.
    pub(crate) fn map_file(
        file: &File,
        offset: u64,
        len: usize,
        slots: &[SlotSpec],
    ) -> io::Result<Arc<Self>> {
        debug_assert!(offset.is_multiple_of(PAGE as u64));
        let mut options = MmapOptions::new();
        options.offset(offset).len(len.max(1));
        if !cfg!(miri) {
            options.no_reserve_swap();
        }
        // SAFETY: the mapping is private and used as plain bytes only. That somebody else may
        // change or truncate the file is the documented hazard of the mmap backend.
        let map = unsafe { options.map_copy(file) }?;
        let map = MmapRaw::from(map);
        let base = map.as_mut_ptr();
        Ok(Self::build(Memory::File(map), base, len, slots))
    }

    /// Memory of the caller: `len` bytes at `base`, kept alive by the caller's borrow.
    ///
    /// # Safety
    /// `base..base + len` must be valid for reads and writes and initialised, and nobody else may
    /// touch it, while the region's landings and tenancies are used.
    pub(crate) unsafe fn lent(base: NonNull<u8>, len: usize, slots: &[SlotSpec]) -> Arc<Self> {
        Self::build(Memory::Lent, base.as_ptr(), len, slots)
    }

    /// An arena of `len` bytes with one slot, written by `fill`.
    pub(crate) fn filled(len: usize, fill: impl FnOnce(&mut [u8])) -> io::Result<Tenancy> {
        let slot = SlotSpec {
            bytes: 0..len,
            tenants: 1,
        };
        let region = Self::arena(len, &[slot])?;
        // SAFETY: the only landing, and gone before the tenant moves in.
        let mut landing = unsafe { region.landing(0..len) };
        fill(landing.bytes());
        drop(landing);
        // SAFETY: all writing has ended, on this thread; once.
        Ok(unsafe { region.move_in(0, 0..len) })
    }

    /// `len` bytes of `file` from `offset`, mapped as [`map_file`](Self::map_file) does, for one
    /// tenant. The offset may be any.
    pub(crate) fn mapped(file: &File, offset: u64, len: usize) -> io::Result<Tenancy> {
        let skip = (offset % FAULT_AROUND) as usize;
        let end = skip.checked_add(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let slot = SlotSpec {
            bytes: skip..end,
            tenants: 1,
        };
        let region = Self::map_file(file, offset - skip as u64, end, &[slot])?;
        // SAFETY: nobody has written to the mapping; once.
        Ok(unsafe { region.move_in(0, skip..end) })
    }

    fn build(memory: Memory, base: *mut u8, len: usize, specs: &[SlotSpec]) -> Arc<Self> {
        debug_assert!(
            specs
                .windows(2)
                .all(|pair| pair[0].bytes.end <= pair[1].bytes.start)
        );
        debug_assert!(specs.last().is_none_or(|slot| slot.bytes.end <= len));
        let mut border_pages: Vec<(usize, AtomicU32)> = Vec::new();
        let mut count = |page: usize| match border_pages.last_mut() {
            Some((last, slots)) if *last == page => *slots.get_mut() += 1,
            _ => border_pages.push((page, AtomicU32::new(1))),
        };
        for spec in specs {
            let (first, last) = border_pages_of(&spec.bytes);
            count(first);
            if last != first {
                count(last);
            }
        }
        let slots = specs
            .iter()
            .map(|spec| Slot {
                bytes: spec.bytes.clone(),
                tenants: AtomicU32::new(spec.tenants),
            })
            .collect();
        Arc::new(Self {
            memory,
            base: NonNull::new(base).expect("mappings and lent memory are never at address 0"),
            len,
            slots,
            border_pages: border_pages.into(),
            leaving: Mutex::new(0..0),
        })
    }

    /// The exclusive right to write `range`.
    ///
    /// # Safety
    /// Until the landing is dropped, no other landing may overlap `range`, and no tenancy of a
    /// slot that overlaps it may exist.
    pub(crate) unsafe fn landing(self: &Arc<Self>, range: Range<usize>) -> Landing {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "landing outside of its region"
        );
        Landing {
            region: Arc::clone(self),
            range,
        }
    }

    /// Shared access to the bytes `range` of slot number `slot`.
    ///
    /// # Safety
    /// All writing to the slot has ended and was made visible to this thread. Called at most once
    /// for each of the slot's tenants.
    pub(crate) unsafe fn move_in(self: &Arc<Self>, slot: u32, range: Range<usize>) -> Tenancy {
        let home = &self.slots[slot as usize].bytes;
        assert!(home.start <= range.start && range.start <= range.end && range.end <= home.end);
        Tenancy {
            region: Arc::clone(self),
            slot,
            range,
        }
    }

    /// Brings `range` of a file mapping into memory, so that a file that ends early is an error
    /// here and not a signal later. Other regions have nothing to do.
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        let Memory::File(map) = &self.memory else {
            return Ok(());
        };
        if range.is_empty() {
            return Ok(());
        }
        let start = range.start - range.start % PAGE;
        #[cfg(target_os = "linux")]
        match map.advise_range(memmap2::Advice::PopulateRead, start, range.end - start) {
            // Kernels before 5.14: read through the descriptor instead, which also fails cleanly.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            other => other,
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (map, start);
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn leave(&self, slot: u32) {
        let slot = &self.slots[slot as usize];
        if slot.tenants.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (first, last) = border_pages_of(&slot.bytes);
        let mut free_from = slot.bytes.start.next_multiple_of(PAGE);
        let mut free_to = slot.bytes.end - slot.bytes.end % PAGE;
        // A border page is free when its last slot leaves; then it joins the stretch given back.
        if self.is_last_on(first) {
            free_from = first * PAGE;
            free_to = free_to.max((first + 1) * PAGE);
        }
        if last != first && self.is_last_on(last) {
            free_to = (last + 1) * PAGE;
        }
        if free_from < free_to {
            self.give_back(free_from..free_to);
        }
    }

    /// Gives pages back, short stretches only together with their neighbours: a call for each of
    /// 20,000 small tensors took half as long as loading them.
    fn give_back(&self, pages: Range<usize>) {
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = if leaving.end == pages.start {
            leaving.start..pages.end
        } else if pages.end == leaving.start {
            pages.start..leaving.end
        } else {
            let apart = std::mem::replace(&mut *leaving, pages.clone());
            if !apart.is_empty() {
                self.discard(apart);
            }
            pages
        };
        *leaving = if joined.len() < self.return_step() {
            joined
        } else {
            self.discard(joined);
            0..0
        };
    }

    /// How many bytes are given back at a time, at least: what a region may keep for longer than
    /// it is needed.
    fn return_step(&self) -> usize {
        (self.len / KEPT_PART).min(MOST_KEPT)
    }

    fn is_last_on(&self, page: usize) -> bool {
        let at = self
            .border_pages
            .binary_search_by_key(&page, |entry| entry.0)
            .expect("built with the border pages of every slot");
        self.border_pages[at].1.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn discard(&self, pages: Range<usize>) {
        match &self.memory {
            Memory::Arena(arena) => {
                let end = pages.end.min(arena.len());
                // SAFETY: every slot on these pages has lost its last tenant, and reads into
                // them ended before the tenants moved in.
                unsafe { arena.discard(pages.start, end - pages.start) };
            }
            #[cfg(target_os = "linux")]
            Memory::File(map) => {
                let end = pages.end.min(self.len);
                let advice = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: no tenant is left on these pages.
                let _ =
                    unsafe { map.unchecked_advise_range(advice, pages.start, end - pages.start) };
            }
            #[cfg(not(target_os = "linux"))]
            Memory::File(_) => {}
            Memory::Lent => {}
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.memory {
            Memory::Arena(_) => "arena",
            Memory::File(_) => "file",
            Memory::Lent => "lent",
        };
        write!(
            f,
            "Region({what}, {} bytes, {} slots)",
            self.len,
            self.slots.len()
        )
    }
}

/// First and last page that a slot touches. An empty slot counts as one byte long.
fn border_pages_of(bytes: &Range<usize>) -> (usize, usize) {
    (
        bytes.start / PAGE,
        bytes.end.max(bytes.start + 1).div_ceil(PAGE) - 1,
    )
}

/// The exclusive right to write one stretch of a region. Travels with the read and comes back with
/// its answer.
#[derive(Debug)]
pub(crate) struct Landing {
    region: Arc<Region>,
    range: Range<usize>,
}

impl Landing {
    /// The bytes to write.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: inside of the region (asserted when it was handed out).
        let start = unsafe { self.region.base.add(self.range.start) };
        // SAFETY: initialised memory, kept alive by `region`, and ours alone by the contract of
        // `Region::landing`.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.range.len()) }
    }

    /// Ends the landing and keeps the memory, for use as another landing.
    pub(crate) fn into_region(self) -> Arc<Region> {
        self.region
    }
}

/// A tensor's claim on its slot: read access, and the duty to give the pages back at the end.
pub(crate) struct Tenancy {
    region: Arc<Region>,
    slot: u32,
    range: Range<usize>,
}

impl Tenancy {
    /// The tensor's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: inside of the region (asserted when the tenant moved in).
        let start = unsafe { self.region.base.add(self.range.start) };
        // SAFETY: written before the tenant moved in, kept alive by `region`, and written to
        // afterwards only through `bytes_mut`, which needs `&mut self` and a slot of its own.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.range.len()) }
    }

    /// The tensor's bytes for writing, when no other tensor shares the slot.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let slot = &self.region.slots[self.slot as usize];
        if slot.tenants.load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: inside of the region (asserted when the tenant moved in).
        let start = unsafe { self.region.base.add(self.range.start) };
        // SAFETY: as in `bytes`; we are the only tenant, slots are disjoint, and `&mut self`.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.range.len()) })
    }

    /// Where the tensor's bytes begin, for reads and writes of all of them while the tenancy lives.
    /// It comes from the region's own pointer and not from a shared borrow, so writing through it
    /// is allowed while no borrow of the slot's bytes is in use.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        // SAFETY: inside of the region (asserted when the tenant moved in).
        unsafe { self.region.base.add(self.range.start) }.as_ptr()
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        self.region.leave(self.slot);
    }
}

impl fmt::Debug for Tenancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenancy({:?} of {:?})", self.range, self.region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(bytes: Range<usize>) -> SlotSpec {
        SlotSpec { bytes, tenants: 1 }
    }

    fn enter(region: &Arc<Region>, slot: u32, range: Range<usize>) -> Tenancy {
        // SAFETY: the tests have filled the slot, and let no more tenants in than it has.
        unsafe { region.move_in(slot, range) }
    }

    fn fill(region: &Arc<Region>, range: Range<usize>, value: u8) {
        // SAFETY: the tests fill before tenants move in and never overlap.
        let mut landing = unsafe { region.landing(range) };
        landing.bytes().fill(value);
    }

    #[test]
    fn tensors_read_what_landed_and_outlive_the_handle() {
        let region = Region::arena(3 * PAGE, &[slot(0..10), slot(10..2 * PAGE)]).unwrap();
        fill(&region, 0..10, 1);
        fill(&region, 10..2 * PAGE, 2);
        let (a, mut b) = (enter(&region, 0, 0..10), enter(&region, 1, 10..2 * PAGE));
        drop(region);
        assert_eq!(a.bytes(), [1; 10]);
        b.bytes_mut().unwrap()[0] = 9;
        drop(a);
        assert_eq!(b.bytes()[0], 9);
        assert!(b.bytes()[1..].iter().all(|&byte| byte == 2));
    }

    #[test]
    fn the_address_of_a_tenant_writes_what_all_of_its_slot_read() {
        let shared = SlotSpec {
            bytes: 16..24,
            tenants: 2,
        };
        let region = Region::arena(PAGE, &[slot(0..16), shared]).unwrap();
        fill(&region, 0..16, 1);
        fill(&region, 16..24, 2);
        let neighbour = enter(&region, 0, 0..16);
        let (whole, part) = (enter(&region, 1, 16..24), enter(&region, 1, 18..20));
        assert_eq!(part.as_mut_ptr().cast_const(), &raw const part.bytes()[0]);
        // SAFETY: inside of the tenant's bytes, and no borrow of them is in use.
        unsafe { part.as_mut_ptr().write(9) };
        assert_eq!(part.bytes(), [9, 2]);
        assert_eq!(whole.bytes(), [2, 2, 9, 2, 2, 2, 2, 2]);
        assert_eq!(neighbour.bytes(), [1; 16]);
    }

    #[test]
    fn a_shared_slot_cannot_be_written_until_one_tenant_is_left() {
        let region = Region::arena(
            PAGE,
            &[SlotSpec {
                bytes: 0..8,
                tenants: 2,
            }],
        )
        .unwrap();
        fill(&region, 0..8, 5);
        let (mut a, b) = (enter(&region, 0, 0..8), enter(&region, 0, 0..8));
        assert!(a.bytes_mut().is_none());
        drop(b);
        assert!(a.bytes_mut().is_some());
    }

    #[test]
    fn pages_go_back_only_when_every_slot_on_them_is_empty() {
        // Slots: [0, 1.5 pages), [1.5, 1.75), [1.75, 4): the middle page has three of them.
        let half = PAGE / 2;
        let bounds = [0, PAGE + half, PAGE + half + half / 2, 4 * PAGE];
        let slots: Vec<_> = bounds.windows(2).map(|w| slot(w[0]..w[1])).collect();
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let region = Region::arena(4 * PAGE, &slots).unwrap();
            let mut tenants: Vec<_> = (0..3)
                .map(|i| {
                    fill(&region, bounds[i]..bounds[i + 1], i as u8 + 1);
                    Some(enter(&region, i as u32, bounds[i]..bounds[i + 1]))
                })
                .collect();
            for leaving in order {
                tenants[leaving] = None;
                for (i, tenant) in tenants.iter().enumerate() {
                    let Some(tenant) = tenant else { continue };
                    assert!(
                        tenant.bytes().iter().all(|&byte| byte == i as u8 + 1),
                        "{order:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn empty_slots_do_no_harm() {
        let region = Region::arena(PAGE, &[slot(0..0), slot(0..4), slot(4..4)]).unwrap();
        fill(&region, 0..4, 3);
        let (a, b) = (enter(&region, 0, 0..0), enter(&region, 1, 0..4));
        assert!(a.bytes().is_empty());
        drop(a);
        assert_eq!(b.bytes(), [3; 4]);
    }

    #[test]
    fn lent_memory_is_written_in_place() {
        let mut memory = vec![0_u8; 16];
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the region and is not touched while it lives.
        let region = unsafe { Region::lent(base, 16, &[slot(0..16)]) };
        fill(&region, 0..16, 8);
        drop(region);
        assert_eq!(memory, [8; 16]);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_mapping_is_copy_on_write_and_a_truncated_file_fails_to_populate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, vec![7; 4 * PAGE]).unwrap();
        let file = File::open(&path).unwrap();
        let region = Region::map_file(&file, PAGE as u64, 3 * PAGE, &[slot(0..3 * PAGE)]).unwrap();
        region.populate(0..3 * PAGE).unwrap();
        let mut tenant = enter(&region, 0, 0..3 * PAGE);
        tenant.bytes_mut().unwrap()[0] = 1;
        assert_eq!(tenant.bytes()[..2], [1, 7]);
        // SAFETY: inside of the tenant's bytes, and no borrow of them is in use.
        unsafe { tenant.as_mut_ptr().wrapping_add(PAGE).write(2) };
        assert_eq!(tenant.bytes()[PAGE..PAGE + 2], [2, 7]);
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 4 * PAGE]);

        let short = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        short.set_len(PAGE as u64).unwrap();
        let region = Region::map_file(&file, PAGE as u64, 3 * PAGE, &[slot(0..3 * PAGE)]).unwrap();
        assert!(region.populate(0..3 * PAGE).is_err());
    }
}
