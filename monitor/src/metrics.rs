//! The metrics endpoint: `GET /metrics` in the OpenMetrics text format.
//!
//! A thread of its own that is a client of the control socket like any other: the daemon gives it a status, as it gives `cgpu smi` one, and never
//! waits for it. What was rendered is served again for [`CACHE_TIME`], so that many scrapers cost the turns no more than one. `docs/monitoring.md`
//! lists the families.
//!
//! | module | what it is |
//! |---|---|
//! | [`families`] | one table: name, kind, unit, sentence, and how it is read from a status |
//! | `exposition` | the table and a status become text |
//! | `http` | connections: who may hold one, for how long, and what is answered |

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::connection::Client;

mod exposition;
pub mod families;
mod http;
mod own;

/// A text is served again for so long.
const CACHE_TIME: Duration = Duration::from_millis(500);
/// Interval at which a port in use is tried again.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Where and what is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it listens.
    pub listen: SocketAddr,
    /// HAMi's names as well.
    pub hami: bool,
}

/// Serves until the process ends. The monitor's socket is at `socket`.
///
/// # Errors
/// When no thread can be made. A port that is taken is waited for.
pub(crate) fn serve(endpoint: Endpoint, socket: PathBuf) -> std::io::Result<()> {
    thread::Builder::new().name("metrics".into()).spawn(move || run(&endpoint, socket))?;
    Ok(())
}

fn run(endpoint: &Endpoint, socket: PathBuf) {
    let listener = listen(endpoint.listen);
    let mut writer = MetricsWriter { socket, client: None, hami: endpoint.hami, written: None };
    if let Err(error) = http::serve(listener, move || writer.text()) {
        tracing::warn!("metrics are no longer served: {error}");
    }
}

fn listen(at: SocketAddr) -> TcpListener {
    let mut logged = false;
    loop {
        match TcpListener::bind(at) {
            Ok(listener) => {
                tracing::info!("metrics at http://{at}/metrics");
                return listener;
            }
            Err(error) if !logged => {
                tracing::warn!("metrics are not served at {at} yet: {error}");
                logged = true;
            }
            Err(_) => {}
        }
        thread::sleep(BIND_RETRY_INTERVAL);
    }
}

/// Writes the text, at most every [`CACHE_TIME`].
struct MetricsWriter {
    socket: PathBuf,
    client: Option<Client>,
    hami: bool,
    written: Option<(Instant, String)>,
}

impl MetricsWriter {
    /// None: the daemon does not answer.
    fn text(&mut self) -> Option<String> {
        if self.written.as_ref().is_none_or(|(at, _)| at.elapsed() >= CACHE_TIME) {
            self.written = self.write().map(|text| (Instant::now(), text));
        }
        self.written.as_ref().map(|(_, text)| text.clone())
    }

    fn write(&mut self) -> Option<String> {
        let mut client = self.client.take().or_else(|| Client::connect(&self.socket).ok())?;
        let status = client.status().ok()?;
        self.client = Some(client);
        exposition::text(&status, &own::Usage::read(), self.hami)
    }
}
