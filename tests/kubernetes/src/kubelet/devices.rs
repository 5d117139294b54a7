//! Devices, and the containers that have them.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_kubelet_api::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, PreferredAllocationRequest,
};
use serde_json::{Value, json};
use tonic::Status;
use tonic::transport::Channel;

use super::registration::client;
use super::{Admitted, Offer, Shared, locked};

struct Plugin {
    channel: Channel,
    prefers: bool,
    /// Health by ID. None before the plugin's first list.
    devices: Option<BTreeMap<String, bool>>,
    number: usize,
}

#[derive(Clone)]
struct Share {
    ids: BTreeSet<String>,
    is_init: bool,
    answer: ContainerAllocateResponse,
}

/// A pod's UID, a container, a resource.
type AllocationKey = (String, String, String);

#[derive(Default)]
pub(crate) struct Manager {
    plugins: BTreeMap<String, Plugin>,
    registrations: BTreeMap<String, usize>,
    allocations: BTreeMap<AllocationKey, Share>,
    ended: BTreeSet<String>,
    pub(crate) complaints: Vec<String>,
}

impl Manager {
    pub(crate) fn register(&mut self, resource: &str, channel: Channel, prefers: bool) -> usize {
        let number = self.registrations.entry(resource.to_owned()).or_default();
        *number += 1;
        let plugin = Plugin { channel, prefers, devices: None, number: *number };
        self.plugins.insert(resource.to_owned(), plugin);
        *number
    }

    pub(crate) fn update(
        &mut self,
        resource: &str,
        number: usize,
        devices: impl Iterator<Item = (String, String)>,
    ) -> Result<(), Status> {
        let Some(plugin) = self.plugins.get_mut(resource).filter(|plugin| plugin.number == number)
        else {
            return Ok(());
        };
        let mut known = BTreeMap::new();
        for (id, health) in devices {
            if id.is_empty() || !matches!(health.as_str(), "Healthy" | "Unhealthy") {
                return Err(Status::internal(format!("the device {id:?} is {health:?}")));
            }
            if known.insert(id.clone(), health == "Healthy").is_some() {
                return Err(Status::internal(format!("the device {id:?} is listed twice")));
            }
        }
        plugin.devices = Some(known);
        Ok(())
    }

    /// Marks all devices of a disconnected plugin as unhealthy.
    pub(crate) fn mark_unhealthy(&mut self, resource: &str, number: usize) {
        let plugin = self.plugins.get_mut(resource).filter(|plugin| plugin.number == number);
        if let Some(devices) = plugin.and_then(|plugin| plugin.devices.as_mut()) {
            devices.values_mut().for_each(|healthy| *healthy = false);
        }
    }

    pub(crate) fn disconnect(&mut self) {
        self.plugins.clear();
    }

    pub(crate) fn offer(&self, resource: &str) -> Option<Offer> {
        let devices = self.plugins.get(resource)?.devices.as_ref()?;
        Some(Offer {
            healthy: devices.values().filter(|healthy| **healthy).count(),
            all: devices.len(),
        })
    }

    pub(crate) fn registrations(&self, resource: &str) -> usize {
        self.registrations.get(resource).copied().unwrap_or_default()
    }

    /// Returns the content of the checkpoint.
    pub(crate) fn checkpoint(&self) -> Value {
        let entries: Vec<Value> = self
            .allocations
            .iter()
            .map(|((uid, container, resource), share)| {
                json!({
                    "PodUID": uid, "ContainerName": container, "ResourceName": resource,
                    "DeviceIDs": {"-1": share.ids}, "AllocResp": null,
                })
            })
            .collect();
        json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0})
    }

    pub(crate) fn end(&mut self, uid: &str) {
        self.ended.insert(uid.to_owned());
    }

    /// Returns the IDs that a container may have, and those of its pod's init containers, which it
    /// gets first.
    fn candidates(&mut self, key: &AllocationKey) -> (BTreeSet<String>, BTreeSet<String>) {
        let Self { allocations, ended, plugins, .. } = self;
        allocations.retain(|(uid, ..), _| !ended.contains(uid));
        let of_resource = |other: &AllocationKey| other.2 == key.2;
        let reusable: BTreeSet<String> = allocations
            .iter()
            .filter(|(other, share)| of_resource(other) && other.0 == key.0 && share.is_init)
            .flat_map(|(_, share)| share.ids.clone())
            .collect();
        // IDs of the pod's other containers are not given twice.
        let kept: BTreeSet<&String> = allocations
            .iter()
            .filter(|(other, share)| of_resource(other) && other.0 == key.0 && !share.is_init)
            .flat_map(|(_, share)| &share.ids)
            .collect();
        let reusable: BTreeSet<String> =
            reusable.into_iter().filter(|id| !kept.contains(id)).collect();
        let used: BTreeSet<&String> = allocations
            .iter()
            .filter(|(other, _)| of_resource(other))
            .flat_map(|(_, share)| &share.ids)
            .collect();
        let devices = plugins.get(&key.2).and_then(|plugin| plugin.devices.as_ref());
        let free = devices
            .into_iter()
            .flatten()
            .filter(|(id, healthy)| **healthy && !used.contains(id))
            .map(|(id, _)| id.clone())
            .collect();
        (reusable, free)
    }
}

pub(crate) async fn admit(shared: &Shared, pod: &Value) -> Result<Vec<Admitted>, String> {
    let uid = pod["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let listed = |name: &str| pod["spec"][name].as_array().cloned().unwrap_or_default();
    let first = listed("initContainers").into_iter().map(|container| {
        let is_init = container["restartPolicy"] != "Always";
        (container, is_init)
    });
    let all: Vec<(Value, bool)> =
        first.chain(listed("containers").into_iter().map(|container| (container, false))).collect();
    let mut started = Vec::new();
    for (container, is_init) in all {
        let name = container["name"].as_str().expect("a name").to_owned();
        let mut allocations = Admitted { container: name.clone(), ..Admitted::default() };
        for (resource, amount) in container["resources"]["limits"].as_object().into_iter().flatten()
        {
            if !locked(shared).plugins.contains_key(resource) {
                continue;
            }
            let amount: usize =
                amount.as_str().and_then(|text| text.parse().ok()).expect("a whole number");
            let key = (uid.clone(), name.clone(), resource.clone());
            let share = allocate(shared, &key, amount, is_init).await?;
            allocations.ids.insert(resource.clone(), share.ids.iter().cloned().collect());
            allocations.variables.extend(share.answer.envs);
            allocations
                .devices
                .extend(share.answer.cdi_devices.into_iter().map(|device| device.name));
        }
        started.push(allocations);
    }
    Ok(started)
}

async fn allocate(
    shared: &Shared,
    key: &AllocationKey,
    amount: usize,
    is_init: bool,
) -> Result<Share, String> {
    if let Some(known) = locked(shared).allocations.get(key).cloned() {
        return Ok(known);
    }
    let (reusable, free) = locked(shared).candidates(key);
    let mut ids: BTreeSet<String> = reusable.into_iter().take(amount).collect();
    if ids.len() + free.len() < amount {
        return Err(format!(
            "requested number of devices unavailable for {}. Requested: {}, Available: {}",
            key.2,
            amount - ids.len(),
            free.len()
        ));
    }
    let (channel, prefers) = {
        let manager = locked(shared);
        let plugin = manager.plugins.get(&key.2).ok_or("the plugin has gone")?;
        (plugin.channel.clone(), plugin.prefers)
    };
    if ids.len() < amount && prefers {
        let preferred =
            preferred(&channel, &free, &ids, amount).await.map_err(|status| unexpected(&status))?;
        if preferred.len() > amount || !ids.iter().all(|id| preferred.contains(id)) {
            return Err(format!("the plugin prefers {preferred:?}, which cannot be"));
        }
        ids.extend(preferred.into_iter().filter(|id| free.contains(id)));
    }
    let missing = amount - ids.len();
    let more: Vec<String> =
        free.iter().filter(|id| !ids.contains(*id)).take(missing).cloned().collect();
    ids.extend(more);
    // The real kubelet's order is arbitrary.
    let wanted = ContainerAllocateRequest { device_ids: ids.iter().rev().cloned().collect() };
    let request = AllocateRequest { container_requests: vec![wanted] };
    let answer = client(&channel).allocate(request).await;
    let answer = answer.map_err(|status| unexpected(&status))?.into_inner();
    let [answer] = <[ContainerAllocateResponse; 1]>::try_from(answer.container_responses)
        .map_err(|all| format!("{} answers for one container", all.len()))?;
    let share = Share { ids, is_init, answer };
    locked(shared).allocations.insert(key.clone(), share.clone());
    Ok(share)
}

async fn preferred(
    channel: &Channel,
    free: &BTreeSet<String>,
    ids: &BTreeSet<String>,
    amount: usize,
) -> Result<BTreeSet<String>, Status> {
    let container = ContainerPreferredAllocationRequest {
        available_device_ids: free.union(ids).cloned().collect(),
        must_include_device_ids: ids.iter().cloned().collect(),
        allocation_size: i32::try_from(amount).expect("a number of devices"),
    };
    let request = PreferredAllocationRequest { container_requests: vec![container] };
    let answer = client(channel).get_preferred_allocation(request).await?.into_inner();
    Ok(answer.container_responses.into_iter().flat_map(|container| container.device_ids).collect())
}

fn unexpected(status: &Status) -> String {
    format!("Allocate failed due to {:?}: {}, which is unexpected", status.code(), status.message())
}
