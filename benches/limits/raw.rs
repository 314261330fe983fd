//! What the machine can do, measured by reads and copies that do nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use memmap2::{Mmap, MmapMut, MmapOptions};

use crate::measure::{Way, advise_huge, open_direct};

/// Memory that huge pages fit into.
const HUGE_PAGE: usize = 2 << 20;

/// Threads and bytes a read.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    threads: usize,
    chunk: usize,
}

pub const SHAPES: [Shape; 5] = [
    Shape {
        threads: 1,
        chunk: 16 << 20,
    },
    Shape {
        threads: 4,
        chunk: 4 << 20,
    },
    Shape {
        threads: 8,
        chunk: 2 << 20,
    },
    Shape {
        threads: 8,
        chunk: 8 << 20,
    },
    Shape {
        threads: 16,
        chunk: 4 << 20,
    },
];

/// Direct reads of the whole file into fresh memory, in several shapes.
pub fn direct_ways(file: &Path) -> Vec<(String, Shape, Way<'static>)> {
    SHAPES
        .iter()
        .map(|&shape| {
            let name = format!("{} threads x {} MiB", shape.threads, shape.chunk >> 20);
            (name, shape, direct(file, shape))
        })
        .collect()
}

/// Direct reads of the whole file into fresh memory.
pub fn direct(file: &Path, shape: Shape) -> Way<'static> {
    let file = file.to_owned();
    Way::new(move || {
        let mut memory = fresh(&file);
        read(&file, &mut memory, shape);
        Box::new(memory)
    })
}

/// The same into memory that earlier runs have touched.
pub fn direct_reused(file: &Path, shape: Shape) -> Way<'static> {
    let file = file.to_owned();
    let mut memory = fresh(&file);
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let memory = Mutex::new(memory);
    Way::new(move || {
        read(&file, &mut memory.lock().expect("no panic"), shape);
        Box::new(())
    })
}

fn fresh(file: &PathBuf) -> MmapMut {
    let len = std::fs::metadata(file).expect("our own file").len() as usize;
    let len = len.next_multiple_of(4096) + HUGE_PAGE;
    let map = MmapOptions::new().len(len).map_anon().expect("memory");
    advise_huge(&map);
    map
}

fn read(file: &Path, memory: &mut MmapMut, shape: Shape) {
    let file = open_direct(file);
    let skip = memory.as_ptr().align_offset(HUGE_PAGE);
    let len = (file.metadata().expect("our own file").len() as usize).next_multiple_of(4096);
    let chunks = memory[skip..skip + len].chunks_mut(shape.chunk).enumerate();
    let chunks = Mutex::new(chunks);
    std::thread::scope(|scope| {
        for _ in 0..shape.threads {
            scope.spawn(|| {
                loop {
                    let next = chunks.lock().expect("no panic").next();
                    let Some((index, chunk)) = next else { break };
                    fill(&file, chunk, (index * shape.chunk) as u64);
                }
            });
        }
    });
}

fn fill(file: &File, chunk: &mut [u8], offset: u64) {
    let mut done = 0;
    while done < chunk.len() {
        match file
            .read_at(&mut chunk[done..], offset + done as u64)
            .expect("a direct read")
        {
            0 => break,
            count => done += count,
        }
    }
}

/// A copy of the resident file from a map into fresh huge pages, on every core.
pub fn parallel_copy(file: &Path) -> Way<'static> {
    let file = file.to_owned();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Way::new(move || {
        let source = File::open(&file).expect("our own file");
        // SAFETY: nothing writes to the file while the bench runs.
        let source = unsafe { Mmap::map(&source) }.expect("a mapping");
        let _ = source.advise(memmap2::Advice::PopulateRead);
        let mut memory = fresh(&file);
        let skip = memory.as_ptr().align_offset(HUGE_PAGE);
        let target = &mut memory[skip..skip + source.len()];
        let part = source.len().div_ceil(cores).next_multiple_of(HUGE_PAGE);
        std::thread::scope(|scope| {
            for (from, to) in source.chunks(part).zip(target.chunks_mut(part)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        Box::new(memory)
    })
}
