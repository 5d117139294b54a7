//! The control tree: the same under `cgpu get/set` and, later, a file system.
//!
//! ```text
//! version                  r     of the monitor
//! default_memsize          rw    bytes, 0: none
//! N/policy                 rw    1, 2, 5 (0, 3, 4 are not there yet)
//! N/max_inst               rw    1..25
//! N/free_weight            r     max_inst less the weights of its containers
//! N/prio_ratio             rw    20..99
//! N/work_conserving        rw    0, 1
//! N/<id>/id                r
//! N/<id>/memsize           rw    bytes; 0: as it was started with
//! N/<id>/meminfo           r     "Free: <bytes>", then "PID: <pid> Mem: <bytes>" for each process
//! N/<id>/weight            rw    1..25
//! N/<id>/highprio          rw    0 (1 is not there yet)
//! ```

use cgpu_proto::units::{Bytes, Nanos};

use crate::controller::policy::Policy;
use crate::controller::tenants::TenantId;
use crate::host::Host;
use crate::message::{Errno, Refusal};
use crate::scout::Errand;

/// A node of the tree, for containers and cards that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Root,
    Version,
    DefaultMemsize,
    Card(usize),
    Policy(usize),
    MaxInst(usize),
    FreeWeight(usize),
    PrioRatio(usize),
    WorkConserving(usize),
    Container(usize, TenantId),
    Id(TenantId),
    Memsize(usize, TenantId),
    Meminfo(usize, TenantId),
    Weight(TenantId),
    Highprio,
}

const CARD_NODES: [&str; 5] = ["policy", "max_inst", "free_weight", "prio_ratio", "work_conserving"];
const CONTAINER_NODES: [&str; 5] = ["id", "memsize", "meminfo", "weight", "highprio"];
/// Containers that a card can be set to take.
const MOST_CONTAINERS: u64 = 25;

fn refuse<T>(errno: Errno, sentence: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(errno, sentence))
}

/// The node at a path.
fn node(host: &Host, path: &str) -> Result<Node, Refusal> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let missing =
        || Refusal::new(Errno::ENOENT, format!("There is no node {path:?}; list shows what there is."));
    let card = |name: &str| {
        let at = name.parse().ok().and_then(|n: u32| host.boards.iter().position(|board| board.index == n));
        at.ok_or_else(|| Refusal::new(Errno::ENOENT, format!("There is no card {name}.")))
    };
    let container = |at: usize, id: &str| {
        let found = host
            .containers
            .values()
            .find(|container| container.id == id && container.cards().contains(&host.boards[at].uuid));
        let tenant = found.map(|container| container.tenant);
        tenant.ok_or_else(|| Refusal::new(Errno::ENOENT, format!("There is no container {id} on this card.")))
    };
    Ok(match parts[..] {
        [] => Node::Root,
        ["version"] => Node::Version,
        ["default_memsize"] => Node::DefaultMemsize,
        [n] => Node::Card(card(n)?),
        [n, "policy"] => Node::Policy(card(n)?),
        [n, "max_inst"] => Node::MaxInst(card(n)?),
        [n, "free_weight"] => Node::FreeWeight(card(n)?),
        [n, "prio_ratio"] => Node::PrioRatio(card(n)?),
        [n, "work_conserving"] => Node::WorkConserving(card(n)?),
        [n, id] => {
            let at = card(n)?;
            Node::Container(at, container(at, id)?)
        }
        [n, id, leaf] => {
            let at = card(n)?;
            let tenant = container(at, id)?;
            match leaf {
                "id" => Node::Id(tenant),
                "memsize" => Node::Memsize(at, tenant),
                "meminfo" => Node::Meminfo(at, tenant),
                "weight" => Node::Weight(tenant),
                "highprio" => Node::Highprio,
                _ => return Err(missing()),
            }
        }
        _ => return Err(missing()),
    })
}

/// Reads a node.
pub(crate) fn get(host: &mut Host, path: &str) -> Result<String, Refusal> {
    let node = node(host, path)?;
    Ok(match node {
        Node::Root | Node::Card(_) | Node::Container(..) => {
            return refuse(Errno::EINVAL, format!("{path:?} is a folder; list shows what is in it."));
        }
        Node::Version => env!("CARGO_PKG_VERSION").into(),
        Node::DefaultMemsize => host.settings.default_memsize.to_string(),
        Node::Policy(at) => host.boards[at].controller.policy().number().to_string(),
        Node::MaxInst(at) => host.boards[at].settings.max_inst.to_string(),
        Node::FreeWeight(at) => free_weight(host, at).to_string(),
        Node::PrioRatio(at) => host.boards[at].settings.prio_ratio.to_string(),
        Node::WorkConserving(at) => u32::from(host.boards[at].settings.work_conserving).to_string(),
        Node::Id(tenant) => host.containers[&tenant].id.clone(),
        Node::Memsize(at, tenant) => host.containers[&tenant].limit(host.boards[at].uuid).0.to_string(),
        Node::Meminfo(at, tenant) => meminfo(host, at, tenant),
        Node::Weight(tenant) => host.containers[&tenant].weight().to_string(),
        Node::Highprio => "0".into(),
    })
}

/// The names in a folder.
pub(crate) fn list(host: &Host, path: &str) -> Result<Vec<String>, Refusal> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    match node(host, path)? {
        Node::Root => {
            let mut all = names(&["version", "default_memsize"]);
            all.extend(host.boards.iter().map(|board| format!("{}/", board.index)));
            Ok(all)
        }
        Node::Card(at) => {
            let mut all = names(&CARD_NODES);
            let uuid = host.boards[at].uuid;
            let mut ids: Vec<String> = host
                .containers
                .values()
                .filter(|container| container.cards().contains(&uuid))
                .map(|container| format!("{}/", container.id))
                .collect();
            ids.sort();
            all.extend(ids);
            Ok(all)
        }
        Node::Container(..) => Ok(names(&CONTAINER_NODES)),
        _ => refuse(Errno::EINVAL, format!("{path:?} is no folder; get reads it.")),
    }
}

/// Writes a node. It is in force with the next step.
pub(crate) fn set(host: &mut Host, now: Nanos, path: &str, value: &str) -> Result<(), Refusal> {
    match node(host, path)? {
        Node::Root | Node::Card(_) | Node::Container(..) => {
            return refuse(Errno::EINVAL, format!("{path:?} is a folder."));
        }
        Node::Version | Node::FreeWeight(_) | Node::Id(_) | Node::Meminfo(..) => {
            return refuse(Errno::EACCES, format!("{path:?} is read-only."));
        }
        Node::DefaultMemsize => host.settings.default_memsize = number(value, 0, u64::MAX)?,
        Node::Policy(at) => {
            let wanted = small(value, 0, 5)?;
            if Policy::numbered(wanted, false).is_none() {
                return refuse(
                    Errno::EINVAL,
                    format!(
                        "Policy {wanted} is not there yet: expected 1 (preemptive), 2 (weighted) or 5 (native)."
                    ),
                );
            }
            host.boards[at].settings.policy = Some(wanted);
        }
        Node::MaxInst(at) => {
            let wanted = small(value, 1, MOST_CONTAINERS)?;
            let (count, weights) = load(host, at);
            if u64::from(wanted) < weights.max(count) {
                return refuse(
                    Errno::EBUSY,
                    format!(
                        "{count} containers with a weight of {weights} together are there: expected at least that."
                    ),
                );
            }
            host.boards[at].settings.max_inst = wanted;
        }
        Node::PrioRatio(at) => host.boards[at].settings.prio_ratio = small(value, 20, 99)?,
        Node::WorkConserving(at) => host.boards[at].settings.work_conserving = small(value, 0, 1)? == 1,
        Node::Memsize(at, tenant) => {
            let wanted = number(value, 0, u64::MAX)?;
            let (uuid, total) = (host.boards[at].uuid.to_string(), host.total(&host.boards[at]));
            if total > 0 && wanted > total {
                return refuse(
                    Errno::EINVAL,
                    format!("Expected at most the card's {total} bytes, got {wanted}."),
                );
            }
            let id = host.containers[&tenant].id.clone();
            let memsize = &mut host.settings.containers.entry(id).or_default().memsize;
            if wanted == 0 {
                memsize.remove(&uuid);
            } else {
                memsize.insert(uuid, wanted);
            }
            host.set_limits(tenant);
        }
        Node::Weight(tenant) => {
            let wanted = small(value, 1, MOST_CONTAINERS)?;
            let before = host.containers[&tenant].weight();
            for at in 0..host.boards.len() {
                let board = &host.boards[at];
                if !host.containers[&tenant].cards().contains(&board.uuid) {
                    continue;
                }
                let free = free_weight(host, at) + i64::from(before);
                if i64::from(wanted) > free.max(i64::from(before)) {
                    let index = board.index;
                    return refuse(
                        Errno::EBUSY,
                        format!(
                            "Card {index} has a weight of {free} left for it; raise {index}/max_inst or lower others' weights."
                        ),
                    );
                }
            }
            let id = host.containers[&tenant].id.clone();
            host.settings.containers.entry(id).or_default().weight = Some(wanted);
            if let Some(container) = host.containers.get_mut(&tenant) {
                container.weight = Some(wanted);
            }
            for board in &mut host.boards {
                board.controller.set_weight(now, tenant, wanted);
                board.stale = true;
            }
        }
        Node::Highprio => {
            if small(value, 0, 1)? == 1 {
                return refuse(Errno::EINVAL, "High priority is not there yet: expected 0.");
            }
        }
    }
    for board in &host.boards {
        host.settings.cards.insert(board.uuid.to_string(), board.settings);
    }
    host.follow(now);
    host.scout.ask(Errand::Save(host.settings.clone()));
    Ok(())
}

/// Containers of a card that somebody made or lives in, and their weights together.
fn load(host: &Host, at: usize) -> (u64, u64) {
    let uuid = host.boards[at].uuid;
    let there = host.containers.values().filter(|container| container.standing(uuid).created);
    let there = there.filter(|container| container.cards().contains(&uuid));
    there.fold((0, 0), |(count, weights), container| (count + 1, weights + u64::from(container.weight())))
}

/// Weight that is still to be had on a card; negative when containers were started with more.
pub(crate) fn free_weight(host: &Host, at: usize) -> i64 {
    let weights = i64::try_from(load(host, at).1).unwrap_or(i64::MAX);
    i64::from(host.boards[at].settings.max_inst) - weights
}

fn meminfo(host: &mut Host, at: usize, tenant: TenantId) -> String {
    let uuid = host.boards[at].uuid;
    let total = host.total(&host.boards[at]);
    let Some(container) = host.containers.get_mut(&tenant) else { return String::new() };
    let limit = match container.limit(uuid) {
        Bytes::ZERO => Bytes(total),
        limit => limit,
    };
    let Some(region) = &mut container.region else { return format!("Free: {}\n", limit.0) };
    region.look();
    let Some(seen) = region.card(uuid).and_then(|card| region.seen.cards.get(card.get())) else {
        return format!("Free: {}\n", limit.0);
    };
    let mut text = format!("Free: {}\n", (limit - seen.used()).0);
    for &(slot, generation) in &region.live {
        let (Some(cell), Some(about)) = (seen.cells.get(slot.get()), region.seen.slots.get(slot.get()))
        else {
            continue;
        };
        let pid = container.host_pids.get(&(slot, generation)).copied().flatten().unwrap_or(about.pid);
        text += &format!("PID: {pid} Mem: {}\n", (cell.used + cell.implicit).0);
    }
    text
}

/// A whole number within bounds; blanks around it do not matter.
fn number(text: &str, least: u64, most: u64) -> Result<u64, Refusal> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    match number.filter(|number| (least..=most).contains(number)) {
        Some(number) => Ok(number),
        None if most == u64::MAX => {
            refuse(Errno::EINVAL, format!("Expected a number of bytes, got {text:?}."))
        }
        None => refuse(Errno::EINVAL, format!("Expected a number from {least} to {most}, got {text:?}.")),
    }
}

fn small(text: &str, least: u64, most: u64) -> Result<u32, Refusal> {
    number(text, least, most).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_within_bounds() {
        assert_eq!(number(" 7\n", 1, 9), Ok(7));
        for text in ["", "x", "-1", "+1", "1.0", "0x10", "10", "99999999999999999999999", "1 2"] {
            assert_eq!(number(text, 1, 9).unwrap_err().errno, Errno::EINVAL, "{text:?}");
        }
    }
}
