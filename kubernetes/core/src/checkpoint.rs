//! The kubelet's checkpoint of devices: which ids it has given to which container.
//!
//! `Allocate` does not name its container, so the request of `cgpu-runtime` could be forged by a
//! program that starts containers past the kubelet, and `cgpu.dev/slices` by an account that
//! annotates pods. The kubelet writes the file before it starts a container. The format is the
//! kubelet's own (1.20 to 1.36 at least): a file that cannot be parsed says nothing.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::names::{Dialect, HAMI_GPUS, MEMORY};
use crate::object::nullable;
use crate::slice::Token;

/// Name of the file, in the kubelet's folder of device plugins.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Slices of containers, as the kubelet has given them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// By uid, container and resource.
    given: BTreeMap<(String, String, Dialect), Token>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(deserialize_with = "nullable")]
    pod_device_entries: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs", deserialize_with = "nullable")]
    device_ids: BTreeMap<String, Vec<String>>,
}

impl Checkpoint {
    /// Parses the file. Returns `None` if it has another form.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let document: Document = serde_json::from_slice(text).ok()?;
        let mut given = BTreeMap::new();
        for entry in document.data.pod_device_entries {
            let dialect = match entry.resource_name.as_str() {
                MEMORY => Dialect::Aliyun,
                HAMI_GPUS => Dialect::Hami,
                _ => continue,
            };
            let ids = entry.device_ids.values().flatten().map(String::as_str);
            // Another plugin of the resource has other ids.
            if let Ok(token) = Token::of_ids(dialect, ids) {
                given.insert((entry.pod_uid, entry.container_name, dialect), token);
            }
        }
        Some(Self { given })
    }

    /// Returns whether the kubelet has given this slice to this container.
    #[must_use]
    pub fn confirms(&self, token: Token, uid: &str, container: &str) -> bool {
        let key = (uid.to_owned(), container.to_owned(), token.dialect());
        self.given.get(&key) == Some(&token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kubelet 1.36 writes it.
    const TEXT: &str = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"u","ContainerName":"main","ResourceName":"aliyun.com/gpu-mem",
         "DeviceIDs":{"-1":["7","8"],"0":["a"]},"AllocResp":"CgA="},
        {"PodUID":"u","ContainerName":"main","ResourceName":"example.com/nic",
         "DeviceIDs":{"-1":["Nic_0"]},"AllocResp":null},
        {"PodUID":"v","ContainerName":"main","ResourceName":"nvidia.com/gpu",
         "DeviceIDs":{"-1":["3"]},"AllocResp":null}],
        "RegisteredDevices":{"aliyun.com/gpu-mem":["7","8","a"]}},"Checksum":1}"#;

    #[test]
    fn checkpoint_confirms_what_the_kubelet_gave() {
        let checkpoint = Checkpoint::parse(TEXT.as_bytes()).unwrap();
        let token = |text: &str| Token::parse(text).unwrap();
        assert!(checkpoint.confirms(token("7-3"), "u", "main"));
        assert!(checkpoint.confirms(token("hami.3-1"), "v", "main"));
        for (slice, uid, container) in [
            ("7-2", "u", "main"),
            ("8-3", "u", "main"),
            ("hami.7-3", "u", "main"),
            ("7-3", "v", "main"),
            ("7-3", "u", "side"),
        ] {
            assert!(
                !checkpoint.confirms(token(slice), uid, container),
                "{slice} {uid} {container}"
            );
        }
    }

    #[test]
    fn checkpoint_of_another_form_says_nothing() {
        let empty = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":0}"#;
        assert_eq!(Checkpoint::parse(empty.as_bytes()), Some(Checkpoint::default()));
        for text in ["", "{}", r#"{"PodDeviceEntries":[]}"#] {
            assert_eq!(Checkpoint::parse(text.as_bytes()), None, "{text}");
        }
        let other_ids = TEXT.replace("\"a\"", "\"GPU-1\"");
        let checkpoint = Checkpoint::parse(other_ids.as_bytes()).unwrap();
        assert!(!checkpoint.confirms(Token::parse("7-3").unwrap(), "u", "main"));
    }
}
