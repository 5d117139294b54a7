//! The leader, and requests that are passed on to it.
//!
//! ```text
//!   request --> the leader: answers
//!           `-> another replica -- once, within the call's time --> the leader
//!                               `- no leader, or no reply: an error, and the connection is closed
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use cgpu_kubernetes_client::Leadership;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::routes::{CLOSE, JSON};
use crate::tls::Identity;

/// Header of a request that another replica has passed on. It is not passed on again.
const PASSED_ON: HeaderName = HeaderName::from_static("cgpu-passed-on");

/// Largest reply of the leader: reasons for all nodes, or whole nodes.
const MAX_REPLY_BYTES: usize = 256 << 20;

/// Which replica answers a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answerer {
    /// This one: it leads.
    This,
    /// The leader, at this address.
    Leader(SocketAddr),
    /// None, for this reason.
    None(String),
}

/// The leader's reply.
#[derive(Debug)]
pub(crate) struct LeaderReply {
    pub status: StatusCode,
    pub is_json: bool,
    /// Whether it closes the connection: it does not lead any more, or ends.
    pub closes: bool,
    pub text: String,
}

/// The replicas, as this one sees them.
pub(crate) struct Replicas {
    leadership: watch::Receiver<Leadership>,
    identity: Option<Arc<Identity>>,
    /// Time for the leader's reply.
    timeout: Duration,
    /// Whether it was ever known which replica leads.
    was_known: AtomicBool,
}

impl Replicas {
    /// `call_timeout` is the time after which kube-scheduler gives up a call.
    pub(crate) fn new(
        leadership: watch::Receiver<Leadership>,
        identity: Option<Arc<Identity>>,
        call_timeout: Duration,
    ) -> Self {
        // An error must arrive before kube-scheduler gives up.
        let timeout = call_timeout.mul_f64(0.8);
        Self { leadership, identity, timeout, was_known: AtomicBool::new(false) }
    }

    /// Returns whether it is known, or was, which replica leads.
    pub(crate) fn has_known_leader(&self) -> bool {
        let is_known = *self.leadership.borrow() != Leadership::Unknown;
        self.was_known.fetch_or(is_known, Ordering::Relaxed) || is_known
    }

    /// Returns which replica answers a request with these headers.
    pub(crate) fn answerer(&self, headers: &HeaderMap) -> Answerer {
        match &*self.leadership.borrow() {
            Leadership::Own => Answerer::This,
            _ if headers.contains_key(PASSED_ON) => {
                Answerer::None("this replica does not lead any more; try again".to_owned())
            }
            Leadership::Other(address) => match address.parse() {
                Ok(address) => Answerer::Leader(address),
                Err(_) => Answerer::None(format!(
                    "the leader's address `{}` is invalid: set --advertise-address",
                    address.escape_default()
                )),
            },
            Leadership::Unknown => Answerer::None("no replica leads now; try again".to_owned()),
        }
    }

    /// Passes a request on to the leader and returns its reply.
    pub(crate) async fn pass_on(
        &self,
        leader: SocketAddr,
        path: &str,
        body: &[u8],
    ) -> Result<LeaderReply, String> {
        let fails = |error: &dyn fmt::Display| format!("the leader at {leader} {error}");
        match timeout(self.timeout, self.exchange(leader, path, body)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(fails(&format!("cannot be reached: {error:#}"))),
            Err(_) => Err(fails(&format!("did not answer within {:?}", self.timeout))),
        }
    }

    async fn exchange(
        &self,
        leader: SocketAddr,
        path: &str,
        body: &[u8],
    ) -> anyhow::Result<LeaderReply> {
        let request = Request::post(path)
            .header(header::HOST, leader.to_string())
            .header(header::CONTENT_TYPE, JSON)
            .header(PASSED_ON, HeaderValue::from_static("true"))
            .body(Full::new(Bytes::copy_from_slice(body)))?;
        let stream = TcpStream::connect(leader).await?;
        stream.set_nodelay(true)?;
        match &self.identity {
            None => converse(stream, request).await,
            Some(identity) => {
                let name = ServerName::from(leader.ip());
                let stream = identity.connector().connect(name, stream).await?;
                converse(stream, request).await
            }
        }
    }
}

/// Sends a request over a connection of its own.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<LeaderReply> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with this function, even if that is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_REPLY_BYTES).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
    Ok(LeaderReply {
        status: head.status,
        is_json: head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == JSON),
        closes: head.headers.get(header::CONNECTION).is_some_and(|option| option == CLOSE),
        text: String::from_utf8(body.into())?,
    })
}
