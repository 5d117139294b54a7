//! The start and end of a program on a node.

use std::fmt::Display;
use std::future::Future;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

/// Runs a program, with its log on stderr, and returns its exit code. `name` is for the message of
/// its failure.
pub async fn run<E: Display>(name: &str, program: impl Future<Output = Result<(), E>>) -> ExitCode {
    // The caller of a failed request logs it; `kube_client` would log it again.
    let filter = EnvFilter::new("info,kube_client=off");
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    log.with_writer(std::io::stderr).with_target(false).init();
    match program.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
