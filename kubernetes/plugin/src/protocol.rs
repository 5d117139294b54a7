//! The kubelet's device plugin API, version `v1beta1`: its messages as far as they are used, field by field.
//!
//! Written down by hand from the protocol's description; fields that neither side needs are left out, which protobuf allows.

use std::collections::BTreeMap;

use prost::Message;

/// Version that is spoken.
pub(crate) const VERSION: &str = "v1beta1";

/// What a device is that may be given.
pub(crate) const HEALTHY: &str = "Healthy";
/// What one is that may not.
pub(crate) const UNHEALTHY: &str = "Unhealthy";

/// Paths of calls.
pub(crate) mod path {
    pub(crate) const REGISTER: &str = "/v1beta1.Registration/Register";
    pub(crate) const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    pub(crate) const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    pub(crate) const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    pub(crate) const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    pub(crate) const PRE_START: &str = "/v1beta1.DevicePlugin/PreStartContainer";
}

/// Nothing.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Empty {}

/// What a plugin does beyond the necessary.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct PluginOptions {
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub(crate) preferred_allocation: bool,
}

/// Here is a plugin.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    /// The socket's name in the kubelet's folder.
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    #[prost(string, tag = "3")]
    pub(crate) resource: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<PluginOptions>,
}

/// All devices, each time.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ListAndWatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Device>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Device {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) health: String,
}

/// Which of these would you take?
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PreferredRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<ContainerPreferredRequest>,
}

/// For a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ContainerPreferredRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) must_include: Vec<String>,
    #[prost(int32, tag = "3")]
    pub(crate) size: i32,
}

/// These.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PreferredResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Ids>,
}

/// Ids of devices: a container's, in requests and answers.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Ids {
    #[prost(string, repeated, tag = "1")]
    pub(crate) ids: Vec<String>,
}

/// Containers get these devices; the kubelet sends one container at a time.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Ids>,
}

/// What they are to be started with.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<ContainerAllocateResponse>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ContainerAllocateResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(crate) variables: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) cdi_devices: Vec<CdiDevice>,
}

/// A device that the engine resolves by a specification.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct CdiDevice {
    /// `vendor/class=name`.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the core computes the length of this message to know whether the kubelet takes it.
    #[test]
    fn messages_are_as_the_protocol_says() {
        let devices =
            ListAndWatchResponse { devices: vec![Device { id: "a1".into(), health: HEALTHY.into() }] };
        assert_eq!(devices.encode_to_vec(), b"\x0a\x0d\x0a\x02a1\x12\x07Healthy");
        let given = ContainerAllocateResponse {
            variables: [("A".to_owned(), "1".to_owned())].into(),
            cdi_devices: vec![CdiDevice { name: "v/c=d".into() }],
        };
        assert_eq!(given.encode_to_vec(), b"\x0a\x06\x0a\x01A\x12\x011\x2a\x07\x0a\x05v/c=d");
        let wanted = ContainerPreferredRequest {
            available: vec!["1".into(), "2".into()],
            must_include: vec!["2".into()],
            size: 1,
        };
        assert_eq!(wanted.encode_to_vec(), b"\x0a\x011\x0a\x012\x12\x012\x18\x01");
        let options = PluginOptions { pre_start_required: false, preferred_allocation: true };
        assert_eq!(options.encode_to_vec(), b"\x10\x01");
    }
}
