//! The HTTP endpoint: `GET /metrics` in the OpenMetrics text format, and the web page with its data
//! (`page`).
//!
//! It runs on a thread of its own, as a client of the control socket like any other, so the daemon
//! never waits for it. What it has read is served again for [`CACHE_TIME`]: many clients cost the
//! daemon no more than one. `docs/monitoring.md` lists the families and the resources.
//!
//! | module | what it is |
//! |---|---|
//! | [`families`] | one table: name, kind, unit, help, and how each is read from a status |
//! | `exposition` | renders the table and a status as text |
//! | `http` | connections: how many, and for how long |
//! | `resources` | what a request gets: the resources, who may read the page, headers |

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cgpu_client::connection::Client;
use cgpu_client::message::Status;
use hyper::body::Bytes;

use crate::page::{self, history::History};
use resources::{Resource, Site};

mod exposition;
pub mod families;
mod http;
mod own;
mod resources;

/// How long what was read is served again.
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
    /// Who gets the web page.
    pub page: PageAccess,
}

/// Which clients get the web page and its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageAccess {
    /// None.
    Off,
    /// Those that connect from this host to a loopback address.
    #[default]
    Loopback,
    /// All that reach the endpoint.
    Network,
}

/// Serves metrics and the page until the process ends. The monitor's socket is at `socket`. A port
/// that is in use is tried again until it is free.
///
/// # Errors
/// When no thread can be created.
pub(crate) fn serve(endpoint: Endpoint, socket: PathBuf) -> std::io::Result<()> {
    thread::Builder::new().name("metrics".into()).spawn(move || run(&endpoint, socket))?;
    Ok(())
}

fn run(endpoint: &Endpoint, socket: PathBuf) {
    let listener = listen(endpoint);
    let source = Source {
        socket,
        client: None,
        hami: endpoint.hami,
        status: None,
        bodies: BTreeMap::new(),
        history: History::default(),
    };
    if let Err(error) = http::serve(listener, endpoint.page, source) {
        tracing::warn!("metrics are no longer served: {error}");
    }
}

fn listen(endpoint: &Endpoint) -> TcpListener {
    let at = endpoint.listen;
    let mut logged = false;
    loop {
        match TcpListener::bind(at) {
            Ok(listener) => {
                tracing::info!("serving metrics at http://{at}/metrics");
                if endpoint.page != PageAccess::Off {
                    tracing::info!("serving the web page at http://{at}/");
                }
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

/// Reads from the daemon, and renders what clients get, each at most once per [`CACHE_TIME`].
struct Source {
    socket: PathBuf,
    client: Option<Client>,
    hami: bool,
    /// The last status, and when it was read.
    status: Option<(Instant, Status)>,
    /// What was rendered, and when.
    bodies: BTreeMap<Resource, (Instant, Bytes)>,
    history: History,
}

impl Source {
    /// Sends a request on a connection that is kept while it works. None: the daemon does not
    /// answer.
    fn request<T>(
        &mut self,
        request: impl FnOnce(&mut Client) -> Result<T, cgpu_client::connection::Failure>,
    ) -> Option<T> {
        let mut client = self.client.take().or_else(|| Client::connect(&self.socket).ok())?;
        let reply = request(&mut client).ok()?;
        self.client = Some(client);
        Some(reply)
    }

    fn status(&mut self) -> Option<&Status> {
        if self.status.as_ref().is_none_or(|(at, _)| at.elapsed() >= CACHE_TIME) {
            self.status = None;
            let status = self.request(Client::status)?;
            self.status = Some((Instant::now(), status));
        }
        self.status.as_ref().map(|(_, status)| status)
    }

    fn render(&mut self, resource: Resource) -> Option<String> {
        let hami = self.hami;
        match resource {
            Resource::Metrics => exposition::text(self.status()?, &own::Usage::read(), hami),
            Resource::Page => Some(page::HTML.to_owned()),
            Resource::Status => page::status(self.status()?.clone()),
            Resource::Turns => page::turns(self.request(Client::turns)?),
            Resource::Findings => Some(page::findings(self.status()?)),
            Resource::History => self.history.json(),
        }
    }
}

impl Site for Source {
    fn body(&mut self, resource: Resource) -> Option<Bytes> {
        let kept = self.bodies.get(&resource).filter(|(at, _)| at.elapsed() < CACHE_TIME);
        if let Some((_, body)) = kept {
            return Some(body.clone());
        }
        self.bodies.remove(&resource);
        let body = Bytes::from(self.render(resource)?);
        self.bodies.insert(resource, (Instant::now(), body.clone()));
        Some(body)
    }

    fn sample(&mut self) {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.status = None;
        if self.status().is_some()
            && let Some((_, status)) = &self.status
        {
            self.history.add(time.as_secs(), status);
        }
    }
}
