//! The `skein` program. Everything is in the library; this is only its door.

fn main() -> std::process::ExitCode {
    skein::cli::run()
}
