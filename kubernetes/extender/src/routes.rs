//! HTTP paths and bodies. The core makes the replies ([`cgpu_kubernetes_core::extender`]).

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use cgpu_kubernetes_client::{Api, Failure, List, Query};
use cgpu_kubernetes_core::budget::Budget;
use cgpu_kubernetes_core::extender::{self, Binding, Bound, Call, Filtered};
use cgpu_kubernetes_core::gpus::Placement;
use cgpu_kubernetes_core::object::is_node_name;
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::preemption;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::to_string;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{trace, warn};

use crate::binder::{BindError, Binder};
use crate::cache::ClusterCache;
use crate::connections::{Connection, Limits};
use crate::events::{self, EventRecorder};
use crate::fragmentation::Fragmentation;
use crate::leader::{Answerer, LeaderReply, Replicas};
use crate::metrics::{Metrics, Outcome};
use crate::places::{Place, Places};
use crate::retry::Retry;

/// Largest body of a binding, in bytes: four names.
const MAX_BINDING_BYTES: usize = 16 << 10;

/// Kinds of replies.
pub(crate) const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
/// Ends a connection after a reply.
pub(crate) const CLOSE: &str = "close";

/// Decisions at a time. Each may need many times the size of its body.
pub(crate) const MAX_DECISIONS: usize = 2;

pub(crate) struct Handlers {
    pub api: Api,
    pub cache: Arc<ClusterCache>,
    pub binder: Binder,
    pub replicas: Replicas,
    pub fragmentation: Arc<Fragmentation>,
    pub retry: Arc<Retry>,
    pub events: Arc<EventRecorder>,
    pub metrics: Arc<Metrics>,
    pub placement: Placement,
    /// Accept whole nodes.
    pub whole_nodes: bool,
    /// Places of requests that may have a large body or a large reply.
    pub large_requests: Arc<Places>,
    pub decisions: Semaphore,
    pub limits: Limits,
}

pub(crate) fn router(handlers: Arc<Handlers>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(call)
        .with_state(handlers)
}

async fn ready(State(handlers): State<Arc<Handlers>>) -> (StatusCode, String) {
    let unelected = || {
        let unknown = !handlers.replicas.has_known_leader();
        unknown.then(|| "it is not known yet which replica leads".to_owned())
    };
    match handlers.cache.unready_reason().or_else(unelected) {
        None => (StatusCode::OK, "ok".to_owned()),
        Some(error) => (StatusCode::SERVICE_UNAVAILABLE, error),
    }
}

async fn metrics(State(handlers): State<Arc<Handlers>>) -> Reply {
    handlers.metrics.count_objects(&handlers.cache.read());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Reply { status: StatusCode::OK, kind, text: handlers.metrics.text() }
}

async fn call(
    State(handlers): State<Arc<Handlers>>,
    Extension(connection): Extension<Connection>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let started = Instant::now();
    let Some(call) = Call::of(method.as_str(), uri.path()) else {
        let others = ["GET", "POST"].into_iter().any(|other| Call::of(other, uri.path()).is_some());
        let status = if others { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::NOT_FOUND };
        return Reply::text(status, format!("no {method} {}\n", uri.path())).into_response();
    };
    if !connection.is_authorized() {
        let text = "a client certificate is required\n".to_owned();
        return Reply::text(StatusCode::UNAUTHORIZED, text).into_response();
    }
    let (verb, is_large) = match call {
        Call::Version => ("version", false),
        Call::Filter => ("filter", true),
        Call::Prioritize => ("prioritize", true),
        Call::Preempt => ("preempt", true),
        Call::Inspect(_) => ("inspect", true),
        Call::Bind => ("bind", false),
    };
    let place = is_large.then(|| connection.take(&handlers.large_requests));
    let limit = if is_large { handlers.limits.body_bytes } else { MAX_BINDING_BYTES };
    let body = match timeout(handlers.limits.body, read(body, limit)).await {
        Ok(Ok(body)) => body,
        Ok(Err(reply)) => return reply.into_response(),
        Err(_) => {
            let limit = handlers.limits.body.as_secs();
            let text = format!("the body did not arrive within {limit} s\n");
            return Reply::text(StatusCode::REQUEST_TIMEOUT, text).into_response();
        }
    };
    // Shows what a scheduler sends.
    trace!(path = uri.path(), body = %String::from_utf8_lossy(&body), "request");
    let is_for_leader = match call {
        // Without a list it says so.
        Call::Filter => handlers.cache.is_listed(),
        Call::Prioritize | Call::Preempt | Call::Bind => true,
        Call::Version | Call::Inspect(_) => false,
    };
    if is_for_leader {
        let passed_on = match handlers.replicas.answerer(&headers) {
            Answerer::This => None,
            Answerer::None(reason) => Some(Err(reason)),
            Answerer::Leader(address) => {
                handlers.metrics.passed_on();
                Some(handlers.replicas.pass_on(address, uri.path(), &body).await)
            }
        };
        if let Some(reply) = passed_on {
            handlers.metrics.took(verb, started.elapsed());
            return match reply {
                Ok(LeaderReply { status, is_json, closes, text }) => {
                    let kind = if is_json { JSON } else { TEXT };
                    let response = Reply { status, kind, text }.keeping(place);
                    if closes { closing(response) } else { response }
                }
                Err(error) => unanswered(call, error),
            };
        }
    }
    let budgets = match call {
        Call::Preempt => handlers.api.list_each::<Budget, _>(&Query::all(), |budget| budget).await,
        _ => Ok(List { items: Vec::new(), version: String::new() }),
    };
    // Held until the reply is made. The semaphore is never closed.
    let _decision = if is_large { handlers.decisions.acquire().await.ok() } else { None };
    let reply = match call {
        Call::Version => Reply::text(StatusCode::OK, extender::version().to_owned()),
        Call::Filter => handlers.filter(&body),
        Call::Prioritize => handlers.prioritize(&body),
        Call::Preempt => handlers.preempt(&body, budgets.map(|list| list.items)),
        Call::Inspect(node) => handlers.inspect(node),
        Call::Bind => {
            // A binding completes even if the client disconnects.
            let task = Arc::clone(&handlers);
            let bound = tokio::spawn(async move { task.bind(&body).await }).await;
            bound.unwrap_or_else(|error| refused(format!("the binding failed: {error}")))
        }
    };
    handlers.metrics.took(verb, started.elapsed());
    reply.keeping(place)
}

/// Reads a body of at most `limit` bytes.
async fn read(body: Body, limit: usize) -> Result<Vec<u8>, Reply> {
    let announced = body.size_hint().lower();
    // Memory that is not written is not used.
    let capacity = usize::try_from(announced).unwrap_or(limit).min(limit);
    let (mut body, mut read) = (Limited::new(body, limit), Vec::with_capacity(capacity));
    // Frames are copied: one of a single byte would keep a whole buffer.
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(error) if error.is::<LengthLimitError>() => {
                let text = format!(
                    "the body has more than {limit} bytes; is nodeCacheCapable true in the \
                     scheduler's configuration?\n"
                );
                return Err(Reply::text(StatusCode::PAYLOAD_TOO_LARGE, text));
            }
            Err(error) => {
                let text = format!("the body cannot be read: {error}\n");
                return Err(Reply::text(StatusCode::BAD_REQUEST, text));
            }
        }
    }
    Ok(read)
}

impl Handlers {
    fn filter(&self, body: &[u8]) -> Reply {
        let fails = |error: String| json(&Filtered { error, ..Filtered::default() });
        if !self.cache.is_listed() {
            return fails("the cluster has not been listed yet; try again".to_owned());
        }
        let candidates = extender::candidates(body, self.whole_nodes, &self.cache.read());
        match candidates {
            Ok(candidates) => {
                let filtered = self.cache.filter(&candidates, self.placement);
                self.fragmentation.filtered(&candidates, &filtered);
                self.retry.filtered(&candidates, &filtered);
                json(&filtered)
            }
            Err(refusal) => fails(refusal.to_string()),
        }
    }

    /// Any status but 200 ends the scheduler's attempt, and it evicts nothing.
    fn preempt(&self, body: &[u8], budgets: Result<Vec<Budget>, Failure>) -> Reply {
        if !self.cache.is_listed() {
            let text = "the cluster has not been listed yet; try again\n".to_owned();
            return Reply::text(StatusCode::SERVICE_UNAVAILABLE, text);
        }
        let budgets = match budgets {
            Ok(budgets) => budgets,
            Err(failure) => {
                warn!(%failure, "the disruption budgets cannot be listed: nothing is evicted");
                let text = format!("the disruption budgets cannot be listed: {failure}\n");
                return Reply::text(StatusCode::SERVICE_UNAVAILABLE, text);
            }
        };
        let cluster = self.cache.read();
        let question = match preemption::question(body, &cluster) {
            Ok(question) => question,
            Err(refusal) => return Reply::text(StatusCode::BAD_REQUEST, refusal.to_string()),
        };
        let answer = preemption::preempt(&cluster, &budgets, &question);
        if let Some(pod) = question.pod.filter(|_| !answer.node_name_to_meta_victims.is_empty()) {
            self.fragmentation.preempts(&pod.metadata.uid);
        }
        json(&answer)
    }

    fn prioritize(&self, body: &[u8]) -> Reply {
        let candidates = extender::candidates(body, self.whole_nodes, &self.cache.read());
        match candidates {
            Ok(candidates) => json(&self.cache.prioritize(&candidates, self.placement)),
            Err(refusal) => Reply::text(StatusCode::BAD_REQUEST, refusal.to_string()),
        }
    }

    fn inspect(&self, node: Option<&str>) -> Reply {
        json(&extender::inspect(&self.cache.read(), node))
    }

    async fn bind(&self, body: &[u8]) -> Reply {
        let binding: Binding = match extender::decode(body) {
            Ok(binding) => binding,
            Err(refusal) => return refused(refusal.to_string()),
        };
        let outcome = self.binder.bind(&binding).await;
        // Only of pods that exist, and with what the API server says of them: any client may send a
        // request.
        let (pod, is_node) = {
            let cluster = self.cache.read();
            (cluster.pod(&binding.pod_uid).cloned(), cluster.node(&binding.node).is_some())
        };
        if let Some(pod) = &pod {
            self.events.report_request(pod);
        }
        let error = match outcome {
            Ok(()) => {
                self.metrics.bound(Outcome::Bound);
                return json(&Bound::default());
            }
            Err(error) => error,
        };
        self.metrics.bound(match &error {
            BindError::Refused(_) => Outcome::Refused,
            BindError::Failed(..) => Outcome::Failed,
        });
        let title = format!("{}/{}", binding.pod_namespace, binding.pod_name);
        warn!(pod = title, node = binding.node, %error, "not bound");
        // kube-scheduler reports only the status of the reply, not its text.
        if let Some(pod) = pod.filter(|pod| pod.title() == title) {
            self.report_unbound(&pod, &binding.node, is_node, &error);
        }
        refused(error.to_string())
    }

    /// Reports on a known pod that it was not bound. Of nodes that are not known only one is named
    /// in a while: any client may name some.
    fn report_unbound(&self, pod: &PodRequest, node: &str, is_known: bool, error: &BindError) {
        if is_known {
            self.events.warn(pod, events::NOT_BOUND, &format!("on node `{node}`: {error}"));
        } else if pod.bound.is_none() && is_node_name(node) {
            let message = format!(
                "not bound to node `{node}`, which the extender does not know: it was deleted, or \
                 is new; kube-scheduler tries again"
            );
            self.events.warn_at_times(pod, events::NODE_UNKNOWN, &message);
        }
    }
}

/// A reply, before it is sent.
struct Reply {
    status: StatusCode,
    kind: &'static str,
    text: String,
}

impl Reply {
    fn text(status: StatusCode, text: String) -> Self {
        Self { status, kind: TEXT, text }
    }

    /// Returns the response. It keeps the request's place until it is written.
    fn keeping(self, place: Option<Place>) -> Response {
        let Self { status, kind, text } = self;
        let mut response =
            Response::new(Body::from(Bytes::from_owner(Kept { text, _place: place })));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        self.keeping(None)
    }
}

/// The text of a reply, and the place of its request.
struct Kept {
    text: String,
    _place: Option<Place>,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// Returns gpushare's reply for a pod that was not bound.
fn refused(error: String) -> Reply {
    let mut reply = json(&Bound { error });
    reply.status = StatusCode::INTERNAL_SERVER_ERROR;
    reply
}

/// Returns the reply to a request that only the leader can answer, without a leader. It closes the
/// connection, so that the next request may reach another replica.
fn unanswered(call: Call<'_>, error: String) -> Response {
    warn!(?call, error, "not answered");
    let reply = match call {
        Call::Filter => json(&Filtered { error, ..Filtered::default() }),
        Call::Bind => refused(error),
        _ => Reply::text(StatusCode::SERVICE_UNAVAILABLE, error),
    };
    closing(reply.into_response())
}

/// Closes the connection after the reply.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static(CLOSE));
    response
}

fn json(value: &impl serde::Serialize) -> Reply {
    match to_string(value) {
        Ok(text) => Reply { status: StatusCode::OK, kind: JSON, text },
        Err(error) => Reply::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
