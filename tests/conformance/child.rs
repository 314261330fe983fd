//! Tests that change their process (limits, filters, memory peaks) run in one of their own: this
//! binary again, told by a variable which role to play.

use std::ffi::OsStr;
use std::process::{Command, Output};

const ROLE: &str = "TENSORA_CONFORMANCE_ROLE";
const ARGUMENT: &str = "TENSORA_CONFORMANCE_ARGUMENT";

/// Runs `role` in a child with `argument`; the child must end well.
#[track_caller]
pub fn run(role: &str, argument: &str) -> String {
    let output = outcome(role, argument);
    assert!(
        output.status.success(),
        "{role} ({argument}): {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn outcome(role: &str, argument: &str) -> Output {
    under(&[], role, argument).output().unwrap()
}

/// The command that runs `role`, as an argument of the program `wrapper` if there is one.
pub fn under(wrapper: &[&OsStr], role: &str, argument: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().copied().chain([this.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command
        .args(words)
        .args(["--exact", "child::role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ARGUMENT, argument);
    command
}

/// The entry point of children. In the parent, which has no role, there is nothing to do.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let argument = std::env::var(ARGUMENT).unwrap();
    let _dog = crate::support::Watchdog::new(&format!("{role} ({argument})"));
    match role.as_str() {
        "few-descriptors" => crate::limits::few_descriptors(&argument),
        "no-threads-left" => crate::faults::no_threads_left(),
        "truncate" => crate::changes::truncate(&argument),
        "eager-peak" => crate::memory::eager_peak(&argument),
        "stream-peak" => crate::memory::stream_peak(&argument),
        "memory-returns" => crate::memory::memory_returns(&argument),
        "denied" => crate::denied::denied(&argument),
        "count-faults" => crate::counts::count_faults(&argument),
        "count-disk" => crate::counts::count_disk(&argument),
        "count-calls" => crate::counts::count_calls(&argument),
        "no-registered-files" => crate::denied::no_registered_files(&argument),
        "no-locked-memory" => crate::denied::no_locked_memory(),
        other => panic!("no role {other}"),
    }
}
