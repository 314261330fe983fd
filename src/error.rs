//! One error type for the whole library: what went wrong, where, with which numbers, and what to do.
//!
//! Callers match on [`Error::kind`]; people read the [`Display`](fmt::Display) form, which is one
//! sentence with the path, the tensor and the numbers, followed by a remedy where there is one.
//! `Display` never repeats what [`source`](std::error::Error::source) says.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::storage::{BackendKind, UnavailableReason};
use crate::text;

/// The result of every fallible function of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong. The names are stable: tests, language bindings and
/// `--json` output use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file ends before the bytes that its header or index declares.
    Truncated,
    /// A file is longer than its header declares.
    TrailingBytes,
    /// The header length is beyond the format's limit of 100,000,000 bytes.
    HeaderTooLarge,
    /// The header is not what the format asks for (JSON, UTF-8, missing fields).
    BadHeader,
    /// Tensor ranges overlap, leave holes, or run backwards.
    BadOffsets,
    /// A tensor's shape and dtype disagree with the size of its range.
    ShapeMismatch,
    /// One name twice in a header or index.
    DuplicateName,
    /// A dtype that no layout of ours knows.
    UnknownDtype,
    /// The file is something else: a git-lfs pointer, an HTML page, a pickle, another format.
    NotSafetensors,
    /// The index names a shard that is not there.
    MissingShard,
    /// The index lists a tensor that its shard does not hold.
    MissingTensor,
    /// An index names a file outside of its own folder.
    UnsafePath,
    /// An index file cannot be understood.
    BadIndex,
    /// A folder holds no weights that can be loaded.
    NoWeights,
    /// Something that must be a regular file is not one.
    NotAFile,
    /// A ServerlessLLM index uses a partition file that is not there.
    PartitionMissing,
    /// A ServerlessLLM tensor lies outside of its partition file.
    PartitionTooSmall,
    /// An entry of a ServerlessLLM index is malformed.
    BadEntry,
    /// Numbers of a header or index overflow 64 bits.
    Overflow,
    /// A tensor asked for by name does not exist, or a pattern matches nothing.
    NoSuchTensor,
    /// A selection, slice or setting that makes no sense for this checkpoint.
    InvalidArgument,
    /// A path does not exist.
    NotFound,
    /// The model is not in the local cache.
    NotCached,
    /// A server cannot be reached, or does not answer as it should.
    Network,
    /// A server refuses: a token is missing or wrong, or access was not granted.
    Denied,
    /// What a server sent is not what it had announced.
    BadDownload,
    /// The chosen backend cannot run here.
    Unavailable,
    /// A file changed between opening and the end of the load.
    SourceChanged,
    /// The load was cancelled.
    Cancelled,
    /// The selection does not fit into memory.
    OutOfMemory,
    /// Something that the target cannot hold, or this platform cannot do.
    Unsupported,
    /// Any other failure of the operating system.
    Io,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An error with its kind, place, numbers and remedy. One pointer wide.
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    path: Option<PathBuf>,
    tensor: Option<String>,
    message: String,
    remedy: Option<String>,
    unavailable: Option<(BackendKind, UnavailableReason)>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A new error of `kind`; `message` says what is wrong, numbers included.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            path: None,
            tensor: None,
            message: message.into(),
            remedy: None,
            unavailable: None,
            source: None,
        }))
    }

    /// An operating system error while doing `action` ("read the header of") on `path`.
    /// `NotFound` keeps its own kind; everything else is [`ErrorKind::Io`].
    pub fn io(action: &str, path: &Path, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        let out_of_descriptors = is_out_of_descriptors(&source);
        let error = Self::new(kind, format!("cannot {action}"))
            .at(path)
            .because(source);
        match out_of_descriptors {
            true => {
                error.help("raise the limit on open files (ulimit -n), or close some elsewhere")
            }
            false => error,
        }
    }

    /// The explicitly chosen `backend` cannot run here.
    pub fn unavailable(backend: BackendKind, reason: UnavailableReason) -> Self {
        let mut error = Self::new(
            ErrorKind::Unavailable,
            format!("the {backend} backend is unavailable: {reason}"),
        )
        .help(reason.remedy());
        error.0.unavailable = Some((backend, reason));
        error
    }

    /// Adds the file or folder concerned.
    #[must_use]
    pub fn at(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    /// Adds the tensor concerned.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>) -> Self {
        self.0.tensor = Some(name.into());
        self
    }

    /// Adds what the reader can do about it: one sentence without a full stop at its end.
    #[must_use]
    pub fn help(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Adds the underlying error, reported through [`source`](std::error::Error::source).
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file or folder concerned, if one is.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The tensor concerned, if one is.
    pub fn tensor_name(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// What the reader can do about it, if something is known to help.
    pub fn remedy(&self) -> Option<&str> {
        self.0.remedy.as_deref()
    }

    /// The backend and the reason, for [`ErrorKind::Unavailable`].
    pub fn unavailable_reason(&self) -> Option<(BackendKind, &UnavailableReason)> {
        self.0
            .unavailable
            .as_ref()
            .map(|(backend, reason)| (*backend, reason))
    }
}

/// One sentence, with the remedy at its end; the alternate form (`{:#}`) leaves the remedy out, for
/// those who print causes after the error. Names out of files are fit for a terminal, and the
/// middle of overlong ones is left out ([`text`]); [`Error::path`] and [`Error::tensor_name`] are exact.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(f, "{}: ", text::path(path))?;
        }
        if let Some(tensor) = &self.0.tensor {
            write!(f, "tensor {}: ", text::quoted(tensor))?;
        }
        f.write_str(&text::message(&self.0.message))?;
        if let Some(remedy) = &self.0.remedy
            && !f.alternate()
        {
            write!(f, "; {}", text::message(remedy))?;
        }
        Ok(())
    }
}

/// What `fn main() -> tensora::Result<()>` prints: the sentence, then its causes. The alternate form
/// (`{:#?}`) has the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return fmt::Debug::fmt(&self.0, f);
        }
        fmt::Display::fmt(self, f)?;
        let mut cause = std::error::Error::source(self);
        if cause.is_some() {
            f.write_str("\n\nCaused by:")?;
        }
        while let Some(error) = cause {
            write!(f, "\n    {}", text::message(&error.to_string()))?;
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Whether an open failed because too many files are open: those of reads in flight, which end.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    #[cfg(unix)]
    return matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    #[cfg(not(unix))]
    return {
        let _ = error;
        false
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn display_has_place_numbers_and_remedy_but_not_the_source() {
        let error = Error::io(
            "open",
            Path::new("/m/a.safetensors"),
            io::Error::other("disk on fire"),
        )
        .tensor("w")
        .help("check the disk");
        assert_eq!(
            error.to_string(),
            "/m/a.safetensors: tensor \"w\": cannot open; check the disk"
        );
        assert_eq!(
            format!("{error:#}"),
            "/m/a.safetensors: tensor \"w\": cannot open"
        );
        assert_eq!(error.remedy(), Some("check the disk"));
        assert_eq!(error.source().unwrap().to_string(), "disk on fire");
        assert_eq!(error.kind(), ErrorKind::Io);
    }

    #[test]
    fn main_prints_the_sentence_and_its_causes() {
        let disk = io::Error::other("disk on fire");
        let inner = Error::io("open", Path::new("b"), disk);
        let error = Error::new(ErrorKind::MissingShard, "this shard is not there")
            .at("a")
            .help("fetch it")
            .because(inner);
        assert_eq!(
            format!("{error:?}"),
            "a: this shard is not there; fetch it\n\nCaused by:\n    b: cannot open\n    disk on fire"
        );
        assert!(format!("{error:#?}").contains("kind: MissingShard"));
        let lone = Error::new(ErrorKind::Io, "alone");
        assert_eq!(format!("{lone:?}"), "alone");
    }

    #[test]
    fn what_files_say_neither_drives_the_terminal_nor_floods_it() {
        let evil = format!("\u{1b}[2J\u{202e}\n{}", "x".repeat(5_000_000));
        let error = Error::new(ErrorKind::BadHeader, format!("unknown dtype {evil}"))
            .at(&evil)
            .tensor(&*evil)
            .help(&*evil)
            .because(io::Error::other(&*evil));
        for text in [
            error.to_string(),
            format!("{error:#}"),
            format!("{error:?}"),
        ] {
            assert!(text.len() < 10_000, "{}", text.len());
            let text = text.replace("\n\nCaused by:\n", "");
            assert!(!text.contains(['\u{1b}', '\u{202e}', '\n']), "{text}");
            assert!(
                text.contains("50000") && text.contains("characters"),
                "{text}"
            );
        }
        assert_eq!(error.tensor_name(), Some(&*evil));
        assert_eq!(error.path(), Some(Path::new(&evil)));
    }

    #[test]
    fn unavailable_carries_backend_and_reason() {
        let error = Error::unavailable(BackendKind::IoUring, UnavailableReason::NotCompiled);
        let (backend, reason) = error.unavailable_reason().unwrap();
        assert_eq!(backend, BackendKind::IoUring);
        assert_eq!(reason, &UnavailableReason::NotCompiled);
        assert!(error.to_string().contains("io-uring"));
    }
}
