//! Requests to the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cgpu_kubernetes_core::claim::Change;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::pod_request::PodRequest;
use http::{Method, Request};
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::query::Query;
use crate::record::{self, Record};

/// Objects in a page, so that a list of 50,000 pods is never in memory as text.
const PAGE_SIZE: &str = "500";

/// A connection to the API server. Clones share it.
#[derive(Clone)]
pub struct Api {
    client: Client,
    namespace: String,
    timeout: Duration,
}

/// Objects of one version.
#[derive(Clone, Debug, Default)]
pub struct List<T> {
    /// Objects in any order.
    pub items: Vec<T>,
    /// Version of the list. A watch can continue from it.
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
    /// Creates an API that sends requests through `client`. Each must be answered within `timeout`;
    /// `namespace` is the default one.
    #[must_use]
    pub fn new(client: Client, namespace: String, timeout: Duration) -> Self {
        Self { client, namespace, timeout }
    }

    /// Returns the namespace of the context, or of the pod that the program runs in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns one object. The namespace of a node is ignored.
    ///
    /// # Errors
    /// The object does not exist, or the request fails.
    pub async fn get<R: Record>(&self, namespace: &str, name: &str) -> Result<R, Failure> {
        self.send(Method::GET, &record::object::<R>(namespace, name), None).await
    }

    /// Lists the objects of a query, as of one version that is not older than the request: without
    /// `resourceVersion`, no outdated cache may answer. The list is one page, so that API servers
    /// with an index of pods by node can use it.
    ///
    /// # Errors
    /// The request fails.
    pub async fn list<R: Record>(&self, query: &Query) -> Result<List<R>, Failure> {
        let page: Page<R> = self.send(Method::GET, &path::<R>(query, &[]), None).await?;
        Ok(List { items: page.items, version: page.metadata.resource_version })
    }

    /// Lists the objects of a query page by page, and passes each through `keep` as soon as it is
    /// received.
    ///
    /// # Errors
    /// A request fails, or the list took so long that its version has expired ([`Failure::Gone`]).
    pub async fn list_each<R: Record, T>(
        &self,
        query: &Query,
        mut keep: impl FnMut(R) -> T,
    ) -> Result<List<T>, Failure> {
        let mut all = List { items: Vec::new(), version: String::new() };
        let mut next: Option<String> = None;
        loop {
            let mut parameters = vec![("limit", PAGE_SIZE)];
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

    /// Lists the pods that may hold a part of a node, by uid: unbound pods first, then those of the
    /// node. A pod that is bound in between is in both lists; in the other order it would be in
    /// neither.
    ///
    /// # Errors
    /// Those of [`Self::list`].
    pub async fn holders(
        &self,
        node: &str,
        dialects: Dialects,
    ) -> Result<BTreeMap<String, Arc<PodRequest>>, Failure> {
        let mut found = BTreeMap::new();
        for name in ["", node] {
            let list =
                self.list::<Pod>(&Query::all().field(format!("spec.nodeName={name}"))).await?;
            let requests = list.items.iter().filter_map(|pod| PodRequest::of(pod, dialects));
            found.extend(requests.map(|request| (request.uid.clone(), Arc::new(request))));
        }
        Ok(found)
    }

    /// Applies a claim or withdrawal to a pod if its version is unchanged, and returns the new pod.
    ///
    /// # Errors
    /// [`Failure::Conflict`] if it is another version or another pod of the same name,
    /// [`Failure::NotFound`], or the request fails. Without a reply it is unknown whether the
    /// change was written.
    pub async fn change(&self, change: &Change) -> Result<Pod, Failure> {
        self.patch(&change.namespace, &change.name, &change.patch()).await
    }

    /// Applies a merge patch. A `metadata.resourceVersion` in it is a condition.
    ///
    /// # Errors
    /// Those of [`Self::change`].
    pub async fn patch<R: Record>(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<R, Failure> {
        self.send(Method::PATCH, &record::object::<R>(namespace, name), Some(patch)).await
    }

    /// Applies a merge patch to the status, such as the resources of a node.
    ///
    /// # Errors
    /// Those of [`Self::change`].
    pub async fn patch_status<R: Record>(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<R, Failure> {
        let path = format!("{}/status", record::object::<R>(namespace, name));
        self.send(Method::PATCH, &path, Some(patch)).await
    }

    /// Applies a part of an object's status (server-side apply): what `manager` applied before and
    /// leaves out is removed, and what other managers have applied stays.
    ///
    /// # Errors
    /// Those of [`Self::change`]; the request fails.
    pub async fn apply_status<R: Record>(
        &self,
        namespace: &str,
        name: &str,
        manager: &str,
        part: &Value,
    ) -> Result<R, Failure> {
        let object = record::object::<R>(namespace, name);
        let path = format!("{object}/status?fieldManager={manager}&force=true");
        let request = with_body(Method::PATCH, &path, "application/apply-patch+yaml", part)?;
        self.answer(&path, request).await
    }

    /// Creates an object.
    ///
    /// # Errors
    /// [`Failure::Exists`], or the request fails.
    pub async fn create<R: Record>(&self, namespace: &str, object: &Value) -> Result<R, Failure> {
        let path = record::collection::<R>(Some(namespace));
        self.send(Method::POST, &path, Some(object)).await
    }

    /// Replaces an object. A `metadata.resourceVersion` in it is a condition.
    ///
    /// # Errors
    /// Those of [`Self::change`].
    pub async fn replace<R: Record>(
        &self,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<R, Failure> {
        self.send(Method::PUT, &record::object::<R>(namespace, name), Some(object)).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// [`Failure::NotFound`], or the request fails.
    pub async fn delete<R: Record>(&self, namespace: &str, name: &str) -> Result<(), Failure> {
        let path = record::object::<R>(namespace, name);
        self.send::<Value>(Method::DELETE, &path, None).await.map(|_| ())
    }

    /// Binds a pod to a node if its version is unchanged.
    ///
    /// # Errors
    /// Those of [`Self::change`]. A pod that is already bound is a conflict.
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

    /// Sends a request and parses its reply.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        self.answer(path, request(method, path, body)?).await
    }

    /// Returns the version of the API server, such as `v1.36.2`.
    ///
    /// # Errors
    /// The request fails.
    pub async fn version(&self) -> Result<String, Failure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let version: Version = self.send(Method::GET, "/version", None).await?;
        Ok(version.git_version)
    }

    /// Returns the text at a path that is not an object's, such as `/metrics`.
    ///
    /// # Errors
    /// The request fails.
    pub async fn text(&self, path: &str) -> Result<String, Failure> {
        let request = started(Method::GET, path).body(Vec::new());
        self.text_of(built(path, request)?).await
    }

    async fn answer<T: DeserializeOwned>(
        &self,
        path: &str,
        request: Request<Vec<u8>>,
    ) -> Result<T, Failure> {
        let text = self.text_of(request).await?;
        serde_json::from_str(&text).map_err(|error| Failure::Garbled(format!("{path}: {error}")))
    }

    async fn text_of(&self, request: Request<Vec<u8>>) -> Result<String, Failure> {
        let answer = tokio::time::timeout(self.timeout, self.client.request_text(request)).await;
        let late = |_| Failure::Unreachable(format!("no reply within {:?}", self.timeout));
        Ok(answer.map_err(late)??)
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
    match body {
        Some(body) => with_body(method, path, kind, body),
        None => built(path, started(method, path).body(Vec::new())),
    }
}

fn with_body(
    method: Method,
    path: &str,
    kind: &str,
    body: &Value,
) -> Result<Request<Vec<u8>>, Failure> {
    let builder = started(method, path).header("content-type", kind);
    built(path, builder.body(body.to_string().into_bytes()))
}

fn started(method: Method, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("accept", "application/json")
}

fn built(path: &str, request: http::Result<Request<Vec<u8>>>) -> Result<Request<Vec<u8>>, Failure> {
    request.map_err(|error| Failure::Garbled(format!("{path}: {error}")))
}
