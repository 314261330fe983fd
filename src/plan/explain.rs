//! What a plan comes to: figures, and a text for people.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::{Piece, ReadPlan, SpanKind, lossy};
use crate::text::{self, ByteSize, counted};

/// Rows that are looked at one by one to count distinct bytes, at most; see
/// [`PlanFigures::needed_bytes`].
const MAX_COUNTED_ROWS: u64 = 1 << 22;

/// A plan in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlanFigures {
    /// Selected tensors.
    pub tensors: u64,
    /// Files that are read from.
    pub files: u64,
    /// Contiguous reads, before large ones are cut: one per dense span, one per row of the others.
    pub ranges: u64,
    /// Distinct bytes of the files that tensors need; what tied tensors share counts once. Where
    /// different row-by-row slices overlap in more than 4,194,304 rows it is an upper bound.
    pub needed_bytes: u64,
    /// Bytes that the spans cover: needed ones, bridged gaps, and rows that two spans both have. What
    /// will be read is the schedule's to say: it may leave gaps out, and rounds direct reads up.
    pub span_bytes: u64,
    /// Bytes of all results.
    pub result_bytes: u64,
    /// Bytes of the largest result.
    pub largest_tensor_bytes: u64,
}

/// A plan in words and numbers: [`Display`](fmt::Display) for people, [`Serialize`] for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanExplanation {
    /// The numbers of all files together.
    pub figures: PlanFigures,
    /// Gaps up to so many bytes lie inside of spans.
    pub gap_limit: u64,
    /// The files that are read from, in the order of the checkpoint.
    pub files: Vec<FileReads>,
}

/// What is read of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileReads {
    /// The file.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// Contiguous reads, as in [`PlanFigures::ranges`].
    pub ranges: u64,
    /// Distinct bytes needed, as in [`PlanFigures::needed_bytes`].
    pub needed_bytes: u64,
    /// Bytes covered, as in [`PlanFigures::span_bytes`].
    pub span_bytes: u64,
}

impl ReadPlan {
    /// The plan in numbers.
    pub fn figures(&self) -> PlanFigures {
        self.explain().figures
    }

    /// The plan in numbers, file by file.
    pub fn explain(&self) -> PlanExplanation {
        let mut all: Vec<FileReads> = self
            .sources
            .iter()
            .map(|source| FileReads {
                path: source.path.clone(),
                len: source.len,
                ranges: 0,
                needed_bytes: 0,
                span_bytes: 0,
            })
            .collect();
        for span in &self.spans {
            let file = &mut all[span.source as usize];
            let (ranges, bytes) = match span.kind {
                SpanKind::Dense => (1, span.len),
                SpanKind::Rows => self
                    .pieces_of(span)
                    .iter()
                    .fold((0, 0), |(ranges, bytes), piece| {
                        (ranges + piece.count, bytes + piece.bytes())
                    }),
            };
            file.ranges = file.ranges.saturating_add(ranges);
            file.span_bytes = file.span_bytes.saturating_add(bytes);
        }
        count_needed(&self.pieces, &mut all);

        let files: Vec<FileReads> = all.into_iter().filter(|file| file.ranges > 0).collect();
        let sum = |of: fn(&FileReads) -> u64| files.iter().map(of).fold(0, u64::saturating_add);
        let results = || self.tensors.iter().map(|tensor| tensor.nbytes);
        let figures = PlanFigures {
            tensors: self.tensors.len() as u64,
            files: files.len() as u64,
            ranges: sum(|file| file.ranges),
            needed_bytes: sum(|file| file.needed_bytes),
            span_bytes: sum(|file| file.span_bytes),
            result_bytes: results().sum(),
            largest_tensor_bytes: results().max().unwrap_or(0),
        };
        PlanExplanation {
            figures,
            gap_limit: self.gap_limit,
            files,
        }
    }
}

impl fmt::Display for PlanExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = &self.figures;
        writeln!(
            f,
            "{} in {} of {}, the largest of {}",
            counted(figures.tensors, "tensor"),
            counted(figures.files, "file"),
            ByteSize(figures.result_bytes),
            ByteSize(figures.largest_tensor_bytes)
        )?;
        writeln!(
            f,
            "before requests are cut: {} over {} for {} needed (gaps up to {} may be read along)",
            counted(figures.ranges, "range"),
            ByteSize(figures.span_bytes),
            ByteSize(figures.needed_bytes),
            ByteSize(self.gap_limit)
        )?;
        if self.files.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "{:>10}  {:>12}  {:>12}  {:>12}  file",
            "ranges", "over", "needed", "of"
        )?;
        for file in &self.files {
            writeln!(
                f,
                "{:>10}  {:>12}  {:>12}  {:>12}  {}",
                file.ranges,
                ByteSize(file.span_bytes),
                ByteSize(file.needed_bytes),
                ByteSize(file.len),
                text::path(&file.path)
            )?;
        }
        Ok(())
    }
}

/// Adds the distinct bytes that the pieces touch to each file.
fn count_needed(pieces: &[Piece], files: &mut [FileReads]) {
    let mut sorted: Vec<&Piece> = pieces.iter().collect();
    sorted.sort_unstable_by_key(|piece| (piece.extent(), piece.run));
    let mut budget = MAX_COUNTED_ROWS;
    let mut rest = &sorted[..];
    while let Some(first) = rest.first() {
        // A cluster: what overlaps directly or through others. Mostly it is one piece.
        let mut end = first.extent().end();
        let mut count = 1;
        while let Some(next) = rest.get(count)
            && next.source == first.source
            && next.offset < end
        {
            end = end.max(next.extent().end());
            count += 1;
        }
        let (cluster, others) = rest.split_at(count);
        let file = &mut files[first.source as usize];
        let needed = distinct_bytes(cluster, end - first.offset, &mut budget);
        file.needed_bytes = file.needed_bytes.saturating_add(needed);
        rest = others;
    }
    // Only an upper bound can be more than what is read.
    for file in files {
        file.needed_bytes = file.needed_bytes.min(file.span_bytes);
    }
}

/// Distinct bytes that a cluster of sorted pieces within `len` bytes touches.
fn distinct_bytes(cluster: &[&Piece], len: u64, budget: &mut u64) -> u64 {
    if let [piece] = cluster {
        return piece.bytes();
    }
    // Whole blocks first, as a set of disjoint ranges: what they hold needs no second look.
    let mut blocks: Vec<(u64, u64)> = Vec::new();
    for piece in cluster.iter().filter(|piece| piece.count == 1) {
        match blocks.last_mut() {
            Some((_, end)) if piece.offset <= *end => *end = (*end).max(piece.offset + piece.run),
            _ => blocks.push((piece.offset, piece.offset + piece.run)),
        }
    }
    let in_block = |piece: &Piece| {
        let before = blocks.partition_point(|block| block.0 <= piece.offset);
        before > 0 && blocks[before - 1].1 >= piece.extent().end()
    };
    let mut rows: Vec<(u64, u64, u64, u64)> = cluster
        .iter()
        .filter(|piece| piece.count > 1 && !in_block(piece))
        .map(|piece| (piece.offset, piece.run, piece.count, piece.stride))
        .collect();
    rows.sort_unstable();
    rows.dedup();
    if blocks.is_empty()
        && let [(_, run, count, _)] = rows[..]
    {
        return run * count;
    }
    let total = rows.iter().map(|row| row.2).fold(0, u64::saturating_add);
    if total > *budget {
        let bytes = rows.iter().map(|row| row.1 * row.2);
        let blocks = blocks.iter().map(|block| block.1 - block.0);
        return bytes.chain(blocks).fold(0, u64::saturating_add).min(len);
    }
    *budget -= total;

    // All ranges by their start; each entry of the heap knows how to go on.
    let mut heap: BinaryHeap<Reverse<(u64, u64, u64, u64)>> = rows
        .into_iter()
        .chain(
            blocks
                .iter()
                .map(|&(start, end)| (start, end - start, 1, 0)),
        )
        .map(Reverse)
        .collect();
    let (mut bytes, mut covered) = (0, 0);
    while let Some(Reverse((offset, run, count, stride))) = heap.pop() {
        let end = offset + run;
        bytes += end.saturating_sub(covered.max(offset));
        covered = covered.max(end);
        if count > 1 {
            heap.push(Reverse((offset + stride, run, count - 1, stride)));
        }
    }
    bytes
}
