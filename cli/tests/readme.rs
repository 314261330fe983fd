//! The commands of the README, as written, in the order in which they stand there.
//!
//! `cargo run --release --bin X --` becomes the program X of this build; `path/to/model` becomes a
//! small sample, and the model id one in a Hub cache of our own. Building and the test command itself
//! are left out, and so are benchmarks and the commands of the Python package, whose tests run the examples.

mod common;

use common::Sandbox;

const README: &str = include_str!("../../README.md");

/// The lines of all `sh` blocks, comments and blank lines left out.
fn commands() -> Vec<&'static str> {
    let mut inside = false;
    let mut commands = Vec::new();
    for line in README.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside && !line.is_empty() && !line.starts_with('#') => commands.push(line),
            _ => {}
        }
    }
    commands
}

#[test]
fn every_offline_command_works_as_written() {
    let sandbox = Sandbox::new();
    sandbox.sample("model", "safetensors");
    sandbox.cached_model("Qwen/Qwen3-0.6B");
    let mut run = 0_u32;
    for line in commands() {
        let Some(rest) = line.strip_prefix("cargo run --release --bin ") else {
            let elsewhere = [
                "./scripts/test.sh",
                "cargo build",
                "cargo bench",
                "export TENSORA_BENCH_MODELS=",
                "./scripts/run_benchmarks.sh",
                "cd bindings/python",
                "uv sync",
                "uv run python examples/",
            ];
            assert!(
                elsewhere.iter().any(|known| line.starts_with(known)),
                "a command that this test does not know: {line}"
            );
            continue;
        };
        let mut words = rest.split_whitespace();
        let program = words.next().unwrap();
        let args: Vec<String> = words
            .skip_while(|&word| word == "--")
            .map(|word| match word {
                "path/to/model" => sandbox.path("model").display().to_string(),
                word => word
                    .replace("/tmp/", &format!("{}/", sandbox.path("").display()))
                    .replace('\'', ""),
            })
            .collect();
        if args.iter().any(|arg| arg == "io-uring") && !io_uring(&sandbox) {
            println!("skipped, io_uring is unavailable here: {line}");
            continue;
        }
        sandbox.run(program, &args);
        run += 1;
    }
    assert!(run >= 10, "only {run} commands were found in the README");
}

fn io_uring(sandbox: &Sandbox) -> bool {
    let text = sandbox.run("profile", &["capabilities", "--format", "shell"]);
    text.contains("TENSORA_IO_URING=1")
}
