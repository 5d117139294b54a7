//! Paths of the core's objects at the API server.

use cgpu_kubernetes_core::budget::Budget;
use cgpu_kubernetes_core::object::{ConfigMap, Metadata, Node, Pod};
use serde::de::DeserializeOwned;

/// A kind of object.
pub trait Record: Clone + DeserializeOwned + Send + 'static {
    /// First part of its path: the API group and version.
    const GROUP: &'static str = "/api/v1";
    /// Last part of its path: the plural in lower case.
    const PLURAL: &'static str;
    /// Whether its objects are in namespaces.
    const NAMESPACED: bool;

    /// Returns the object's metadata.
    fn metadata(&self) -> &Metadata;
}

impl Record for Pod {
    const PLURAL: &'static str = "pods";
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Record for Node {
    const PLURAL: &'static str = "nodes";
    const NAMESPACED: bool = false;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Record for ConfigMap {
    const PLURAL: &'static str = "configmaps";
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Record for Budget {
    const GROUP: &'static str = "/apis/policy/v1";
    const PLURAL: &'static str = "poddisruptionbudgets";
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Returns the path of all objects, or of those of a namespace.
pub(crate) fn collection<R: Record>(namespace: Option<&str>) -> String {
    match namespace.filter(|_| R::NAMESPACED) {
        Some(namespace) => format!("{}/namespaces/{}/{}", R::GROUP, escaped(namespace), R::PLURAL),
        None => format!("{}/{}", R::GROUP, R::PLURAL),
    }
}

pub(crate) fn object<R: Record>(namespace: &str, name: &str) -> String {
    format!("{}/{}", collection::<R>(Some(namespace)), escaped(name))
}

/// Escapes a name, which is input: it must not change the path.
pub(crate) fn escaped(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_an_object_is_escaped() {
        assert_eq!(object::<Pod>("test", "p.0"), "/api/v1/namespaces/test/pods/p.0");
        assert_eq!(object::<Node>("", "n1"), "/api/v1/nodes/n1");
        assert_eq!(collection::<Pod>(None), "/api/v1/pods");
        assert_eq!(collection::<Budget>(None), "/apis/policy/v1/poddisruptionbudgets");
        assert_eq!(object::<Pod>("a/../b", "?x"), "/api/v1/namespaces/a%2F..%2Fb/pods/%3Fx");
    }
}
