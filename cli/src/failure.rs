//! What a failure means to whoever called the program: exit codes, and one line of text.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use tensora::{ErrorKind, text};

/// Something went wrong.
const FAILURE: u8 = 1;
/// The arguments make no sense. Clap uses the same number.
const USAGE: u8 = 2;
/// The backend that was asked for cannot run here.
const UNAVAILABLE: u8 = 3;
/// Ctrl-C: 128 and the number of the signal, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// Arguments that fit each other in a way that the parser does not know.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A check that found something, which is in what was printed: with `--json` nothing more is.
#[derive(Debug)]
pub struct Reported(pub String);

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Reported {}

/// A failure as programs read it.
#[derive(Debug, Serialize)]
pub struct Failed {
    ok: bool,
    error: About,
}

/// What is known about it; paths and names are exact.
#[derive(Debug, Serialize)]
struct About {
    /// That of the library's errors, `Usage`, or `Other`.
    kind: String,
    message: String,
    path: Option<PathBuf>,
    tensor: Option<String>,
    help: Option<String>,
}

impl Failed {
    /// `None` for what was reported already.
    pub fn new(error: &anyhow::Error) -> Option<Self> {
        if error.is::<Reported>() {
            return None;
        }
        let ours = library_error(error);
        let help = ours.and_then(tensora::Error::remedy).map(str::to_owned);
        let mut message = chain(error);
        // It has a field of its own.
        if let Some(help) = &help {
            let end = format!("; {}", text::message(help));
            message.truncate(message.strip_suffix(&end).unwrap_or(&message).len());
        }
        let kind = match ours {
            Some(error) => error.kind().to_string(),
            None if error.is::<Usage>() => "Usage".to_owned(),
            None => "Other".to_owned(),
        };
        let error = About {
            kind,
            message,
            // JSON has no other paths than those that are text.
            path: ours
                .and_then(tensora::Error::path)
                .map(|path| PathBuf::from(path.to_string_lossy().into_owned())),
            tensor: ours
                .and_then(tensora::Error::tensor_name)
                .map(str::to_owned),
            help,
        };
        Some(Self { ok: false, error })
    }

    /// What the parser of arguments says, whose first words and usage lines are for people.
    pub fn usage(text: &str) -> Self {
        let (about, _) = text.split_once("\n\nUsage:").unwrap_or((text, ""));
        let about = about.strip_prefix("error: ").unwrap_or(about);
        let words: Vec<&str> = about.split_whitespace().collect();
        Self::plain("Usage", words.join(" "))
    }

    /// A signal has ended the program.
    #[cfg(unix)]
    pub fn by_signal(signal: i32) -> Self {
        let kind = ErrorKind::Cancelled.to_string();
        Self::plain(&kind, format!("ended by signal {signal}"))
    }

    fn plain(kind: &str, message: String) -> Self {
        let error = About {
            kind: kind.to_owned(),
            message,
            path: None,
            tensor: None,
            help: None,
        };
        Self { ok: false, error }
    }
}

/// The exit code for a failed command.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        return USAGE;
    }
    match library_error(error).map(tensora::Error::kind) {
        Some(ErrorKind::Unavailable) => UNAVAILABLE,
        Some(ErrorKind::Cancelled) => INTERRUPTED,
        _ => FAILURE,
    }
}

fn library_error(error: &anyhow::Error) -> Option<&tensora::Error> {
    error.chain().find_map(|error| error.downcast_ref())
}

/// An error, its causes and what to do, in one line without repetition.
pub fn chain(error: &anyhow::Error) -> String {
    text::chain(error.as_ref())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use anyhow::Context as _;
    use tensora::Error;
    use tensora::storage::{BackendKind, UnavailableReason};

    #[test]
    fn exit_codes_follow_the_meaning_of_errors() {
        let unavailable = Error::unavailable(BackendKind::IoUring, UnavailableReason::NotCompiled);
        let cases: [(anyhow::Error, u8); 5] = [
            (unavailable.into(), UNAVAILABLE),
            (
                Error::new(ErrorKind::Cancelled, "stopped").into(),
                INTERRUPTED,
            ),
            (Error::new(ErrorKind::Truncated, "short").into(), FAILURE),
            (Usage("no".into()).into(), USAGE),
            (anyhow::anyhow!("other"), FAILURE),
        ];
        for (error, code) in cases {
            assert_eq!(exit_code(&error), code, "{error}");
        }
        let wrapped = Err::<(), _>(Error::unavailable(
            BackendKind::IoUring,
            UnavailableReason::NotCompiled,
        ))
        .context("cannot load");
        assert_eq!(exit_code(&wrapped.unwrap_err()), UNAVAILABLE);
    }

    #[test]
    fn chains_are_one_line_and_repeat_nothing() {
        let cause = io::Error::other("disk on fire");
        let error = anyhow::Error::from(Error::io("read", "a.bin".as_ref(), cause)).context("load");
        assert_eq!(chain(&error), "load: a.bin: cannot read: disk on fire");
        let quoting = anyhow::anyhow!("x: y").context("outer: x: y");
        assert_eq!(chain(&quoting), "outer: x: y");
    }
}
