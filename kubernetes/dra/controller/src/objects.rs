//! Pods and templates as the API server sends them, with the fields that the controller reads.

use std::collections::BTreeSet;

use cgpu_kubernetes_client::Record;
use cgpu_kubernetes_core::object::{Metadata, nullable};
use cgpu_kubernetes_dra::templates::Key;
use serde::Deserialize;

/// A pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    spec: PodSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    #[serde(deserialize_with = "nullable")]
    resource_claims: Vec<PodClaim>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodClaim {
    resource_claim_template_name: Option<String>,
}

impl Pod {
    /// Returns the templates that its claims name.
    pub(crate) fn templates(&self) -> BTreeSet<Key> {
        let claims = self.spec.resource_claims.iter();
        let names = claims.filter_map(|claim| claim.resource_claim_template_name.clone());
        names.map(|name| (self.metadata.namespace.clone(), name)).collect()
    }
}

impl Record for Pod {
    const PLURAL: &'static str = "pods";
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// A ResourceClaimTemplate. Its name says what is in it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Template {
    metadata: Metadata,
}

impl Record for Template {
    const GROUP: &'static str = "/apis/resource.k8s.io/v1";
    const PLURAL: &'static str = "resourceclaimtemplates";
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Returns the namespace and name of an object.
pub(crate) fn key(metadata: &Metadata) -> Key {
    (metadata.namespace.clone(), metadata.name.clone())
}
