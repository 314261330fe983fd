//! Copies that do nothing else.

use std::any::Any;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use memmap2::MmapMut;
use tempfile::TempDir;

use crate::measure::{Extent, open_direct};

/// Threads of a direct copy, each with one block.
const THREADS: usize = 4;

/// Bytes of a block.
const BLOCK: usize = 16 << 20;

/// `cp --reflink=never`, then every copy and their folder flushed to the disk.
pub fn cp(files: &[Extent], folder: TempDir) -> Box<dyn Any> {
    let copied = Command::new("cp")
        .arg("--reflink=never")
        .args(files.iter().map(|file| &file.path))
        .arg(folder.path())
        .status();
    assert!(copied.expect("cp").success());
    for file in files {
        flush(&copy_of(&file.path, folder.path()));
    }
    flush(folder.path());
    Box::new(folder)
}

/// The same bytes read and written around the page cache, by several threads.
pub fn direct(files: &[Extent], folder: TempDir) -> Box<dyn Any> {
    for file in files {
        let target = copy_of(&file.path, folder.path());
        let to = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_DIRECT)
            .open(&target)
            .expect("a file system with O_DIRECT");
        let len = file.range.end;
        to.set_len(len.next_multiple_of(4096))
            .expect("room on the disk");
        copy_blocks(&open_direct(&file.path), &to, len);
        to.set_len(len).expect("our own file");
        to.sync_all().expect("our own file");
    }
    flush(folder.path());
    Box::new(folder)
}

fn copy_blocks(from: &File, to: &File, len: u64) {
    let next = Mutex::new((0..len).step_by(BLOCK));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut block = MmapMut::map_anon(BLOCK).expect("memory");
                loop {
                    let Some(at) = next.lock().expect("no panic").next() else {
                        break;
                    };
                    let wanted = (len - at).min(BLOCK as u64) as usize;
                    let whole = &mut block[..wanted.next_multiple_of(4096)];
                    let mut got = 0;
                    while got < wanted {
                        let at = at + got as u64;
                        got += from.read_at(&mut whole[got..], at).expect("a direct read");
                    }
                    to.write_all_at(whole, at).expect("a direct write");
                }
            });
        }
    });
}

fn copy_of(file: &Path, folder: &Path) -> std::path::PathBuf {
    folder.join(file.file_name().expect("a file has a name"))
}

fn flush(path: &Path) {
    let file = File::open(path).expect("our own file");
    file.sync_all().expect("our own file");
}
