//! GPUs that an administrator has taken out, in ConfigMaps of gpushare's form.
//!
//! The ConfigMap `unhealthy-gpu-NODE` of `kube-system` lists indexes in `data.gpus`, such as `0,2`.
//! New pods are placed on other GPUs; running ones stay.

use std::collections::BTreeSet;

use crate::object::ConfigMap;

/// Namespace of the ConfigMaps.
pub const NAMESPACE: &str = "kube-system";
/// The node's name follows.
const PREFIX: &str = "unhealthy-gpu-";
/// Key of the list.
const GPUS: &str = "gpus";

/// The GPUs of a node that get no new pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cordon {
    /// Name of the node.
    pub node: String,
    /// Indexes of the GPUs.
    pub gpus: BTreeSet<u32>,
    /// Parts of the list that are no indexes.
    pub invalid: Vec<String>,
}

impl Cordon {
    /// Reads a ConfigMap; `None` if it is about something else.
    #[must_use]
    pub fn of(map: &ConfigMap) -> Option<Self> {
        let node = map.metadata.name.strip_prefix(PREFIX)?.to_owned();
        let mut cordon = Self { node, ..Self::default() };
        let list = map.data.get(GPUS).map_or("", String::as_str);
        for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.parse() {
                Ok(index) => {
                    cordon.gpus.insert(index);
                }
                Err(_) => cordon.invalid.push(part.to_owned()),
            }
        }
        Some(cordon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_gpus_is_read() {
        let map = |name: &str, data: &str| -> Option<Cordon> {
            let text = format!(r#"{{"metadata":{{"name":"{name}"}},"data":{data}}}"#);
            Cordon::of(&serde_json::from_str(&text).unwrap())
        };
        let cordon = map("unhealthy-gpu-n1", r#"{"gpus":"0, 2,x,","other":"1"}"#).unwrap();
        assert_eq!((cordon.node.as_str(), cordon.gpus), ("n1", [0, 2].into()));
        assert_eq!(cordon.invalid, ["x"]);
        assert_eq!(map("unhealthy-gpu-n1", "null").unwrap().gpus, BTreeSet::new());
        assert_eq!(map("kube-root-ca.crt", r#"{"gpus":"0"}"#), None);
    }
}
