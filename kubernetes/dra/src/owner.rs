//! Other owners of a node's GPUs: device plugins and drivers that give out the same ones.
//!
//! A device plugin says how many GPUs it has, not which. So its resource counts for all GPUs of the
//! node, unless the administrator declares that it has others. A driver of dynamic resource
//! allocation names its devices by UUID.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_kubernetes_core::names::{HAMI_GPUS, MEMORY as CGPU_RESOURCE, is_of_nvidia};
use cgpu_kubernetes_core::object::Written;
use cgpu_kubernetes_core::quantity;

use crate::DRIVER;
use crate::slices::Existing;

/// Reason of an event about another owner.
pub const EVENT: &str = "GpuOtherOwner";

/// The program of cgpu that shares a GPU with another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The device plugin.
    Plugin {
        /// Whether it offers HAMi's resources.
        hami: bool,
    },
    /// The driver of dynamic resource allocation.
    Driver,
}

/// A plugin or driver that gives out a GPU of this node as well.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherOwner {
    /// The device plugin of this resource.
    Plugin(String),
    /// The driver of this name.
    Driver(String),
}

impl OtherOwner {
    /// Returns the owner of this name: resources have a `/`, and drivers have none.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let make = if name.contains('/') { Self::Plugin } else { Self::Driver };
        make(name.to_owned())
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        let (Self::Plugin(name) | Self::Driver(name)) = self;
        name
    }

    /// Returns its name as the value of a taint.
    #[must_use]
    pub fn label(&self) -> String {
        self.name().replace('/', ".")
    }

    /// Returns its name for messages.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Plugin(resource) => format!("the device plugin of {resource}"),
            Self::Driver(name) => format!("the driver {name}"),
        }
    }

    /// Returns what an event on the node says.
    #[must_use]
    pub fn message(&self, program: Program) -> String {
        format!(
            "{} gives out GPUs of this node, too, so they get no new pods of cgpu: {}",
            self.title(),
            self.remedy(program)
        )
    }

    /// Returns what to do, with the settings of charts that make room for this program.
    #[must_use]
    pub fn remedy(&self, program: Program) -> String {
        match (self, program) {
            (Self::Plugin(resource), _) if resource == CGPU_RESOURCE => {
                "drain the node and label it cgpu.dev/engine=dra, so that cgpu's device plugin \
                 ends; the kubelet counts its units for five minutes more"
                    .to_owned()
            }
            // They are one resource of the kubelet, so they cannot have different GPUs.
            (Self::Plugin(resource), Program::Plugin { hami: true }) if resource == HAMI_GPUS => {
                format!("{END_PLUGIN}, or set hami=false in cgpu's chart")
            }
            (Self::Plugin(resource), program) => {
                let setting = match program {
                    Program::Plugin { .. } => "plugin.arguments",
                    Program::Driver => "dra.arguments",
                };
                format!(
                    "{END_PLUGIN}; if it has other GPUs, set \
                     {setting}={{--disjoint-resources={resource}}} in cgpu's chart"
                )
            }
            (Self::Driver(name), _) => format!(
                "keep one of the two for each GPU: take the label gpushare from this node, or end \
                 {name} on it (NVIDIA's chart: resources.gpus.enabled=false)"
            ),
        }
    }
}

/// How a device plugin of NVIDIA is ended.
const END_PLUGIN: &str = "end that plugin on this node (GPU Operator: label the node \
                          nvidia.com/gpu.deploy.device-plugin=false, or set \
                          devicePlugin.enabled=false)";

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

    /// Adds the device plugin of this resource.
    pub fn insert_plugin(&mut self, resource: &str) {
        self.plugins.insert(resource.to_owned());
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
        let remedy = own.remedy(Program::Driver);
        assert!(remedy.contains("cgpu.dev/engine=dra"), "{remedy}");
        assert_eq!(owner(&[("cpu", "8"), ("nvidia.com/hostdev", "1")], &[]), None);
    }

    #[test]
    fn remedy_has_the_settings_of_the_chart() {
        let gpus = OtherOwner::Plugin("nvidia.com/gpu".into());
        for (program, setting) in [
            (Program::Driver, "dra.arguments={--disjoint-resources=nvidia.com/gpu}"),
            (
                Program::Plugin { hami: false },
                "plugin.arguments={--disjoint-resources=nvidia.com/gpu}",
            ),
            (Program::Plugin { hami: true }, "hami=false"),
        ] {
            let remedy = gpus.remedy(program);
            assert!(remedy.contains(setting), "{remedy}");
            assert!(remedy.contains("devicePlugin.enabled=false"), "{remedy}");
        }
        // Other resources are not offered by cgpu, in no dialect.
        let instances = OtherOwner::Plugin("nvidia.com/mig-1g.5gb".into());
        let remedy = instances.remedy(Program::Plugin { hami: true });
        assert!(remedy.contains("--disjoint-resources=nvidia.com/mig-1g.5gb"), "{remedy}");
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
