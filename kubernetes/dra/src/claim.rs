//! ResourceClaims as the API server sends them, with the fields that cgpu reads.

use std::collections::BTreeMap;
use std::fmt;

use cgpu_kubernetes_core::object::{Metadata, Written, nullable};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// A claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    /// Name, namespace and uid.
    pub metadata: Metadata,
    /// What was allocated.
    #[serde(deserialize_with = "nullable")]
    pub status: ClaimStatus,
}

/// Status of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimStatus {
    /// The scheduler's decision; immutable while it stands.
    pub allocation: Option<Allocation>,
}

/// The scheduler's decision.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Allocation {
    /// Devices and configuration.
    #[serde(deserialize_with = "nullable")]
    pub devices: Devices,
}

/// Allocated devices.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Devices {
    /// One for each device that was given, of all drivers.
    #[serde(deserialize_with = "nullable")]
    pub results: Vec<AllocationResult>,
    /// Configuration of the class and of the claim, of all drivers.
    #[serde(deserialize_with = "nullable")]
    pub config: Vec<Configuration>,
}

/// A device that was given.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationResult {
    /// `main`, or `main/sub` for one of several alternatives.
    pub request: String,
    /// Driver of the device.
    pub driver: String,
    /// Pool of the device.
    pub pool: String,
    /// Name of the device in its pool.
    pub device: String,
    /// Whether it was given for administration.
    #[serde(deserialize_with = "nullable")]
    pub admin_access: bool,
    /// Identifier of this share of a device that several claims can have.
    #[serde(rename = "shareID", deserialize_with = "nullable")]
    pub share_id: Option<String>,
    /// What it consumes, rounded; empty without consumable capacity.
    #[serde(deserialize_with = "nullable")]
    pub consumed_capacity: BTreeMap<String, Written>,
}

/// Configuration for some requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Configuration {
    /// `FromClass` or `FromClaim`.
    pub source: String,
    /// `main` or `main/sub`; empty for all.
    #[serde(deserialize_with = "nullable")]
    pub requests: Vec<String>,
    /// Parameters of a driver.
    pub opaque: Option<Opaque>,
}

/// Parameters of a driver.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Opaque {
    /// The driver.
    pub driver: String,
    /// Its parameters.
    pub parameters: Parameters,
}

/// Fields of parameters as they are written. A map would drop the first of two equal names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(pub Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Parameters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Parameters(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}
