//! The tables and the data of claims.

use std::collections::BTreeMap;

use cgpu_kubernetes_core::object::Written;
use cgpu_kubernetes_core::quantity;
use cgpu_kubernetes_core::tabs::aligned;
use cgpu_kubernetes_dra::capacity::{CORES, MEMORY, WEIGHT};
use cgpu_kubernetes_dra::claim::AllocationResult;
use serde::Serialize;
use serde_json::Value;

use super::object::{DeviceStatus, ObservedClaim};
use super::{Claims, Device, results};

/// Devices and claims. Serialized, they are the fields `devices` and `claims` of `-o json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Overview {
    /// By node and name.
    pub(crate) devices: Vec<DeviceView>,
    /// By namespace and name.
    pub(crate) claims: Vec<ClaimView>,
}

/// A device with what claims have of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DeviceView {
    node: String,
    device: String,
    uuid: String,
    product: String,
    /// `weight` or `cores`: how its compute is shared.
    mode: String,
    memory_mib: Part,
    weight: Part,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores_percent: Option<Part>,
    /// Number of shares.
    shares: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    taints: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Part {
    claimed: u64,
    total: u64,
}

/// A claim with its shares. Without an allocation it has none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ClaimView {
    name: String,
    namespace: String,
    /// Pods that may use it.
    pods: Vec<String>,
    is_allocated: bool,
    shares: Vec<ShareView>,
}

/// What a claim has of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct ShareView {
    node: String,
    device: String,
    request: String,
    /// For administration: it consumes nothing.
    is_admin: bool,
    /// What it consumes; none: all of the device.
    memory_mib: Option<u64>,
    weight: Option<u64>,
    cores_percent: Option<u64>,
    /// What the driver reported last.
    limit_mib: Option<u64>,
    used_mib: Option<u64>,
    measured_percent: Option<f64>,
    /// What holds the limit: `driver`, `driver_except_managed`, `partial`, `shim`.
    wall: Option<String>,
    /// Why the driver does not hold it: `old_driver`, `mig` and others.
    wall_reason: Option<String>,
}

impl Overview {
    /// Returns the devices and claims of all nodes, or of one.
    pub(crate) fn of(facts: &Claims, node: Option<&str>) -> Self {
        let is_shown = |pool: &str| node.is_none_or(|node| node == pool);
        let devices =
            facts.devices.iter().filter(|it| is_shown(&it.pool)).map(DeviceView::of).collect();
        let claims = facts
            .claims
            .iter()
            .filter(|claim| facts.is_ours(claim))
            .filter(|claim| node.is_none() || results(claim).any(|it| is_shown(&it.pool)))
            .map(ClaimView::of)
            .collect();
        Self { devices, claims }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.claims.is_empty()
    }

    /// Returns the table with a line for each device.
    pub(crate) fn summary(&self) -> String {
        let mut text =
            "NODE\tDEVICE\tMEMORY(Claimed/Total MiB)\tWEIGHT\tCORES(%)\tSHARES\tTAINTS\n"
                .to_owned();
        for it in &self.devices {
            let part = |part: Part| format!("{}/{}", part.claimed, part.total);
            text += &format!(
                "{}\t{}\t{}\t{}\t{}\t{}\t{}\n",
                it.node,
                it.device,
                part(it.memory_mib),
                part(it.weight),
                it.cores_percent.map_or_else(|| "-".to_owned(), part),
                it.shares,
                it.taints.join(","),
            );
        }
        let pending = self.claims.iter().filter(|claim| !claim.is_allocated).count();
        text += &format!("Claims: {}, not allocated: {pending}\n", self.claims.len());
        aligned(&text)
    }

    /// Returns the table of [`Self::summary`], and one with a line for each share of a claim.
    pub(crate) fn details(&self) -> String {
        let mut text = "CLAIM\tNAMESPACE\tNODE\tDEVICE\tMEMORY(MiB)\tWEIGHT\tCORES(%)\t\
                        USED/LIMIT(MiB)\tWALL\tSHARE(%)\tPODS\n"
            .to_owned();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let number = |number: Option<u64>| or_dash(number.map(|number| number.to_string()));
        for claim in &self.claims {
            let pods = or_dash((!claim.pods.is_empty()).then(|| claim.pods.join(",")));
            if !claim.is_allocated {
                text += &format!("{}\t{}", claim.name, claim.namespace);
                text += &"\t-".repeat(8);
                text += &format!("\t{pods}\n");
            }
            for share in &claim.shares {
                let memory = match share.is_admin {
                    true => "admin".to_owned(),
                    false => share.memory_mib.map_or_else(|| "all".to_owned(), |it| it.to_string()),
                };
                text += &format!(
                    "{}\t{}\t{}\t{}\t{memory}\t{}\t{}\t{}/{}\t{}\t{}\t{pods}\n",
                    claim.name,
                    claim.namespace,
                    share.node,
                    share.device,
                    number(share.weight),
                    number(share.cores_percent),
                    number(share.used_mib),
                    number(share.limit_mib),
                    or_dash(share.wall.as_deref().map(|state| {
                        cgpu_text::wall::held_by(state, share.wall_reason.as_deref())
                    })),
                    or_dash(share.measured_percent.map(|it| it.to_string())),
                );
            }
        }
        format!("{}\n{}", self.summary(), aligned(&text))
    }
}

impl DeviceView {
    fn of(device: &Device) -> Self {
        let part = |name: &str, unit: u64| {
            let total = device.total(name)?;
            Some(Part { claimed: device.consumed(name) / unit, total: total / unit })
        };
        let none = Part { claimed: 0, total: 0 };
        Self {
            node: device.pool.clone(),
            device: device.published.name.clone(),
            uuid: device.text("uuid").to_owned(),
            product: device.text("productName").to_owned(),
            mode: device.text("mode").to_owned(),
            memory_mib: part(MEMORY, 1 << 20).unwrap_or(none),
            weight: part(WEIGHT, 1).unwrap_or(none),
            cores_percent: part(CORES, 1),
            shares: device.shares,
            taints: device.published.taints.iter().map(super::taint).collect(),
        }
    }
}

impl ClaimView {
    fn of(claim: &ObservedClaim) -> Self {
        let share = |result| {
            let status = claim.status.devices.iter().find(|status| is_about(status, result));
            ShareView::of(result, status)
        };
        let mut pods: Vec<String> =
            claim.status.reserved_for.iter().map(|pod| pod.name.clone()).collect();
        pods.sort();
        Self {
            name: claim.metadata.name.clone(),
            namespace: claim.metadata.namespace.clone(),
            pods,
            is_allocated: claim.status.allocation.is_some(),
            shares: results(claim).map(share).collect(),
        }
    }
}

fn is_about(status: &DeviceStatus, result: &AllocationResult) -> bool {
    (&status.driver, &status.pool, &status.device, &status.share_id)
        == (&result.driver, &result.pool, &result.device, &result.share_id)
}

impl ShareView {
    fn of(result: &AllocationResult, status: Option<&DeviceStatus>) -> Self {
        let consumed: BTreeMap<&str, &Written> = result
            .consumed_capacity
            .iter()
            .map(|(name, amount)| (super::bare(name), amount))
            .collect();
        let amount = |name: &str, unit: u64| {
            let amount = quantity::whole(&consumed.get(name)?.0).ok()?;
            Some(amount / unit)
        };
        let reported = |name: &str| status.map_or(&Value::Null, |status| &status.data[name]);
        let mib = |name: &str| reported(name).as_u64().map(|bytes| bytes >> 20);
        Self {
            node: result.pool.clone(),
            device: result.device.clone(),
            request: result.request.clone(),
            is_admin: result.admin_access,
            memory_mib: amount(MEMORY, 1 << 20),
            weight: amount(WEIGHT, 1),
            cores_percent: amount(CORES, 1),
            limit_mib: mib("memoryLimitBytes"),
            used_mib: mib("memoryUsedBytes"),
            measured_percent: reported("measuredSharePercent").as_f64(),
            wall: reported("wall").as_str().map(str::to_owned),
            wall_reason: reported("wallReason").as_str().map(str::to_owned),
        }
    }
}
