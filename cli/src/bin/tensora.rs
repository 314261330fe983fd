//! The program `tensora`.

fn main() -> std::process::ExitCode {
    tensora_cli::tensora()
}
