//! The device plugin API, version `v1beta1`.
//!
//! The device plugin serves [`DevicePlugin`](device_plugin_server::DevicePlugin) and calls
//! [`RegistrationClient`](registration_client::RegistrationClient).

// Comments and lints are those of the generator.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod generated {
    tonic::include_proto!("v1beta1");
}

pub use generated::*;

/// Version of the API that a plugin states when it registers.
pub const VERSION: &str = "v1beta1";

/// Health of a device that a container may get.
pub const HEALTHY: &str = "Healthy";

/// Health of a device that no container may get.
pub const UNHEALTHY: &str = "Unhealthy";

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Checks the field numbers against bytes written by hand: plugin and tests share the messages,
    /// so no other test notices a wrong one.
    #[test]
    fn messages_encode_as_the_kubelet_expects() {
        fn check(message: &impl Message, bytes: &[u8]) {
            assert_eq!(message.encode_to_vec(), bytes);
        }
        let options = DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        };
        check(&options, b"\x08\x01\x10\x01");
        let register = RegisterRequest {
            version: "v".into(),
            endpoint: "e".into(),
            resource_name: "r".into(),
            options: Some(DevicePluginOptions { pre_start_required: false, ..options }),
        };
        check(&register, b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x02\x10\x01");
        let devices = ListAndWatchResponse {
            devices: vec![Device { id: "a1".into(), health: HEALTHY.into() }],
        };
        check(&devices, b"\x0a\x0d\x0a\x02a1\x12\x07Healthy");
        let preferred = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_ids: vec!["1".into(), "2".into()],
                must_include_device_ids: vec!["2".into()],
                allocation_size: 1,
            }],
        };
        check(&preferred, b"\x0a\x0b\x0a\x011\x0a\x012\x12\x012\x18\x01");
        let preference = PreferredAllocationResponse {
            container_responses: vec![ContainerPreferredAllocationResponse {
                device_ids: vec!["1".into()],
            }],
        };
        check(&preference, b"\x0a\x03\x0a\x011");
        let allocate = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { device_ids: vec!["1".into()] }],
        };
        check(&allocate, b"\x0a\x03\x0a\x011");
        let allocated = AllocateResponse {
            container_responses: vec![ContainerAllocateResponse {
                envs: [("A".to_owned(), "1".to_owned())].into(),
                cdi_devices: vec![CdiDevice { name: "v/c=d".into() }],
            }],
        };
        check(&allocated, b"\x0a\x11\x0a\x06\x0a\x01A\x12\x011\x2a\x07\x0a\x05v/c=d");
        let start = PreStartContainerRequest { device_ids: vec!["1".into()] };
        check(&start, b"\x0a\x011");
    }
}
