//! The metrics endpoint: `GET /metrics` in the OpenMetrics text format.
//!
//! It runs on a thread of its own, as a client of the control socket like any other, so the daemon
//! never waits for it. A rendered text is served again for [`CACHE_TIME`]: many scrapers cost the
//! daemon no more than one. `docs/monitoring.md` lists the families.
//!
//! | module | what it is |
//! |---|---|
//! | [`families`] | one table: name, kind, unit, help, and how each is read from a status |
//! | `exposition` | renders the table and a status as text |
//! | `http` | connections: how many, for how long, and what they get |

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::connection::Client;

mod exposition;
pub mod families;
mod http;
mod own;

/// How long a rendered text is served again.
const CACHE_TIME: Duration = Duration::from_millis(500);
/// Interval at which a port in use is tried again.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Configuration of the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address that it listens on.
    pub listen: SocketAddr,
    /// Whether HAMi's names are served as well.
    pub hami: bool,
}

/// Serves metrics until the process ends. The monitor's socket is at `socket`. A port that is in
/// use is tried again until it is free.
///
/// # Errors
/// When no thread can be created.
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
                tracing::info!("serving metrics at http://{at}/metrics");
                return listener;
            }
            Err(error) if !logged => {
                tracing::warn!("cannot serve metrics at {at} yet: {error}; trying again");
                logged = true;
            }
            Err(_) => {}
        }
        thread::sleep(BIND_RETRY_INTERVAL);
    }
}

/// Renders the text, at most once per [`CACHE_TIME`].
struct MetricsWriter {
    socket: PathBuf,
    client: Option<Client>,
    hami: bool,
    written: Option<(Instant, String)>,
}

impl MetricsWriter {
    /// Returns the text. None: the daemon does not answer.
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
