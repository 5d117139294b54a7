//! Objects of the API server, for requests.

use std::collections::BTreeMap;

use cgpu_kubernetes_client::Record;
use cgpu_kubernetes_core::object::{Metadata, Written, nullable};
use cgpu_kubernetes_dra::claim::ResourceClaim;
use serde::Deserialize;

const GROUP: &str = "/apis/resource.k8s.io/v1";

/// A claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Claim(pub(crate) ResourceClaim);

impl Record for Claim {
    const GROUP: &'static str = GROUP;
    const PLURAL: &'static str = "resourceclaims";
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }
}

/// A node, with what its device plugins give out.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) status: NodeStatus,
}

/// Status of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus {
    /// Amounts by resource, those of devices that fail included.
    #[serde(deserialize_with = "nullable")]
    pub(crate) capacity: BTreeMap<String, Written>,
}

impl Record for Node {
    const PLURAL: &'static str = "nodes";
    const NAMESPACED: bool = false;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
