//! What a claim gets: a share for each of its results that are this driver's.

use std::collections::BTreeSet;

use cgpu_kubernetes_core::quantity;
use cgpu_kubernetes_core::refusal::{Refusal, quoted};
use cgpu_shm::limits::{Limits, MAX_WEIGHT};
use cgpu_shm::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::DRIVER;
use crate::capacity::{CORES, Capacity, MEMORY, WEIGHT};
use crate::claim::{Allocation, AllocationResult, ResourceClaim};
use crate::config::{self, base_request};
use crate::device::{Device, Mode, Pool};

/// What a claim has on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeClaim {
    /// Namespace, for messages.
    pub namespace: String,
    /// Name, for messages.
    pub name: String,
    /// Uid: letters, digits and `-`, so that it can name files.
    pub uid: String,
    /// Shares, in the order of the results.
    pub shares: Vec<Share>,
}

/// What a claim has of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Share {
    /// `<uid of the claim>-<position of the result>`: the name of its files and its CDI device.
    pub name: String,
    /// The request that containers name.
    pub request: String,
    /// Name of the device in the node's pool.
    pub device: String,
    /// The result's `shareID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    /// The driver's name of the device, with its UUID.
    pub gpu: String,
    /// What it may use.
    pub access: Access,
}

/// What a share may use of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Access {
    /// A part of it.
    #[serde(rename_all = "camelCase")]
    Limited {
        /// What it consumes.
        capacity: Capacity,
        /// What it has of that, if it was ever resized.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resized: Option<Capacity>,
        /// Whether its container has high priority.
        high_priority: bool,
    },
    /// All of it without a limit, for administration. Nothing is consumed.
    Admin,
}

impl NodeClaim {
    /// Returns what a claim has on this node. Results of other drivers are ignored.
    ///
    /// # Errors
    /// The claim is not allocated, or a result or a configuration is not understood.
    pub fn of(claim: &ResourceClaim, pool: &Pool) -> Result<Self, Refusal> {
        let metadata = &claim.metadata;
        let refuse = |why: &str| {
            Refusal::new(format!("claim {}/{} {why}", metadata.namespace, metadata.name))
        };
        let Some(allocation) = &claim.status.allocation else {
            return Err(refuse("is not allocated"));
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !(1..=63).contains(&metadata.uid.len()) || !metadata.uid.bytes().all(plain) {
            return Err(refuse("has no uid of letters, digits and `-`"));
        }
        let results = allocation.devices.results.iter().enumerate();
        let ours = results.filter(|(_, result)| result.driver == DRIVER);
        let shares = ours
            .map(|(position, result)| {
                let name = format!("{}-{position}", metadata.uid);
                share(name, result, allocation, pool).map_err(|refusal| {
                    refuse(&format!("has the result {}: {refusal}", position + 1))
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let limited = || shares.iter().filter(|share| !share.is_admin());
        let keys: BTreeSet<_> = limited().map(|share| (&share.device, &share.share_id)).collect();
        if keys.len() < limited().count() {
            return Err(refuse("has two results of the same device and share"));
        }
        Ok(Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            shares,
        })
    }

    /// Returns it as it was allocated, without what a resize has changed.
    #[must_use]
    pub fn allocated(&self) -> Self {
        let mut claim = self.clone();
        for share in &mut claim.shares {
            if let Access::Limited { resized, .. } = &mut share.access {
                *resized = None;
            }
        }
        claim
    }

    /// Returns its name for messages.
    #[must_use]
    pub fn title(&self) -> String {
        format!("claim {}/{}", self.namespace, self.name)
    }
}

impl Share {
    /// Returns whether it is for administration.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.access == Access::Admin
    }

    /// Returns what it consumes.
    #[must_use]
    pub fn consumed(&self) -> Capacity {
        match self.access {
            Access::Limited { capacity, .. } => capacity,
            Access::Admin => Capacity::NONE,
        }
    }

    /// Returns what it has: what it consumes, or less after a resize.
    #[must_use]
    pub fn granted(&self) -> Capacity {
        match self.access {
            Access::Limited { capacity, resized, .. } => resized.unwrap_or(capacity),
            Access::Admin => Capacity::NONE,
        }
    }

    /// Returns whether it was ever resized.
    #[must_use]
    pub fn is_resized(&self) -> bool {
        matches!(self.access, Access::Limited { resized: Some(_), .. })
    }

    /// Returns its limits, or `None` if it has none.
    ///
    /// # Errors
    /// The record was edited: the GPU has no UUID, or the share has more than it consumes.
    pub fn to_limits(&self) -> Result<Option<Limits>, Refusal> {
        let Access::Limited { high_priority, .. } = self.access else { return Ok(None) };
        let granted = self.granted();
        if !granted.fits(self.consumed()) {
            return Err(self.invalid("it has more than it consumes"));
        }
        let uuid = self.gpu.parse().map_err(|_| self.invalid("its GPU has no UUID"))?;
        Ok(Some(Limits {
            name: None,
            weight: granted.weight,
            percent: (granted.cores > 0).then_some(granted.cores),
            high_priority,
            gpus: vec![(uuid, Bytes(granted.memory))],
        }))
    }

    /// Returns the text of its limits file, or `None` if it has no limit.
    ///
    /// # Errors
    /// No such limits can be written: the record was edited.
    pub fn limits(&self) -> Result<Option<String>, Refusal> {
        let text = self.to_limits()?.map(|limits| limits.to_text()).transpose();
        text.map_err(|refused| self.invalid(&refused.reason.to_string()))
    }

    fn invalid(&self, why: &str) -> Refusal {
        Refusal::new(format!("the share {} is invalid: {why}", self.name))
    }
}

fn share(
    name: String,
    result: &AllocationResult,
    allocation: &Allocation,
    pool: &Pool,
) -> Result<Share, Refusal> {
    if result.pool != pool.node {
        return Err(Refusal::new(format!(
            "it is of pool {}, and this node has the pool {}",
            quoted(&result.pool),
            pool.node
        )));
    }
    let device = pool.device(&result.device).ok_or_else(|| {
        Refusal::new(format!(
            "it waits for {}, which the node does not have now; check `nvidia-smi -L`",
            quoted(&result.device)
        ))
    })?;
    let settings = config::settings(&allocation.devices.config, &result.request)?;
    let access = if result.admin_access {
        Access::Admin
    } else {
        let capacity = consumed(result, device)?;
        Access::Limited { capacity, resized: None, high_priority: settings.high_priority }
    };
    Ok(Share {
        name,
        request: base_request(&result.request).to_owned(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        gpu: device.host.name(),
        access,
    })
}

/// Returns what a result consumes of its device: all of it in clusters without consumable capacity.
fn consumed(result: &AllocationResult, device: &Device) -> Result<Capacity, Refusal> {
    if result.consumed_capacity.is_empty() {
        return Ok(device.capacity());
    }
    let (mut memory, mut weight, mut cores) = (None, None, None);
    for (name, amount) in &result.consumed_capacity {
        let bare = name.strip_prefix(DRIVER).and_then(|name| name.strip_prefix('/'));
        let field = match bare.unwrap_or(name) {
            MEMORY => &mut memory,
            WEIGHT => &mut weight,
            CORES => &mut cores,
            _ => {
                return Err(Refusal::new(format!(
                    "it consumes {}, which this release does not know",
                    quoted(name)
                )));
            }
        };
        let amount = quantity::whole(&amount.0)
            .map_err(|invalid| Refusal::new(invalid.of(&format!("its {name}"), &amount.0)))?;
        if field.replace(amount).is_some() {
            return Err(Refusal::new(format!("it consumes {name} twice")));
        }
    }
    let small = |what: &str, amount: Option<u64>, range: std::ops::RangeInclusive<u32>| {
        let found = amount.and_then(|amount| u32::try_from(amount).ok());
        found.filter(|found| range.contains(found)).ok_or_else(|| {
            Refusal::new(format!(
                "it consumes {} of {what}, expected {} to {}",
                amount.map_or("nothing".to_owned(), |amount| amount.to_string()),
                range.start(),
                range.end()
            ))
        })
    };
    let Some(memory) = memory.filter(|memory| *memory > 0) else {
        return Err(Refusal::new(format!("it consumes no {MEMORY}")));
    };
    let weight = small(WEIGHT, weight, 1..=MAX_WEIGHT)?;
    let cores = match (device.mode, cores.unwrap_or(0)) {
        (Mode::Weight, 0) => 0,
        (Mode::Cores, amount @ 1..) => small(CORES, Some(amount), 1..=100)?,
        (mode, _) => {
            return Err(Refusal::new(format!(
                "it was given while {} shared by {}, which now shares by {}; {}, or make a new \
                 claim",
                result.device,
                if mode == Mode::Weight { "cores" } else { "weight" },
                mode.name(),
                if mode == Mode::Weight { "set its policy to 3" } else { "set another policy" },
            )));
        }
    };
    Ok(Capacity { memory, weight, cores })
}

#[cfg(test)]
mod tests;
