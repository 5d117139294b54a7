//! Paths and their handlers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::SharedState;
use super::faults::FaultAction;
use super::journal::Request;
use super::patch;
use super::selector::Selector;
use super::store::{Key, Store};
use super::watches::{self, Watch};

type Answer = Result<(u16, Value), Refusal>;

/// The content of the real server's Status object.
struct Refusal {
    code: u16,
    reason: &'static str,
    message: String,
}

#[derive(Debug)]
struct Target {
    plural: String,
    namespace: String,
    name: String,
    part: String,
}

pub(crate) fn router(state: Arc<SharedState>) -> Router {
    Router::new().fallback(answer).with_state(state)
}

async fn answer(
    State(state): State<Arc<SharedState>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let query = uri.query().unwrap_or_default();
    let whole = format!("{}?{query}", uri.path());
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let entry = {
        let mut journal = state.journal();
        let (method, path) = (method.to_string(), uri.path().to_owned());
        journal.push(Request {
            method,
            path,
            query: query.to_owned(),
            body: body.clone(),
            status: 0,
        });
        journal.len() - 1
    };
    let action = state.faults().of(method.as_str(), &whole);
    let result = match &action {
        Some(FaultAction::Disconnect) => return disconnect(),
        Some(FaultAction::Refuse(code, reason)) => {
            Err(Refusal { code: *code, reason, message: format!("{reason}, as requested") })
        }
        other => {
            if let Some(FaultAction::Wait(time)) = other {
                tokio::time::sleep(*time).await;
            }
            let parameters = parameters(query);
            match serve(&state, &method, uri.path(), &parameters, &headers, &body) {
                Ok(Served::Watch(watch)) => {
                    state.journal()[entry].status = 200;
                    return reply(200, watches::body(&state, watch));
                }
                Ok(Served::Object(code, object)) => Ok((code, object)),
                Err(refusal) => Err(refusal),
            }
        }
    };
    if action == Some(FaultAction::DoAndDisconnect) {
        return disconnect();
    }
    let (code, object) = result.unwrap_or_else(|refusal| {
        let Refusal { code, reason, message } = refusal;
        (
            code,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": reason, "code": code}),
        )
    });
    state.journal()[entry].status = code;
    let text = object.to_string();
    state.count(text.len());
    reply(code, Body::from(text))
}

fn reply(code: u16, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).expect("a number of HTTP's");
    response.headers_mut().insert("content-type", "application/json".parse().expect("a header"));
    response
}

fn disconnect() -> Response {
    let error = std::io::Error::other("the connection broke");
    reply(200, Body::from_stream(futures_util::stream::iter([Err::<Bytes, _>(error)])))
}

fn parameters(query: &str) -> BTreeMap<String, String> {
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

enum Served {
    Object(u16, Value),
    Watch(Watch),
}

fn serve(
    state: &Arc<SharedState>,
    method: &Method,
    path: &str,
    parameters: &BTreeMap<String, String>,
    headers: &HeaderMap,
    body: &Value,
) -> Result<Served, Refusal> {
    if path == "/version" {
        return Ok(Served::Object(
            200,
            json!({"major": "1", "minor": "36", "gitVersion": "v1.36.2"}),
        ));
    }
    let target = Target::of(path)?;
    if target.name.is_empty() && method == Method::GET {
        if parameters.get("watch").is_some_and(|value| value == "true" || value == "1") {
            return target.watch(state, parameters).map(Served::Watch);
        }
        return target.list(&mut state.store(), parameters).map(|list| Served::Object(200, list));
    }
    let answer: Answer = state.write(|store| match (method.as_str(), target.part.as_str()) {
        ("GET", "" | "status") => target.known(store).map(|object| (200, object)),
        ("POST", "") => target.create(store, body),
        ("POST", "binding") => target.bind(store, body),
        ("PATCH", "" | "status") => target.patch(store, headers, body),
        ("PUT", "" | "status") => target.replace(store, body),
        ("DELETE", "") => store
            .remove(&target.key())
            .map(|object| (200, object))
            .ok_or_else(|| target.not_found()),
        _ => Err(refusal(
            405,
            "MethodNotAllowed",
            "the server does not allow this method".to_owned(),
        )),
    });
    answer.map(|(code, object)| Served::Object(code, object))
}

fn refusal(code: u16, reason: &'static str, message: String) -> Refusal {
    Refusal { code, reason, message }
}

impl Target {
    fn of(path: &str) -> Result<Self, Refusal> {
        let decoded = |part: &str| {
            // A path segment is escaped like a query, except for `+`, which no name contains.
            form_urlencoded::parse(part.as_bytes()).next().map(|(name, _)| name.into_owned())
        };
        let parts: Vec<String> =
            path.split('/').filter(|part| !part.is_empty()).filter_map(decoded).collect();
        let texts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let rest = match texts.as_slice() {
            ["api", "v1", rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, part) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, part] => (*plural, *name, *part),
            _ => return Err(refusal(404, "NotFound", format!("the server could not find {path}"))),
        };
        let text = str::to_owned;
        Ok(Self {
            plural: text(plural),
            namespace: text(namespace),
            name: text(name),
            part: text(part),
        })
    }

    fn key(&self) -> Key {
        Key::new(&self.plural, &self.namespace, &self.name)
    }

    fn not_found(&self) -> Refusal {
        refusal(404, "NotFound", format!("{} \"{}\" not found", self.plural, self.name))
    }

    fn conflict(&self, why: &str) -> Refusal {
        let message =
            format!("Operation cannot be fulfilled on {} \"{}\": {why}", self.plural, self.name);
        refusal(409, "Conflict", message)
    }

    fn known(&self, store: &Store) -> Result<Value, Refusal> {
        store.get(&self.key()).map(|object| Value::clone(&object)).ok_or_else(|| self.not_found())
    }

    fn selector(parameters: &BTreeMap<String, String>) -> Result<Selector, Refusal> {
        let text = |name: &str| parameters.get(name).map_or("", String::as_str);
        Selector::parse(text("fieldSelector"), text("labelSelector"))
            .map_err(|message| refusal(400, "BadRequest", message))
    }

    fn list(
        &self,
        store: &mut Store,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Value, Refusal> {
        let limit =
            parameters.get("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX).max(1);
        let (version, mut rest) = match parameters.get("continue").filter(|token| !token.is_empty())
        {
            Some(token) => {
                let token: u64 = token.parse().unwrap_or(0);
                let gone = || {
                    refusal(410, "Expired", "the provided continue parameter is too old".to_owned())
                };
                store.snapshots.remove(&token).ok_or_else(gone)?
            }
            None => {
                let selector = Self::selector(parameters)?;
                let here = |object: &&Arc<Value>| {
                    (self.namespace.is_empty()
                        || object["metadata"]["namespace"] == self.namespace.as_str())
                        && selector.fits(object)
                };
                let found = match selector.node().filter(|_| self.plural == "pods") {
                    Some(node) => store.on_node(node).filter(here).cloned().collect(),
                    None => store.all(&self.plural).filter(here).cloned().collect(),
                };
                (store.version(), found)
            }
        };
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if rest.len() > limit {
            let next = rest.split_off(limit);
            metadata["remainingItemCount"] = json!(next.len());
            let token = store.snapshots.keys().next_back().map_or(1, |last| last + 1);
            store.snapshots.insert(token, (version, next));
            metadata["continue"] = json!(token.to_string());
        }
        let items: Vec<&Value> = rest.iter().map(AsRef::as_ref).collect();
        Ok(json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}))
    }

    fn watch(
        &self,
        state: &Arc<SharedState>,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Watch, Refusal> {
        let text = |name: &str| parameters.get(name).map_or("", String::as_str);
        let version = match text("resourceVersion") {
            // The real server would send the existing objects first. Our programs list before they
            // watch.
            "" | "0" => {
                let message = "a watch without a version is not emulated".to_owned();
                return Err(refusal(400, "BadRequest", message));
            }
            version => {
                version.parse().map_err(|_| refusal(400, "BadRequest", "no version".to_owned()))?
            }
        };
        let seconds = text("timeoutSeconds").parse().unwrap_or(1800);
        // A delayed watch must not hold the lock.
        drop(state.store());
        Ok(Watch {
            plural: self.plural.clone(),
            namespace: self.namespace.clone(),
            selector: Self::selector(parameters)?,
            version,
            bookmarks: text("allowWatchBookmarks") == "true",
            until: Instant::now() + Duration::from_secs(seconds),
        })
    }

    fn create(&self, store: &mut Store, body: &Value) -> Answer {
        let mut object = body.clone();
        if !self.namespace.is_empty() {
            object["metadata"]["namespace"] = json!(self.namespace);
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            return Err(refusal(422, "Invalid", "metadata.name: Required value".to_owned()));
        }
        if store.get(&Key::new(&self.plural, &self.namespace, name)).is_some() {
            let message = format!("{} \"{name}\" already exists", self.plural);
            return Err(refusal(409, "AlreadyExists", message));
        }
        Ok((201, store.put(&self.plural, object)))
    }

    fn check(&self, known: &Value, wanted: &Value) -> Result<(), Refusal> {
        for (field, why) in [
            (
                "resourceVersion",
                "the object has been modified; please apply your changes to the latest version and try again",
            ),
            ("uid", "Precondition failed: UID in precondition is not the object's"),
        ] {
            let wanted = wanted["metadata"][field].as_str().unwrap_or_default();
            if !wanted.is_empty() && known["metadata"][field] != wanted {
                return Err(self.conflict(why));
            }
        }
        Ok(())
    }

    fn patch(&self, store: &mut Store, headers: &HeaderMap, body: &Value) -> Answer {
        let known = self.known(store)?;
        self.check(&known, body)?;
        let kind =
            headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let apply = match kind {
            "application/merge-patch+json" => patch::merge,
            "application/strategic-merge-patch+json" => patch::strategic,
            "application/apply-patch+yaml" if self.plural == "resourceclaims" => patch::apply,
            other => {
                return Err(refusal(
                    415,
                    "UnsupportedMediaType",
                    format!("patches of {other} are not emulated"),
                ));
            }
        };
        let mut new = known.clone();
        apply(&mut new, body);
        self.keep(store, &known, new)
    }

    fn replace(&self, store: &mut Store, body: &Value) -> Answer {
        let known = self.known(store)?;
        self.check(&known, body)?;
        self.keep(store, &known, body.clone())
    }

    /// Stores an object. Where the status is a subresource, neither changes with the other.
    fn keep(&self, store: &mut Store, known: &Value, mut new: Value) -> Answer {
        if self.part == "status" {
            let status = new["status"].take();
            new = known.clone();
            new["status"] = status;
        } else if matches!(self.plural.as_str(), "pods" | "nodes") {
            if known["status"].is_null() {
                new.as_object_mut().map(|object| object.remove("status"));
            } else {
                new["status"] = known["status"].clone();
            }
        }
        let new =
            store.edit(&self.key(), |object| *object = new).ok_or_else(|| self.not_found())?;
        Ok((200, new))
    }

    fn bind(&self, store: &mut Store, body: &Value) -> Answer {
        let known = self.known(store)?;
        self.check(&known, body)?;
        let node = body["target"]["name"].as_str().unwrap_or_default();
        let there = known["spec"]["nodeName"].as_str().unwrap_or_default();
        if !there.is_empty() {
            return Err(self
                .conflict(&format!("pod {} is already assigned to node \"{there}\"", self.name)));
        }
        if !known["metadata"]["deletionTimestamp"].is_null() {
            return Err(self.conflict(&format!(
                "pod {} is being deleted, cannot be assigned to a host",
                self.name
            )));
        }
        store.edit(&self.key(), |pod| {
            pod["spec"]["nodeName"] = json!(node);
            patch::strategic(
                &mut pod["status"],
                &json!({"conditions": [{"type": "PodScheduled", "status": "True"}]}),
            );
        });
        Ok((
            201,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        ))
    }
}
