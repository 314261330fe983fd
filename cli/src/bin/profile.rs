//! The program `profile`.

fn main() -> std::process::ExitCode {
    tensora_cli::profile()
}
