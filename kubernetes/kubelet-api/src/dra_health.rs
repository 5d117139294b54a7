//! The API for the health of devices of dynamic resource allocation, version `v1alpha1`.

// Comments and lints are those of the generator.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod generated {
    tonic::include_proto!("v1alpha1");
}

pub use generated::*;

/// Name of the service, as a driver states it when it registers.
pub const SERVICE: &str = "v1alpha1.DRAResourceHealth";

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Checks the field numbers against bytes written by hand: driver and tests share the messages,
    /// so no other test notices a wrong one.
    #[test]
    fn messages_encode_as_the_kubelet_expects() {
        let health = DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "p".into(), device_name: "d".into() }),
            health: HealthStatus::Unhealthy.into(),
            last_updated_time: 3,
            health_check_timeout_seconds: 4,
            message: "m".into(),
        };
        let answer = NodeWatchResourcesResponse { devices: vec![health] };
        let bytes = b"\x0a\x11\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x03\x20\x04\x2a\x01m";
        assert_eq!(answer.encode_to_vec(), bytes);
    }
}
