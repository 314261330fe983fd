//! What every program does around its command: arguments, log, signals, errors, exit code.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use tensora::ErrorKind;
use tracing_subscriber::filter::LevelFilter;

use crate::{cleanup, output};

/// Something went wrong.
const FAILURE: u8 = 1;
/// The arguments make no sense. Clap uses the same number.
const USAGE: u8 = 2;
/// The backend that was asked for cannot run here.
const UNAVAILABLE: u8 = 3;
/// Ctrl-C: 128 and the number of the signal, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// Runs a program: `command` gets the parsed arguments and the standard output.
pub fn run<A: Args>(
    name: &'static str,
    about: &'static str,
    command: impl FnOnce(A, &mut dyn Write) -> anyhow::Result<()>,
) -> ExitCode {
    let matches = arguments::<A>(name, about).get_matches();
    let args = A::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    log(&matches);
    cleanup::on_interrupt();
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = command(args, &mut out).and_then(|()| Ok(out.flush()?));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => {
            // What is left in the buffer has nowhere to go.
            let _ = out.into_parts();
            ExitCode::SUCCESS
        }
        Err(error) => {
            // What was printed comes before the error that ended it.
            let _ = out.flush();
            let error = match output_error(&error) {
                Some(_) => error.context("cannot write to the standard output"),
                None => error,
            };
            output::error(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Arguments that fit each other in a way that the parser does not know.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

fn arguments<A: Args>(name: &'static str, about: &'static str) -> Command {
    let verbose = Arg::new("verbose")
        .short('v')
        .long("verbose")
        .action(ArgAction::Count)
        .global(true)
        .help("Say what is decided and why, on stderr; twice for every detail");
    let command = Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .after_help(
            "Exit codes: 0 done, 1 failure, 2 usage, 3 backend unavailable, 130 interrupted",
        )
        .arg(verbose);
    // After the arguments, whose documentation describes them and not the program.
    A::augment_args(command).about(about).long_about(None)
}

fn log(matches: &ArgMatches) {
    let level = match matches.get_count("verbose") {
        0 => LevelFilter::WARN,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // Fails only where a log is set up already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        .try_init();
}

fn exit_code(error: &anyhow::Error) -> u8 {
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

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    output_error(error) == Some(io::ErrorKind::BrokenPipe)
}

/// What is wrong with our own output, if that is what is wrong: errors about files come from the
/// library, with a path.
fn output_error(error: &anyhow::Error) -> Option<io::ErrorKind> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => Some(error.kind()),
        // JSON is written through a writer, and wraps its errors.
        None => error
            .downcast_ref::<serde_json::Error>()
            .and_then(serde_json::Error::io_error_kind),
    }
}

/// An error, its causes and what to do, in one line without repetition.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause_text = match cause.downcast_ref::<tensora::Error>() {
            Some(error) => format!("{error:#}"),
            None => cause.to_string(),
        };
        // Wrappers of other crates may quote their source.
        if text.is_empty() {
            text = cause_text;
        } else if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
    }
    if let Some(remedy) = library_error(error).and_then(tensora::Error::remedy) {
        text.push_str("; ");
        text.push_str(remedy);
    }
    text
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn only_our_own_output_breaks_silently() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&pipe().into()));
        assert!(is_broken_pipe(&serde_json::Error::io(pipe()).into()));
        let file = Error::io("read", "fifo".as_ref(), pipe());
        assert!(!is_broken_pipe(&file.into()));
    }
}
