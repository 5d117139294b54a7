//! Requests, one by one.

use std::time::Duration;

use cgpu_kubernetes_core::claim::Change;
use cgpu_kubernetes_core::object::Pod;
use http::{Method, Request};
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::query::Query;
use crate::record::{self, Record};

/// Objects of a page: of 50,000 pods no more text is held at a time than of so many.
const PAGE: &str = "500";

/// The API server, as somebody may speak to it. Clones share the connection.
#[derive(Clone)]
pub struct Api {
    client: Client,
    namespace: String,
    timeout: Duration,
}

/// Objects as they were together.
#[derive(Clone, Debug, Default)]
pub struct List<T> {
    /// In no particular order.
    pub items: Vec<T>,
    /// Which version of everything that was. What happens after it is watched from there.
    pub version: String,
}

#[derive(Deserialize)]
struct Page<R> {
    metadata: PageMetadata,
    #[serde(default = "Vec::new")]
    items: Vec<R>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

impl Api {
    /// Over this client, with this namespace where none is said. No answer may take longer than `timeout`.
    #[must_use]
    pub fn new(client: Client, namespace: String, timeout: Duration) -> Self {
        Self { client, namespace, timeout }
    }

    /// The namespace of the context, or of the pod that this runs in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// One of them. The namespace of a node is not looked at.
    ///
    /// # Errors
    /// It is not there, or there is no answer.
    pub async fn get<R: Record>(&self, namespace: &str, name: &str) -> Result<R, Failure> {
        self.send(Method::GET, &record::object::<R>(namespace, name), None).await
    }

    /// All that the query means, as of one version which is not older than the request: `resourceVersion` is never said, so no cache that is behind
    /// may answer. It is asked for in one piece, so that API servers that can find pods by their node need not look at all of them.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn list<R: Record>(&self, query: &Query) -> Result<List<R>, Failure> {
        let page: Page<R> = self.send(Method::GET, &path::<R>(query, &[]), None).await?;
        Ok(List { items: page.items, version: page.metadata.resource_version })
    }

    /// The same page by page, each object made into what is to be kept as soon as it is there.
    ///
    /// # Errors
    /// There is no answer; or it took so long that the API server has forgotten how it began ([`Failure::Gone`]).
    pub async fn list_each<R: Record, T>(
        &self,
        query: &Query,
        mut keep: impl FnMut(R) -> T,
    ) -> Result<List<T>, Failure> {
        let mut all = List { items: Vec::new(), version: String::new() };
        let mut next: Option<String> = None;
        loop {
            let mut parameters = vec![("limit", PAGE)];
            parameters.extend(next.as_deref().map(|next| ("continue", next)));
            let page: Page<R> =
                self.send(Method::GET, &path::<R>(query, &parameters), None).await?;
            all.items.extend(page.items.into_iter().map(&mut keep));
            all.version = page.metadata.resource_version;
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok(all);
            }
        }
    }

    /// Writes what was decided on a pod, if it is still the one that was looked at. Returns what it has become.
    ///
    /// # Errors
    /// [`Failure::Conflict`]: it is another version, or another pod of the same name; [`Failure::NotFound`]; no answer, when it is not known whether it was written.
    pub async fn change(&self, change: &Change) -> Result<Pod, Failure> {
        self.patch(&change.namespace, &change.name, &change.patch()).await
    }

    /// A merge patch. `metadata.resourceVersion` in it is a condition.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub async fn patch<R: Record>(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<R, Failure> {
        self.send(Method::PATCH, &record::object::<R>(namespace, name), Some(patch)).await
    }

    /// A merge patch of the status, which is a resource of its own: what a node has, for one.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub async fn patch_status<R: Record>(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<R, Failure> {
        let path = format!("{}/status", record::object::<R>(namespace, name));
        self.send(Method::PATCH, &path, Some(patch)).await
    }

    /// Binds a pod to a node, if it is still this version of it.
    ///
    /// # Errors
    /// As [`Self::change`]. A pod that is bound already is a conflict.
    pub async fn bind(&self, pod: &Pod, node: &str) -> Result<(), Failure> {
        let metadata = &pod.metadata;
        let path =
            format!("{}/binding", record::object::<Pod>(&metadata.namespace, &metadata.name));
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": metadata.name, "namespace": metadata.namespace,
                "uid": metadata.uid, "resourceVersion": metadata.resource_version,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        self.send::<Value>(Method::POST, &path, Some(&binding)).await.map(|_| ())
    }

    /// One request and its answer.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let request = request(method, path, body)?;
        let answer = tokio::time::timeout(self.timeout, self.client.request_text(request)).await;
        let text = answer
            .map_err(|_| Failure::Unreachable(format!("not within {:?}", self.timeout)))??;
        serde_json::from_str(&text).map_err(|error| Failure::Garbled(format!("{path}: {error}")))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }
}

pub(crate) fn path<R: Record>(query: &Query, parameters: &[(&str, &str)]) -> String {
    let text = query.parameters(parameters);
    let mark = if text.is_empty() { "" } else { "?" };
    format!("{}{mark}{text}", record::collection::<R>(query.namespace.as_deref()))
}

pub(crate) fn request(
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Request<Vec<u8>>, Failure> {
    let kind =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let builder = Request::builder().method(method).uri(path).header("accept", "application/json");
    let built = match body {
        Some(body) => builder.header("content-type", kind).body(body.to_string().into_bytes()),
        None => builder.body(Vec::new()),
    };
    built.map_err(|error| Failure::Garbled(format!("{path}: {error}")))
}
