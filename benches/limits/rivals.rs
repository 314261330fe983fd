//! What people write in a few lines.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::measure::{Extent, Way};

fn paths(files: &[Extent]) -> Vec<PathBuf> {
    files.iter().map(|file| file.path.clone()).collect()
}

/// `std::fs::read` of file after file.
pub fn native(files: &[Extent]) -> Way<'static> {
    let files = paths(files);
    Way::new(move || {
        let bytes: Vec<Vec<u8>> = files
            .iter()
            .map(|file| std::fs::read(file).expect("our own file"))
            .collect();
        Box::new(bytes)
    })
}

/// `std::fs::read` with a thread for each file.
pub fn native_parallel(files: &[Extent]) -> Way<'static> {
    let files = paths(files);
    Way::new(move || {
        let bytes: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let reads: Vec<_> = files
                .iter()
                .map(|file| scope.spawn(move || std::fs::read(file)))
                .collect();
            reads
                .into_iter()
                .map(|read| read.join().expect("no panic").expect("our own file"))
                .collect()
        });
        Box::new(bytes)
    })
}

/// A loop of positioned reads of 8 MiB into a zeroed `Vec`.
pub fn pread_into_vec(file: &Path) -> Way<'static> {
    let path = file.to_owned();
    Way::new(move || {
        let file = File::open(&path).expect("our own file");
        let mut bytes = vec![0; file.metadata().expect("our own file").len() as usize];
        let mut done = 0;
        while done < bytes.len() {
            let end = bytes.len().min(done + (8 << 20));
            done += file
                .read_at(&mut bytes[done..end], done as u64)
                .expect("our own file");
        }
        Box::new(bytes)
    })
}

/// `tokio::fs::read` of all files at once.
pub fn tokio_read(files: &[Extent]) -> Way<'static> {
    let files = paths(files);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .build()
        .expect("a runtime");
    Way::new(move || {
        let bytes: Vec<Vec<u8>> = runtime.block_on(async {
            let reads: Vec<_> = files
                .iter()
                .map(|file| tokio::spawn(tokio::fs::read(file.clone())))
                .collect();
            let mut bytes = Vec::new();
            for read in reads {
                bytes.push(read.await.expect("no panic").expect("our own file"));
            }
            bytes
        });
        Box::new(bytes)
    })
}
