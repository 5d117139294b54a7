//! Connections of clients: accepted, bounded in number and time, and served.
//!
//! ```text
//!   accept -> place -> TLS handshake -> head of a request -> reply -> next head, or end
//!             |       `------- Limits::head --------------'|         |
//!             |                               Limits::request        Limits::idle
//!             `-- displaced: another client needs the place more
//! ```
//!
//! Any client that reaches the port may open connections and send slowly or nothing. So each
//! connection has a deadline at any time, and [`Places`] shares them out by client.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt;
use tracing::{debug, warn};

use crate::metrics::{Closed, Metrics};
use crate::places::{Client, Place, Places};
use crate::tls::Identity;

/// Largest head of a request, in bytes; kube-scheduler's have some 200.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// Time for pending requests after SIGTERM.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// What clients may use.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Open connections of all clients.
    pub connections: usize,
    /// Requests of all clients at a time that may have a large body or a large reply.
    pub large_requests: usize,
    /// Largest body, in bytes.
    pub body_bytes: usize,
    /// Time for the TLS handshake and the first head.
    pub head: Duration,
    /// Time for a body.
    pub body: Duration,
    /// Time from a head to the reply.
    pub request: Duration,
    /// Time from a reply to the next head. Go's clients keep idle connections for 90 s: if the
    /// server closed first, it could meet a request.
    pub idle: Duration,
}

impl Limits {
    /// Returns the limits for schedulers that send names of nodes, or whole nodes.
    pub(crate) fn new(whole_nodes: bool) -> Self {
        // A pod has at most 3 MiB at the API server, and 5,000 names 1.3 MB. 5,000 whole nodes are
        // some 100 MB.
        let (large_requests, body_bytes) = if whole_nodes { (2, 128 << 20) } else { (8, 4 << 20) };
        Self {
            connections: 256,
            large_requests,
            body_bytes,
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            request: Duration::from_secs(60),
            idle: Duration::from_secs(120),
        }
    }
}

/// A connection, as its requests see it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    client: Client,
    is_authorized: bool,
    displaced: Arc<Notify>,
    deadline: Arc<watch::Sender<Instant>>,
}

impl Connection {
    fn new(address: IpAddr, limits: &Limits) -> Self {
        let deadline = Arc::new(watch::Sender::new(Instant::now() + limits.head));
        let client = Client { address: address.to_canonical(), has_certificate: false };
        Self { client, is_authorized: true, displaced: Arc::default(), deadline }
    }

    /// Returns whether its client has shown a certificate, if it must.
    pub(crate) fn is_authorized(&self) -> bool {
        self.is_authorized
    }

    /// Takes a place for the client. The connection is closed if the place is given away.
    pub(crate) fn take(&self, places: &Arc<Places>) -> Place {
        places.take(self.client, Arc::clone(&self.displaced))
    }

    fn expires_in(&self, time: Duration) {
        self.deadline.send_replace(Instant::now() + time);
    }

    /// Returns at the deadline, which requests and replies move.
    async fn expired(&self) {
        let mut deadline = self.deadline.subscribe();
        loop {
            let at = *deadline.borrow_and_update();
            tokio::select! {
                () = sleep_until(at) => return,
                _ = deadline.changed() => {}
            }
        }
    }
}

/// Serves requests until shutdown, then those that are pending.
pub(crate) async fn serve(
    mut listener: TcpListener,
    identity: Option<Arc<Identity>>,
    router: Router,
    limits: Limits,
    metrics: Arc<Metrics>,
    ended: watch::Receiver<bool>,
) {
    let places = Places::new(limits.connections);
    let limits = Arc::new(limits);
    let mut open = JoinSet::new();
    loop {
        let (stream, address) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            Some(_) = open.join_next() => continue,
            () = shutdown(ended.clone()) => break,
        };
        let connection = Connection::new(address.ip(), &limits);
        let accepted = Accepted {
            place: Some(connection.take(&places)),
            places: Arc::clone(&places),
            connection,
            identity: identity.clone(),
            router: router.clone(),
            limits: Arc::clone(&limits),
            ended: ended.clone(),
        };
        let metrics = Arc::clone(&metrics);
        open.spawn(async move {
            if let Some(reason) = accepted.converse(stream, address).await {
                debug!(%address, ?reason, "closed a connection");
                metrics.closed(reason);
            }
        });
    }
    drop(listener);
    let rest = async { while open.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, rest).await.is_err() {
        warn!("some pending requests were not answered");
    }
}

async fn shutdown(mut ended: watch::Receiver<bool>) {
    // The sender lives as long as the process.
    let _ = ended.wait_for(|ended| *ended).await;
}

/// An accepted connection, and what serves it.
struct Accepted {
    connection: Connection,
    places: Arc<Places>,
    place: Option<Place>,
    identity: Option<Arc<Identity>>,
    router: Router,
    limits: Arc<Limits>,
    ended: watch::Receiver<bool>,
}

impl Accepted {
    /// Serves the connection. Returns why it was closed before the client was done.
    async fn converse(mut self, stream: TcpStream, address: SocketAddr) -> Option<Closed> {
        // Replies are written in one piece, so a delay to merge them gains nothing.
        let _ = stream.set_nodelay(true);
        let connection = self.connection.clone();
        let serving = async {
            match self.identity.clone() {
                None => self.serve(stream).await,
                Some(identity) => match identity.acceptor().accept(stream).await {
                    Ok(stream) => {
                        self.identify(&identity, stream.get_ref().1);
                        self.serve(stream).await;
                    }
                    Err(error) => debug!(%address, %error, "the TLS handshake failed"),
                },
            }
        };
        tokio::select! {
            () = serving => None,
            () = connection.displaced.notified() => Some(Closed::Displaced),
            () = connection.expired() => Some(Closed::Expired),
        }
    }

    /// Takes the place of a client with a certificate, if it has shown one.
    fn identify(&mut self, identity: &Identity, tls: &ServerConnection) {
        self.connection.is_authorized = identity.has_authorized(tls);
        self.connection.client.has_certificate = tls.peer_certificates().is_some();
        if self.connection.client.has_certificate {
            // In this order, so that it does not displace itself.
            self.place = None;
            self.place = Some(self.connection.take(&self.places));
        }
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| self.reply(request));
        let http = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            // The deadline covers heads.
            .header_read_timeout(None)
            // Replies are kept in one piece, with their place, until they are written.
            .writev(true)
            .serve_connection(TokioIo::new(stream), service);
        let mut http = pin!(http);
        let served = tokio::select! {
            served = http.as_mut() => served,
            () = shutdown(self.ended.clone()) => {
                http.as_mut().graceful_shutdown();
                http.await
            }
        };
        if let Err(error) = served {
            debug!(%error, "a connection broke");
        }
    }

    async fn reply(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        self.connection.expires_in(self.limits.request);
        request.extensions_mut().insert(self.connection.clone());
        let reply = self.router.clone().oneshot(request.map(Body::new)).await;
        self.connection.expires_in(self.limits.idle);
        reply
    }
}

#[cfg(test)]
mod tests;
