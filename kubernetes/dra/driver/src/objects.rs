//! Objects of the API group `resource.k8s.io`, for requests.

use cgpu_kubernetes_client::Record;
use cgpu_kubernetes_core::object::Metadata;
use cgpu_kubernetes_dra::claim::ResourceClaim;
use cgpu_kubernetes_dra::slices::Existing;
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

/// A ResourceSlice of ours.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Slice(pub(crate) Existing);

impl Record for Slice {
    const GROUP: &'static str = GROUP;
    const PLURAL: &'static str = "resourceslices";
    const NAMESPACED: bool = false;

    fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }
}
