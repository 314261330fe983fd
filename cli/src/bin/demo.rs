//! The program `demo`.

fn main() -> std::process::ExitCode {
    tensora_cli::demo()
}
