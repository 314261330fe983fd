//! What people and programs read: tables, JSON, names, errors.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use tensora::Layout;
use tensora::text;
pub use tensora::text::counted;

use crate::{failure, size};

/// A table without frames: it reads well in a terminal and in a file.
pub fn table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(headings.to_vec());
    for (index, column) in table.column_iter_mut().enumerate() {
        // Two spaces between columns, none at the left edge.
        column.set_padding((0, 2));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Prints a table without the spaces that fill up its last column.
pub fn print_table(out: &mut dyn Write, table: &Table) -> io::Result<()> {
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Prints one record as one line, at once: a reader may wait for it.
pub fn json_line(out: &mut dyn Write, record: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// What a checkpoint comes to, in a few words.
pub fn checkpoint(layout: Layout, tensors: u64, bytes: u64, files: u64) -> String {
    format!(
        "{layout}, {} of {} in {}",
        counted(tensors, "tensor"),
        size::bytes(bytes),
        counted(files, "file"),
    )
}

/// The files that hold a checkpoint, by what they are: `3 partitions and an index`.
pub fn parts(layout: Layout, data_files: u64, files: u64) -> String {
    let what = match layout {
        Layout::ServerlessLlm => "partition",
        Layout::SafeTensors => "file",
    };
    let index = if files > data_files {
        " and an index"
    } else {
        ""
    };
    format!("{}{index}", counted(data_files, what))
}

/// The same of one that was written, after its folder.
pub fn written(folder: &Path, layout: Layout, tensors: u64, bytes: u64, files: u64) -> String {
    let checkpoint = checkpoint(layout, tensors, bytes, files);
    format!("{}: {checkpoint}", text::path(folder))
}

/// A shape: `[151936, 1024]`, `[]` for a scalar.
pub fn shape(shape: &[u64]) -> String {
    format!("{shape:?}")
}

/// Prints an error and its causes on stderr.
pub fn error(error: &anyhow::Error) {
    let mut stderr = io::stderr().lock();
    let label = if colours(stderr.is_terminal(), |name| std::env::var_os(name)) {
        "\u{1b}[1;31merror:\u{1b}[0m"
    } else {
        "error:"
    };
    // Without a stderr there is nobody to tell.
    let _ = writeln!(stderr, "{label} {}", failure::chain(error));
}

/// Colours are for terminals whose users did not ask for none (<https://no-color.org>).
fn colours<S: AsRef<OsStr>>(terminal: bool, var: impl Fn(&str) -> Option<S>) -> bool {
    let set = |name: &str| var(name).is_some_and(|value| !value.as_ref().is_empty());
    let dumb = var("TERM").is_some_and(|term| term.as_ref() == "dumb");
    terminal && !dumb && !set("NO_COLOR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_need_a_terminal_and_consent() {
        let with = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then_some(value)
        };
        assert!(colours(true, with("TERM", "xterm")));
        assert!(!colours(false, with("TERM", "xterm")));
        assert!(!colours(true, with("TERM", "dumb")));
        assert!(!colours(true, with("NO_COLOR", "1")));
        assert!(colours(true, with("NO_COLOR", "")));
    }

    #[test]
    fn tables_have_no_trailing_spaces() {
        let mut table = table(&["name", "size"], &[1]);
        table.add_row(["a", "1"]).add_row(["longer", "100"]);
        let mut text = Vec::new();
        print_table(&mut text, &table).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "name    size\na          1\nlonger   100\n"
        );
    }
}
