//! Reads, writes and lists the nodes of the control tree, for the socket and the file system alike.

use std::ops::RangeInclusive;

use cgpu_client::device_id::DeviceId;
use cgpu_client::message::{Errno, Kind, Refusal};
use cgpu_scheduler::TenantId;
use cgpu_shm::units::{Bytes, Nanos};

use crate::host::Host;
use crate::nodes::{CONTAINER_NODES, GPU_NODES, Node, ROOT_NODES};
use crate::settings::bounds;

fn refuse<T>(errno: Errno, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(errno, message))
}

fn node(host: &Host, path: &str) -> Result<Node, Refusal> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let missing = || {
        Refusal::new(
            Errno::ENOENT,
            format!("There is no node {path:?}; list (cgpu ls) shows the nodes."),
        )
    };
    let gpu = |name: &str| {
        let index = name.parse::<DeviceId>().ok();
        let at = host.devices.iter().position(|device| Some(device.index) == index);
        at.ok_or_else(|| {
            Refusal::new(
                Errno::ENOENT,
                format!("There is no GPU {name:?}; list (cgpu ls) shows the GPUs."),
            )
        })
    };
    let container = |at: usize, id: &str| {
        let found = host.containers.values().find(|container| {
            container.id == id && container.gpus().contains(&host.devices[at].uuid)
        });
        let tenant = found.map(|container| container.tenant);
        tenant.ok_or_else(|| {
            let gpu = host.devices[at].index;
            let message = format!("There is no node and no container {id:?} on GPU {gpu}.");
            Refusal::new(Errno::ENOENT, message)
        })
    };
    match parts[..] {
        [] => Ok(Node::Root),
        [name] => match ROOT_NODES.iter().find(|(node, _)| *node == name) {
            Some((_, node)) => Ok(*node),
            None => Ok(Node::Gpu(gpu(name)?)),
        },
        [n, name] => {
            let at = gpu(n)?;
            match GPU_NODES.iter().find(|(node, _)| *node == name) {
                Some((_, node)) => Ok(node(at)),
                None => Ok(Node::Container(at, container(at, name)?)),
            }
        }
        [n, id, leaf] => {
            let at = gpu(n)?;
            let tenant = container(at, id)?;
            let found = CONTAINER_NODES.iter().find(|(node, _)| *node == leaf);
            found.map(|(_, node)| node(at, tenant)).ok_or_else(missing)
        }
        _ => Err(missing()),
    }
}

pub(crate) fn kind(host: &Host, path: &str) -> Result<Kind, Refusal> {
    node(host, path).map(Node::kind)
}

pub(crate) fn get(host: &mut Host, path: &str) -> Result<String, Refusal> {
    let node = node(host, path)?;
    Ok(match node {
        Node::Root | Node::Gpu(_) | Node::Container(..) => {
            return refuse(
                Errno::EINVAL,
                format!("{path:?} is a folder; list (cgpu ls) shows its nodes."),
            );
        }
        Node::Version => env!("CARGO_PKG_VERSION").into(),
        Node::DefaultMemsize => host.default_memsize().0.to_string(),
        Node::Policy(at) => host.devices[at].scheduler.policy().number().to_string(),
        Node::MaxInst(at) => host.devices[at].in_force().max_inst().to_string(),
        Node::FreeWeight(at) => host.capacity(&host.devices[at]).free().to_string(),
        Node::PrioRatio(at) => host.devices[at].in_force().prio_ratio().to_string(),
        Node::WorkConserving(at) => {
            u32::from(host.devices[at].in_force().work_conserving()).to_string()
        }
        Node::Id(_, tenant) => host.containers[&tenant].id.clone(),
        Node::Memsize(at, tenant) => {
            host.containers[&tenant].limit(host.devices[at].uuid).0.to_string()
        }
        Node::Meminfo(at, tenant) => meminfo(host, at, tenant),
        Node::Weight(at, tenant) => {
            host.capacity(&host.devices[at]).of(&host.containers[&tenant]).weight.to_string()
        }
        Node::Percent(_, tenant) => host.containers[&tenant].percent().unwrap_or(0).to_string(),
        Node::Highprio(_, tenant) => u32::from(host.containers[&tenant].is_high()).to_string(),
    })
}

/// Lists the names in a folder. Names of folders end with `/`.
pub(crate) fn list(host: &Host, path: &str) -> Result<Vec<String>, Refusal> {
    match node(host, path)? {
        Node::Root => {
            let nodes = ROOT_NODES.iter().map(|(name, _)| (*name).to_owned());
            Ok(nodes
                .chain(host.devices.iter().map(|device| format!("{}/", device.index)))
                .collect())
        }
        Node::Gpu(at) => {
            let uuid = host.devices[at].uuid;
            let mut ids: Vec<String> = host
                .containers
                .values()
                .filter(|container| container.gpus().contains(&uuid))
                .map(|container| format!("{}/", container.id))
                .collect();
            ids.sort();
            Ok(GPU_NODES.iter().map(|(name, _)| (*name).to_owned()).chain(ids).collect())
        }
        Node::Container(..) => {
            Ok(CONTAINER_NODES.iter().map(|(name, _)| (*name).to_owned()).collect())
        }
        _ => refuse(Errno::EINVAL, format!("{path:?} is not a folder; get (cgpu get) reads it.")),
    }
}

/// Writes a node. The value is in force from the next step. If it cannot be saved, nothing changes:
/// a value that the next monitor would silently not have must not be in force.
pub(crate) fn set(host: &mut Host, now: Nanos, path: &str, value: &str) -> Result<(), Refusal> {
    let node = node(host, path)?;
    let before = host.all_settings();
    let changed = change(host, node, path, value).and_then(|()| {
        host.try_save_settings().map_err(|error| {
            let state = host.state.display();
            let message =
                format!("Cannot save the settings in {state}: {error}. The old value applies.");
            Refusal::new(Errno::EIO, message)
        })
    });
    match changed {
        Ok(()) => {
            if let Node::Memsize(_, tenant) = node {
                host.set_limits(tenant);
            }
            host.apply_settings(now);
        }
        Err(_) => host.restore_settings(before),
    }
    changed
}

fn change(host: &mut Host, node: Node, path: &str, value: &str) -> Result<(), Refusal> {
    match node {
        Node::Root | Node::Gpu(_) | Node::Container(..) => {
            return refuse(Errno::EINVAL, format!("{path:?} is a folder and has no value."));
        }
        Node::Version | Node::FreeWeight(_) | Node::Id(..) | Node::Meminfo(..) => {
            return refuse(Errno::EACCES, format!("{path:?} is read-only."));
        }
        Node::DefaultMemsize => {
            host.settings.default_memsize = Some(number(value, &bounds::BYTES)?)
        }
        Node::Policy(at) => host.devices[at].settings.policy = Some(small(value, &bounds::POLICY)?),
        Node::MaxInst(at) => {
            let wanted = small(value, &bounds::MAX_INST)?;
            let device = &host.devices[at];
            let (before, taken) = (device.in_force().max_inst(), taken(host, at));
            if wanted < before && wanted < taken {
                let message = format!(
                    "The GPU's containers have a weight of {taken} together: expected at least \
                     that, got {wanted}."
                );
                return refuse(Errno::EBUSY, message);
            }
            host.devices[at].settings.max_inst = Some(wanted);
        }
        Node::PrioRatio(at) => {
            host.devices[at].settings.prio_ratio = Some(small(value, &bounds::PRIO_RATIO)?)
        }
        Node::WorkConserving(at) => {
            host.devices[at].settings.work_conserving = Some(small(value, &bounds::SWITCH)? == 1);
        }
        Node::Memsize(at, tenant) => {
            let wanted = number(value, &bounds::BYTES)?;
            let (uuid, total) = (host.devices[at].uuid.to_string(), host.total(&host.devices[at]));
            if total > 0 && wanted > total {
                return refuse(
                    Errno::EINVAL,
                    format!(
                        "Expected at most the GPU's {total} bytes ({} MiB), got {wanted}.",
                        total >> 20
                    ),
                );
            }
            let id = host.containers[&tenant].id.clone();
            let memsize = &mut host.settings.containers.entry(id).or_default().memsize;
            if wanted == 0 {
                memsize.remove(&uuid);
            } else {
                memsize.insert(uuid, wanted);
            }
        }
        Node::Weight(_, tenant) => {
            let wanted = small(value, &bounds::WEIGHT)?;
            set_weight(host, tenant, wanted)?;
        }
        Node::Percent(_, tenant) => {
            let wanted = Some(small(value, &bounds::PERCENT)?).filter(|percent| *percent > 0);
            let Some(container) = host.containers.get_mut(&tenant) else { return Ok(()) };
            container.percent = wanted;
            host.settings.containers.entry(container.id.clone()).or_default().percent = wanted;
        }
        Node::Highprio(_, tenant) => {
            let wanted = small(value, &bounds::SWITCH)? == 1;
            let Some(container) = host.containers.get_mut(&tenant) else { return Ok(()) };
            container.high = Some(wanted);
            host.settings.containers.entry(container.id.clone()).or_default().high = Some(wanted);
        }
    }
    Ok(())
}

/// Sets a container's weight on all its GPUs, if each has enough left.
fn set_weight(host: &mut Host, tenant: TenantId, wanted: u32) -> Result<(), Refusal> {
    let Some(container) = host.containers.get(&tenant) else { return Ok(()) };
    let gpus = container.gpus();
    for device in host.devices.iter().filter(|device| gpus.contains(&device.uuid)) {
        let capacity = host.capacity(device);
        let has = capacity.of(container).weight;
        let most = has + if container.presence(device.uuid).created { capacity.free() } else { 0 };
        if wanted > most {
            let index = device.index;
            return refuse(
                Errno::EBUSY,
                format!(
                    "GPU {index} has a weight of {most} left for it; raise {index}/max_inst or \
                     lower others' weights."
                ),
            );
        }
    }
    host.settings.containers.entry(container.id.clone()).or_default().weight = Some(wanted);
    if let Some(container) = host.containers.get_mut(&tenant) {
        container.weight = Some(wanted);
    }
    Ok(())
}

/// Returns how many capacity units of a GPU are taken: the sum of weights.
fn taken(host: &Host, at: usize) -> u32 {
    let device = &host.devices[at];
    device.in_force().max_inst() - host.capacity(device).free()
}

fn meminfo(host: &mut Host, at: usize, tenant: TenantId) -> String {
    let uuid = host.devices[at].uuid;
    let total = host.total(&host.devices[at]);
    let Some(container) = host.containers.get_mut(&tenant) else { return String::new() };
    let limit = match container.limit(uuid) {
        Bytes::ZERO => Bytes(total),
        limit => limit,
    };
    let Some(region) = &mut container.region else { return format!("Free: {}\n", limit.0) };
    region.refresh();
    let Some(seen) = region.gpu(uuid).and_then(|gpu| region.seen.gpus.get(gpu.get())) else {
        return format!("Free: {}\n", limit.0);
    };
    let used = region.seen.present(seen).map(|(_, cell)| cell.total()).sum::<Bytes>();
    let mut text = format!("Free: {}\n", (limit - used).0);
    for &(slot, generation) in &region.live {
        let (Some(cell), Some(about)) =
            (seen.cells.get(slot.get()), region.seen.slots.get(slot.get()))
        else {
            continue;
        };
        let id = container.host_ids.get(&(slot, generation)).copied().flatten();
        let pid = id.map_or(about.pid, |id| id.pid);
        text += &format!("PID: {pid} Mem: {}\n", cell.total().0);
    }
    text
}

/// Parses a whole number within bounds; blanks around it are ignored.
fn number(text: &str, bounds: &RangeInclusive<u64>) -> Result<u64, Refusal> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    match number.filter(|number| bounds.contains(number)) {
        Some(number) => Ok(number),
        None if *bounds.end() == u64::MAX => {
            refuse(Errno::EINVAL, format!("Expected a number of bytes, got {text:?}."))
        }
        None => {
            let (least, most) = (bounds.start(), bounds.end());
            refuse(
                Errno::EINVAL,
                format!("Expected a number from {least} to {most}, got {text:?}."),
            )
        }
    }
}

fn small(text: &str, bounds: &RangeInclusive<u64>) -> Result<u32, Refusal> {
    number(text, bounds).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_within_bounds() {
        assert_eq!(number(" 7\n", &(1..=9)), Ok(7));
        for text in ["", "x", "-1", "+1", "1.0", "0x10", "10", "99999999999999999999999", "1 2"] {
            assert_eq!(number(text, &(1..=9)).unwrap_err().errno, Errno::EINVAL, "{text:?}");
        }
    }
}
