//! HTTP paths and bodies. The core makes the replies ([`cgpu_kubernetes_core::extender`]).

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::get;
use cgpu_kubernetes_core::extender::{self, Binding, Bound, Call, Candidates, Filtered};
use cgpu_kubernetes_core::gpus::Placement;
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::pod_request::PodRequest;
use serde_json::to_string;
use tracing::{debug, trace, warn};

use crate::binder::{BindError, Binder};
use crate::cache::ClusterCache;
use crate::events::{self, EventRecorder};
use crate::metrics::{Metrics, Outcome};

/// Maximum size of a body in bytes: 5,000 whole nodes, from a scheduler that is not configured to
/// send names (`nodeCacheCapable`).
const MAX_BODY_BYTES: usize = 128 << 20;

pub(crate) struct Handlers {
    pub cache: Arc<ClusterCache>,
    pub binder: Binder,
    pub events: Arc<EventRecorder>,
    pub metrics: Arc<Metrics>,
    pub placement: Placement,
}

pub(crate) fn router(handlers: Arc<Handlers>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(call)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(handlers)
}

async fn ready(State(handlers): State<Arc<Handlers>>) -> (StatusCode, String) {
    match handlers.cache.unready_reason() {
        None => (StatusCode::OK, "ok".to_owned()),
        Some(error) => (StatusCode::SERVICE_UNAVAILABLE, error),
    }
}

async fn metrics(State(handlers): State<Arc<Handlers>>) -> Response {
    handlers.metrics.count_objects(&handlers.cache.read());
    answer(
        StatusCode::OK,
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        handlers.metrics.text(),
    )
}

async fn call(
    State(handlers): State<Arc<Handlers>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let started = Instant::now();
    let Some(call) = Call::of(method.as_str(), uri.path()) else {
        let others = ["GET", "POST"].into_iter().any(|other| Call::of(other, uri.path()).is_some());
        let status = if others { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::NOT_FOUND };
        return answer(status, "text/plain", format!("no {method} {}\n", uri.path()));
    };
    // Shows what a scheduler sends.
    trace!(path = uri.path(), body = %String::from_utf8_lossy(&body), "request");
    let (verb, response) = match call {
        Call::Version => {
            return answer(StatusCode::OK, "text/plain", extender::version().to_owned());
        }
        Call::Filter => ("filter", handlers.filter(&body)),
        Call::Prioritize => ("prioritize", handlers.prioritize(&body)),
        Call::Inspect(node) => ("inspect", handlers.inspect(node)),
        Call::Bind => {
            // A binding completes even if the client disconnects.
            let task = Arc::clone(&handlers);
            let bound = tokio::spawn(async move { task.bind(&body).await }).await;
            ("bind", bound.unwrap_or_else(|error| refused(format!("the binding failed: {error}"))))
        }
    };
    handlers.metrics.took(verb, started.elapsed());
    response
}

impl Handlers {
    fn filter(&self, body: &[u8]) -> Response {
        let fails = |error: String| json(&Filtered { error, ..Filtered::default() });
        let candidates: Candidates = match extender::decode(body) {
            Ok(candidates) => candidates,
            Err(refusal) => return fails(refusal.to_string()),
        };
        if !self.cache.is_listed() {
            return fails("the cluster has not been listed yet; try again".to_owned());
        }
        if let Some(pod) = &candidates.pod {
            self.report_request(pod);
        }
        let filtered = extender::filter(&self.cache.read(), &candidates);
        json(&filtered)
    }

    fn prioritize(&self, body: &[u8]) -> Response {
        match extender::decode::<Candidates>(body) {
            Ok(candidates) => {
                json(&extender::prioritize(&self.cache.read(), &candidates, self.placement))
            }
            Err(refusal) => answer(StatusCode::BAD_REQUEST, "text/plain", refusal.to_string()),
        }
    }

    fn inspect(&self, node: Option<&str>) -> Response {
        json(&extender::inspect(&self.cache.read(), node))
    }

    async fn bind(&self, body: &[u8]) -> Response {
        let binding: Binding = match extender::decode(body) {
            Ok(binding) => binding,
            Err(refusal) => return refused(refusal.to_string()),
        };
        let error = match self.binder.bind(&binding).await {
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
        let pod = format!("{}/{}", binding.pod_namespace, binding.pod_name);
        warn!(pod, node = binding.node, %error, "not bound");
        // kube-scheduler reports only the status of the reply, not its text.
        let known = self.cache.read().pod(&binding.pod_uid).cloned();
        if let Some(pod_request) = known {
            let message = format!("on node `{}`: {error}", binding.node);
            self.events.warn(&pod_request, events::NOT_BOUND, &message);
        }
        refused(error.to_string())
    }

    /// Reports an invalid request or ignored labels as events on the pod.
    fn report_request(&self, pod: &Pod) {
        let dialects = self.cache.read().dialects();
        let Some(pod_request) = PodRequest::of(pod, dialects) else { return };
        match pod_request.resource_request() {
            Err(refusal) => {
                debug!(pod = pod_request.title(), %refusal, "refused");
                self.events.warn(&pod_request, events::REFUSED, refusal.message());
            }
            Ok(request) => {
                for note in &request.notes {
                    self.events.note(&pod_request, events::LABEL_IGNORED, note);
                }
            }
        }
    }
}

/// Returns gpushare's reply for a pod that was not bound.
fn refused(error: String) -> Response {
    let mut response = json(&Bound { error });
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

fn json(value: &impl serde::Serialize) -> Response {
    match to_string(value) {
        Ok(text) => answer(StatusCode::OK, "application/json", text),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", error.to_string()),
    }
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
