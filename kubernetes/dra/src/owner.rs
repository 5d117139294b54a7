//! Other owners of a node's GPUs: device plugins and drivers that give out the same ones.
//!
//! A device plugin says how many GPUs it has, not which. So its resource counts for all GPUs of the
//! node, unless the administrator declares that it has others. A driver of dynamic resource
//! allocation names its devices by UUID.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_kubernetes_core::names::is_of_nvidia;
use cgpu_kubernetes_core::object::Written;
use cgpu_kubernetes_core::quantity;

use crate::DRIVER;
use crate::slices::Existing;

/// Resource of cgpu's own device plugin.
const CGPU_RESOURCE: &str = "aliyun.com/gpu-mem";

/// A plugin or driver that gives out a GPU of this driver as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherOwner {
    /// The device plugin of this resource.
    Plugin(String),
    /// The driver of this name.
    Driver(String),
}

impl OtherOwner {
    /// Returns its name as the value of a taint.
    #[must_use]
    pub fn label(&self) -> String {
        let (Self::Plugin(name) | Self::Driver(name)) = self;
        name.replace('/', ".")
    }

    /// Returns its name for messages.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Plugin(resource) => format!("the device plugin of {resource}"),
            Self::Driver(name) => format!("the driver {name}"),
        }
    }

    /// Returns what to do.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Plugin(resource) if resource == CGPU_RESOURCE => {
                "drain the node and label it cgpu.dev/engine=dra, so that cgpu's device plugin \
                 ends; the kubelet counts its units for five minutes more"
                    .to_owned()
            }
            Self::Plugin(resource) => format!(
                "end that plugin on this node; if it has other GPUs, start cgpu-dra-driver with \
                 --disjoint-resources={resource}"
            ),
            Self::Driver(_) => "keep one of the two drivers on this node".to_owned(),
        }
    }
}

/// The other owners on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherOwners {
    /// Resources of device plugins that may have the same GPUs.
    plugins: BTreeSet<String>,
    /// Drivers by the UUID of a GPU.
    drivers: BTreeMap<String, String>,
}

impl OtherOwners {
    /// Returns the owners that a node's capacity and the node's ResourceSlices show. `disjoint` are
    /// resources of plugins that have other GPUs.
    pub fn of<'a>(
        capacity: &BTreeMap<String, Written>,
        disjoint: &[String],
        slices: impl IntoIterator<Item = &'a Existing>,
    ) -> Self {
        // The kubelet keeps the resource of a plugin that is gone, with the amount 0.
        let is_present = |amount: &Written| quantity::whole(&amount.0) != Ok(0);
        let plugins = capacity.iter().filter(|(name, amount)| {
            (*name == CGPU_RESOURCE || is_of_nvidia(name))
                && is_present(amount)
                && !disjoint.contains(name)
        });
        let foreign = slices.into_iter().filter(|slice| slice.driver() != DRIVER);
        let drivers = foreign.flat_map(|slice| {
            slice.uuids().into_iter().map(|uuid| (uuid, slice.driver().to_owned()))
        });
        Self {
            plugins: plugins.map(|(name, _)| name.clone()).collect(),
            drivers: drivers.collect(),
        }
    }

    /// Returns another owner of the GPU with this UUID, if there is one.
    #[must_use]
    pub fn owner(&self, uuid: &str) -> Option<OtherOwner> {
        let driver = self.drivers.get(uuid).cloned().map(OtherOwner::Driver);
        driver.or_else(|| self.plugins.first().cloned().map(OtherOwner::Plugin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const UUID: &str = "GPU-00000000-0000-0000-0000-000000000000";

    fn capacity(amounts: &[(&str, &str)]) -> BTreeMap<String, Written> {
        amounts.iter().map(|&(name, amount)| (name.to_owned(), amount.into())).collect()
    }

    fn slice(driver: &str, attributes: &Value) -> Existing {
        serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {"driver": driver,
            "devices": [{"name": "d", "attributes": attributes}, {"name": "e"}]}}))
        .unwrap()
    }

    #[test]
    fn plugin_counts_for_all_gpus_unless_it_has_others() {
        let owner = |amounts: &[(&str, &str)], disjoint: &[&str]| {
            let disjoint: Vec<String> = disjoint.iter().map(|name| (*name).to_owned()).collect();
            OtherOwners::of(&capacity(amounts), &disjoint, []).owner(UUID)
        };
        for resource in ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"] {
            let plugin = Some(OtherOwner::Plugin(resource.into()));
            assert_eq!(owner(&[(resource, "2")], &[]), plugin);
            assert_eq!(owner(&[(resource, "0")], &[]), None, "a plugin that is gone");
            assert_eq!(owner(&[(resource, "x")], &[]), plugin, "not understood");
            assert_eq!(owner(&[(resource, "2")], &[resource]), None);
        }
        let own = owner(&[("aliyun.com/gpu-mem", "14")], &["nvidia.com/gpu"]).unwrap();
        assert!(own.remedy().contains("cgpu.dev/engine=dra"), "{}", own.remedy());
        assert_eq!(owner(&[("cpu", "8"), ("nvidia.com/hostdev", "1")], &[]), None);
    }

    #[test]
    fn driver_owns_the_gpus_that_it_names() {
        let owners = |driver: &str, attributes: Value| {
            OtherOwners::of(&capacity(&[]), &[], [&slice(driver, &attributes)])
        };
        let driver = Some(OtherOwner::Driver("gpu.nvidia.com".into()));
        for name in ["uuid", "gpu.nvidia.com/uuid", "parentUUID"] {
            let known = owners("gpu.nvidia.com", json!({name: {"string": UUID}}));
            assert_eq!(known.owner(UUID), driver, "{name}");
            assert_eq!(known.owner("GPU-1"), None);
        }
        assert_eq!(owners(DRIVER, json!({"uuid": {"string": UUID}})).owner(UUID), None);
        for other in [json!({"uuid": {"int": 1}}), json!({"name": {"string": UUID}}), json!(null)] {
            assert_eq!(owners("gpu.nvidia.com", other).owner(UUID), None);
        }
    }
}
