//! Objects of `resource.k8s.io/v1` as the API server sends them, with the fields that are read.

use std::collections::BTreeMap;

use cgpu_kubernetes_client::Record;
use cgpu_kubernetes_core::object::{Metadata, Texts, Written, nullable};
use cgpu_kubernetes_dra::claim::{Allocation, Configuration};
use serde::Deserialize;
use serde_json::Value;

/// API group and version of the objects.
const GROUP: &str = "/apis/resource.k8s.io/v1";
/// Condition of a device whose claim has an annotation about its size.
const RESIZED: &str = "Resized";

/// A slice, of which another release may have written the specification.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObservedSlice {
    #[serde(deserialize_with = "nullable")]
    pub(crate) metadata: Metadata,
    pub(crate) spec: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObservedDeviceClass {
    #[serde(deserialize_with = "nullable")]
    pub(crate) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub(crate) spec: ClassSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClassSpec {
    #[serde(deserialize_with = "nullable")]
    pub(crate) selectors: Vec<Selector>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) config: Vec<Configuration>,
}

/// A selector of devices.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Selector {
    #[serde(deserialize_with = "nullable")]
    pub(crate) cel: Cel,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cel {
    #[serde(deserialize_with = "nullable")]
    pub(crate) expression: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObservedClaim {
    #[serde(deserialize_with = "nullable")]
    pub(crate) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub(crate) spec: ClaimSpec,
    #[serde(deserialize_with = "nullable")]
    pub(crate) status: ClaimStatus,
}

impl ObservedClaim {
    pub(crate) fn title(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimSpec {
    #[serde(deserialize_with = "nullable")]
    pub(crate) devices: DeviceClaim,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeviceClaim {
    #[serde(deserialize_with = "nullable")]
    pub(crate) requests: Vec<DeviceRequest>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) constraints: Vec<Constraint>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) config: Vec<Configuration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeviceRequest {
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    pub(crate) exactly: Option<Alternative>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) first_available: Vec<Alternative>,
}

/// What a request wants, or one of several things that it accepts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Alternative {
    /// Empty if it is the only one.
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) device_class_name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) selectors: Vec<Selector>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) allocation_mode: String,
    pub(crate) count: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) capacity: CapacityRequest,
    #[serde(deserialize_with = "nullable")]
    pub(crate) tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CapacityRequest {
    #[serde(deserialize_with = "nullable")]
    pub(crate) requests: BTreeMap<String, Written>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Toleration {
    #[serde(deserialize_with = "nullable")]
    pub(crate) key: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) operator: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) value: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Constraint {
    #[serde(deserialize_with = "nullable")]
    pub(crate) requests: Vec<String>,
    pub(crate) distinct_attribute: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimStatus {
    pub(crate) allocation: Option<Allocation>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) reserved_for: Vec<Consumer>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) devices: Vec<DeviceStatus>,
}

/// What may use a claim: a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Consumer {
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
}

/// What the driver wrote about a device of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeviceStatus {
    #[serde(deserialize_with = "nullable")]
    pub(crate) driver: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) pool: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) device: String,
    #[serde(rename = "shareID", deserialize_with = "nullable")]
    pub(crate) share_id: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) conditions: Vec<Condition>,
    pub(crate) data: Value,
}

/// A condition of a device of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    #[serde(rename = "type", deserialize_with = "nullable")]
    kind: String,
    #[serde(deserialize_with = "nullable")]
    status: String,
    #[serde(deserialize_with = "nullable")]
    reason: String,
    #[serde(deserialize_with = "nullable")]
    message: String,
}

impl Condition {
    /// Returns why the annotation of a claim was not applied to it, if it was not.
    pub(crate) fn unresized(&self) -> Option<String> {
        let is_unresized = self.kind == RESIZED && self.status == "False";
        is_unresized.then(|| format!("{}: {}", self.reason, self.message))
    }
}

/// An object of which only the name counts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObservedTemplate {
    #[serde(deserialize_with = "nullable")]
    pub(crate) metadata: Metadata,
}

/// An Event about a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ObservedEvent {
    #[serde(deserialize_with = "nullable")]
    pub(crate) metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub(crate) involved_object: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub(crate) reason: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) message: String,
    #[serde(deserialize_with = "nullable")]
    last_timestamp: String,
    #[serde(deserialize_with = "nullable")]
    event_time: String,
    #[serde(deserialize_with = "nullable")]
    series: Texts,
}

impl ObservedEvent {
    /// Returns the last time at which it happened, in a form that can be compared.
    pub(crate) fn time(&self) -> &str {
        let of_series = self.series.get("lastObservedTime").map_or("", String::as_str);
        of_series.max(&self.last_timestamp).max(&self.event_time)
    }
}

macro_rules! record {
    ($($kind:ty, $group:expr, $plural:literal, $namespaced:literal;)*) => {$(
        impl Record for $kind {
            const GROUP: &'static str = $group;
            const PLURAL: &'static str = $plural;
            const NAMESPACED: bool = $namespaced;

            fn metadata(&self) -> &Metadata {
                &self.metadata
            }
        }
    )*};
}

record! {
    ObservedSlice, GROUP, "resourceslices", false;
    ObservedDeviceClass, GROUP, "deviceclasses", false;
    ObservedClaim, GROUP, "resourceclaims", true;
    ObservedTemplate, GROUP, "resourceclaimtemplates", true;
    ObservedEvent, "/api/v1", "events", true;
}
