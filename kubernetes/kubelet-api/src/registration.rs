//! The registration of plugins by a socket in the kubelet's folder `plugins_registry`.

// Comments and lints are those of the generator.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod generated {
    tonic::include_proto!("pluginregistration");
}

pub use generated::*;

/// Kind of a plugin that is a driver of dynamic resource allocation.
pub const DRA_PLUGIN: &str = "DRAPlugin";

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Checks the field numbers against bytes written by hand: plugin and tests share the messages,
    /// so no other test notices a wrong one.
    #[test]
    fn messages_encode_as_the_kubelet_expects() {
        let info = PluginInfo {
            r#type: "t".into(),
            name: "n".into(),
            endpoint: "/e".into(),
            supported_versions: vec!["1".into(), "2".into()],
        };
        let bytes = b"\x0a\x01t\x12\x01n\x1a\x02/e\x22\x011\x22\x012";
        assert_eq!(info.encode_to_vec(), bytes);
        let status = RegistrationStatus { plugin_registered: true, error: "e".into() };
        assert_eq!(status.encode_to_vec(), b"\x08\x01\x12\x01e");
    }
}
