//! What every program does around its command: arguments, log, signals, errors, exit code.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use tracing_subscriber::filter::LevelFilter;

use crate::stdout::Stdout;
use crate::{cleanup, failure, output};

/// Runs a program: `command` gets the parsed arguments and the standard output.
pub fn run<A: Args>(
    name: &'static str,
    about: &'static str,
    command: impl FnOnce(A, &mut dyn Write) -> anyhow::Result<()>,
) -> ExitCode {
    let matches = arguments::<A>(name, about).try_get_matches();
    let matches = matches.unwrap_or_else(|error| refuse(&error));
    let args = A::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error));
    log(&matches);
    cleanup::on_interrupt(wants_json(&matches));
    let mut out = BufWriter::new(Stdout::lock());
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
            if wants_json(&matches)
                && output_error(&error).is_none()
                && let Some(failed) = failure::Failed::new(&error)
            {
                // The exit code says it, too.
                let _ = output::json_line(&mut out, &failed);
            }
            let error = match output_error(&error) {
                Some(_) => error.context("cannot write to the standard output"),
                None => error,
            };
            output::error(&error);
            ExitCode::from(failure::exit_code(&error))
        }
    }
}

/// Ends the program with what the parser says about its arguments: help, or what is wrong with them,
/// which is JSON, too, where that is asked for.
fn refuse(error: &clap::Error) -> ! {
    let mut given = std::env::args_os().skip(1).take_while(|arg| arg != "--");
    if error.use_stderr() && given.any(|arg| arg == "--json") {
        let failed = failure::Failed::usage(&error.render().to_string());
        let _ = output::json_line(&mut io::stdout().lock(), &failed);
    }
    error.exit()
}

/// The arguments of a program whose command takes `A`.
pub fn arguments<A: Args>(name: &'static str, about: &'static str) -> Command {
    let verbose = Arg::new("verbose")
        .short('v')
        .long("verbose")
        .action(ArgAction::Count)
        .display_order(900)
        .global(true)
        .help("Say what is decided and why, on stderr; twice for every detail");
    let command = Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .after_help(
            "Exit codes: 0 done, 1 failure, 2 usage, 3 backend unavailable, 130 interrupted (128 and the number of the signal)",
        )
        .arg(verbose);
    // After the arguments, whose documentation describes them and not the program.
    A::augment_args(command).about(about).long_about(None)
}

/// Whether the command, or the one within it, was asked for JSON.
fn wants_json(matches: &ArgMatches) -> bool {
    let asked = matches.try_get_one::<bool>("json");
    let asked = asked.ok().flatten().is_some_and(|&asked| asked);
    asked
        || matches
            .subcommand()
            .is_some_and(|(_, inner)| wants_json(inner))
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

#[cfg(test)]
mod tests {
    use super::*;
    use tensora::Error;

    #[test]
    fn only_our_own_output_breaks_silently() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&pipe().into()));
        assert!(is_broken_pipe(&serde_json::Error::io(pipe()).into()));
        let file = Error::io("read", "fifo".as_ref(), pipe());
        assert!(!is_broken_pipe(&file.into()));
    }
}
