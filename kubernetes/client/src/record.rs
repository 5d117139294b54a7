//! The core's records, and where the API server keeps them.

use cgpu_kubernetes_core::object::{Metadata, Node, Pod};
use serde::de::DeserializeOwned;

/// A kind of object.
pub trait Record: Clone + DeserializeOwned + Send + 'static {
    /// The first part of its path: the group and its version.
    const GROUP: &'static str = "/api/v1";
    /// The last part of its path, in small letters.
    const PLURAL: &'static str;
    /// Whether it lives in a namespace.
    const NAMESPACED: bool;

    /// Who it is.
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

/// Where all of them are, or those of a namespace.
pub(crate) fn collection<R: Record>(namespace: Option<&str>) -> String {
    match namespace.filter(|_| R::NAMESPACED) {
        Some(namespace) => format!("{}/namespaces/{}/{}", R::GROUP, escaped(namespace), R::PLURAL),
        None => format!("{}/{}", R::GROUP, R::PLURAL),
    }
}

/// Where one is.
pub(crate) fn object<R: Record>(namespace: &str, name: &str) -> String {
    format!("{}/{}", collection::<R>(Some(namespace)), escaped(name))
}

/// Names come from whoever asks: none leads anywhere else.
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
        assert_eq!(object::<Pod>("a/../b", "?x"), "/api/v1/namespaces/a%2F..%2Fb/pods/%3Fx");
    }
}
