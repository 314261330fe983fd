//! How names out of files, numbers of bytes and counts look in messages.
//!
//! Paths and names come with downloads: one with an escape sequence could rewrite what a terminal
//! shows, and one of five megabytes could bury the rest. Everything that is printed for people goes
//! through here; what is written for programs (JSON) stays exact.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::path::Path;

use crate::error::Error;

/// Characters of a name that are shown; longer ones lose their middle.
const NAME_CHARS: usize = 200;

/// Characters of a path that are shown: no system takes much longer ones, and its end matters most.
const PATH_CHARS: usize = 1000;

/// Characters of a whole sentence, whatever was put into it.
const MESSAGE_CHARS: usize = 1500;

/// The text with everything escaped that a terminal would obey and not show: control characters,
/// line and paragraph separators, and the controls that turn the direction of writing around.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_obeyed(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.into()
}

/// A name, [plain](plain()) and at most some 200 characters long; of a longer one, the beginning, the
/// number of its characters, and the end.
pub fn name(text: &str) -> Cow<'_, str> {
    shortened(text, NAME_CHARS)
}

/// A name in quotation marks.
pub fn quoted(text: &str) -> String {
    format!("{:?}", cut(text, NAME_CHARS))
}

/// A path, [plain](plain()) and of bounded length.
pub fn path(path: &Path) -> String {
    let text = path.to_string_lossy();
    shortened(&text, PATH_CHARS).into_owned()
}

/// A sentence that may quote what came out of a file: the last net under [`name`], [`quoted`] and
/// [`path`](path()). Lines of foreign errors are joined to one.
pub fn message(text: &str) -> Cow<'_, str> {
    let text = shortened_lines(text);
    match plain(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(escaped) => escaped.into(),
    }
}

/// An error, its causes and what to do, in one line without repetition.
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut line = String::new();
    let mut remedy = None;
    let mut next = Some(error);
    while let Some(cause) = next {
        next = cause.source();
        let shown = match cause.downcast_ref::<Error>() {
            Some(error) => {
                remedy = remedy.or(Some(error.remedy()));
                format!("{error:#}")
            }
            // Errors of others may quote what came out of a file.
            None => message(&cause.to_string()).into_owned(),
        };
        // Wrappers may quote their source.
        if line.is_empty() {
            line = shown;
        } else if !line.ends_with(&shown) {
            line.push_str(": ");
            line.push_str(&shown);
        }
    }
    // The outermost error of ours knows what to do, or that nothing is known.
    if let Some(remedy) = remedy.flatten() {
        line.push_str("; ");
        line.push_str(&message(remedy));
    }
    line
}

/// `1 file`, `2 files`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Bytes in the unit that leaves one to four digits before the point: `1023 B`, `1.5 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut size = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // What rounds to 1024 is 1 of the next unit.
        while size >= 1023.95 && unit + 1 < UNITS.len() {
            size /= 1024.0;
            unit += 1;
        }
        let text = format!("{size:.1}");
        let text = text.strip_suffix(".0").unwrap_or(&text);
        f.pad(&format!("{text} {}", UNITS[unit]))
    }
}

fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

fn shortened(text: &str, limit: usize) -> Cow<'_, str> {
    match cut(text, limit) {
        Cow::Borrowed(whole) => plain(whole),
        Cow::Owned(parts) => plain(&parts).into_owned().into(),
    }
}

fn shortened_lines(text: &str) -> Cow<'_, str> {
    let text = cut(text, MESSAGE_CHARS);
    if !text.contains('\n') {
        return text;
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ").into()
}

/// Three quarters of `limit` characters from the start and one from the end.
fn cut(text: &str, limit: usize) -> Cow<'_, str> {
    // A text has no more characters than bytes.
    if text.len() <= limit {
        return text.into();
    }
    let count = text.chars().count();
    if count <= limit {
        return text.into();
    }
    let tail = limit / 4;
    let place = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (&text[..place(limit - tail)], &text[place(count - tail)..]);
    format!("{head}… ({count} characters) …{tail}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_told_nothing_and_people_read_on() {
        let ordinary = "модель/模型/🦙 naïve.weight";
        assert_eq!(plain(ordinary), ordinary);
        assert_eq!(quoted(ordinary), format!("\"{ordinary}\""));
        let evil = "a\u{1b}[2J\n\r\u{9b}\u{202e}\u{2066}\u{2028}\u{7f}b";
        let escaped = "a\\u{1b}[2J\\n\\r\\u{9b}\\u{202e}\\u{2066}\\u{2028}\\u{7f}b";
        assert_eq!(plain(evil), escaped);
        assert_eq!(path(Path::new(evil)), escaped);
        assert_eq!(message(evil), escaped.replace("\\n\\r", " "));
        assert_eq!(message("two\n\n  lines"), "two lines");
        for c in evil.chars().filter(|&c| is_obeyed(c)) {
            assert!(!quoted(evil).contains(c), "{c:?}");
        }
        // What is escaped stays as it is.
        assert_eq!(message(escaped), escaped);
    }

    #[test]
    fn long_texts_keep_both_ends_and_say_how_long_they_were() {
        let long = format!("begin{}end", "é".repeat(5_000_000));
        for shown in [name(&long).into_owned(), quoted(&long)] {
            assert!(shown.chars().count() < 240, "{}", shown.len());
            assert!(shown.contains("5000008 characters"), "{shown}");
            assert!(shown.contains("begin") && shown.contains("end"), "{shown}");
        }
        assert!(path(Path::new(&long)).len() < 3000);
        assert!(message(&long).len() < 4000);
        let fits = "é".repeat(NAME_CHARS);
        assert_eq!(name(&fits), fits);
    }

    #[test]
    fn chains_are_one_line_with_the_remedy_at_its_end() {
        let cause = std::io::Error::other("disk\non fire");
        let error = Error::io("read", Path::new("a.bin"), cause).help("check the disk");
        let line = "a.bin: cannot read: disk on fire; check the disk";
        assert_eq!(chain(&error), line);
        let outer = Error::new(crate::ErrorKind::Io, "the load failed").because(error);
        let line = "the load failed: a.bin: cannot read: disk on fire";
        assert_eq!(chain(&outer), line);
    }

    #[test]
    fn sizes_have_one_style() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (256 << 20, "256 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}", ByteSize(5)), "     5 B");
        assert_eq!(
            (counted(1, "file"), counted(0, "file")),
            ("1 file".into(), "0 files".into())
        );
    }
}
