//! The program `convert`.

fn main() -> std::process::ExitCode {
    tensora_cli::convert()
}
