//! The API for drivers of dynamic resource allocation, version `v1`.

// Comments and lints are those of the generator.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod generated {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

pub use generated::*;

/// Name of the service, as a driver states it when it registers.
pub const SERVICE: &str = "v1.DRAPlugin";

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Checks the field numbers against bytes written by hand: driver and tests share the messages,
    /// so no other test notices a wrong one.
    #[test]
    fn messages_encode_as_the_kubelet_expects() {
        let claim = Claim { namespace: "s".into(), uid: "u".into(), name: "n".into() };
        let bytes = b"\x0a\x09\x0a\x01s\x12\x01u\x1a\x01n";
        let claims = vec![claim];
        assert_eq!(NodePrepareResourcesRequest { claims: claims.clone() }.encode_to_vec(), bytes);
        assert_eq!(NodeUnprepareResourcesRequest { claims }.encode_to_vec(), bytes);
        let device = Device {
            request_names: vec!["r".into()],
            pool_name: "p".into(),
            device_name: "d".into(),
            cdi_device_ids: vec!["c".into()],
            share_id: Some("s".into()),
        };
        let prepared = NodePrepareResourceResponse { devices: vec![device], error: "e".into() };
        let bytes = b"\x0a\x0f\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s\x12\x01e";
        assert_eq!(prepared.encode_to_vec(), bytes);
        let refused = NodePrepareResourceResponse { devices: Vec::new(), error: "e".into() };
        let claims = [("u".to_owned(), refused)].into();
        let answer = NodePrepareResourcesResponse { claims };
        assert_eq!(answer.encode_to_vec(), b"\x0a\x08\x0a\x01u\x12\x03\x12\x01e");
        let claims = [("u".to_owned(), NodeUnprepareResourceResponse { error: "e".into() })].into();
        let answer = NodeUnprepareResourcesResponse { claims };
        assert_eq!(answer.encode_to_vec(), b"\x0a\x08\x0a\x01u\x12\x03\x0a\x01e");
    }
}
