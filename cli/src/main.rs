//! `cgpu`; see the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    cgpu_cli::main()
}
