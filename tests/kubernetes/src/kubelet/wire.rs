//! The device plugin API as the kubelet speaks it: an account of its own, so that a slip in the plugin's shows.

use std::collections::HashMap;

use prost::Message;

/// Bytes of a message that the real kubelet takes.
pub(crate) const LONGEST: usize = 4_194_304;

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Options {
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub(crate) get_preferred_allocation_available: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Register {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    #[prost(string, tag = "3")]
    pub(crate) resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<Options>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Devices {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Device {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) health: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Preferred {
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_requests: Vec<ContainerPreferred>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ContainerPreferred {
    #[prost(string, repeated, tag = "1")]
    pub(crate) available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) must_include: Vec<String>,
    #[prost(int32, tag = "3")]
    pub(crate) allocation_size: i32,
}

/// Of containers: in requests for devices, and in preferences.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Containers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Ids>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Ids {
    #[prost(string, repeated, tag = "1")]
    pub(crate) ids: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Allocated {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<ContainerAllocated>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ContainerAllocated {
    #[prost(map = "string, string", tag = "1")]
    pub(crate) envs: HashMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) cdi_devices: Vec<Cdi>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Cdi {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}
