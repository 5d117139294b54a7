//! Why a claim is not allocated.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_kubernetes_dra::claim::Configuration;
use cgpu_kubernetes_dra::config;

use super::object::{Alternative, DeviceClaim, DeviceRequest, ObservedClaim};
use super::room::{self, Lack, Misfit};
use super::selector::{Selection, Selectors};
use super::{Claims, results};

/// Why a claim is not allocated, with what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A class does not exist.
    ClassUnknown(String),
    /// The configuration would be refused when the claim is prepared.
    ConfigRefused(String),
    /// No node publishes devices.
    NoDevices,
    /// A selector fails on a device.
    SelectorFails(String),
    /// Whether a device is selected could not be found out.
    SelectorUnchecked(String),
    /// No device fits a request, or too few do.
    Lacking(Lack, String),
    /// Each request fits a node, but no node all of them.
    Scattered(String),
}

/// Returns why a claim is not allocated; none if a node has room for each of its requests.
pub(crate) fn of(
    claim: &ObservedClaim,
    facts: &Claims,
    selectors: &Selectors<'_>,
) -> Option<Obstacle> {
    let devices = &claim.spec.devices;
    for request in &devices.requests {
        for (name, it) in request.alternatives() {
            if !facts.classes.contains_key(&it.device_class_name) {
                let class = &it.device_class_name;
                return Some(Obstacle::ClassUnknown(format!("request {name}: class {class}")));
            }
        }
    }
    if let Some(refusal) = refused_configuration(devices, facts) {
        return Some(Obstacle::ConfigRefused(refusal));
    }
    if facts.devices.is_empty() {
        return Some(Obstacle::NoDevices);
    }
    // Nodes that have room for all requests so far.
    let mut common: Option<BTreeSet<&str>> = None;
    let mut where_each_fits = Vec::new();
    for request in &devices.requests {
        let nodes = match nodes(request, devices, facts, selectors) {
            Ok(nodes) => nodes,
            Err(obstacle) => return Some(obstacle),
        };
        // A request for devices of another driver.
        let Some(nodes) = nodes else { continue };
        let named: Vec<&str> = nodes.iter().copied().collect();
        where_each_fits.push(format!("request {}: {}", request.name, named.join(", ")));
        common = Some(match common {
            Some(common) => common.intersection(&nodes).copied().collect(),
            None => nodes,
        });
    }
    common
        .is_some_and(|common| common.is_empty())
        .then(|| Obstacle::Scattered(where_each_fits.join("; ")))
}

/// Returns why the configuration of an allocated claim would be refused.
pub(crate) fn refused_allocation(claim: &ObservedClaim) -> Option<String> {
    let allocation = claim.status.allocation.as_ref()?;
    results(claim)
        .find_map(|result| config::settings(&allocation.devices.config, &result.request).err())
        .map(|refusal| refusal.to_string())
}

/// Returns why the configuration of a claim and its classes would be refused.
fn refused_configuration(devices: &DeviceClaim, facts: &Claims) -> Option<String> {
    let from = |source: &str, entries: &[Configuration]| -> Vec<Configuration> {
        let with = |entry: &Configuration| Configuration { source: source.into(), ..entry.clone() };
        entries.iter().map(with).collect()
    };
    let of_claim = from("FromClaim", &devices.config);
    let mut checks = vec![("the claim".to_owned(), of_claim)];
    for request in &devices.requests {
        for (_, it) in request.alternatives() {
            let class = facts.classes.get(&it.device_class_name)?;
            let name = format!("class {}", it.device_class_name);
            checks.push((name, from("FromClass", &class.spec.config)));
        }
    }
    checks.into_iter().find_map(|(whose, entries)| {
        config::settings(&entries, "").err().map(|refusal| format!("{whose}: {refusal}"))
    })
}

/// What was found about a request at the devices of all nodes.
#[derive(Default)]
struct Examined<'a> {
    nodes: BTreeMap<&'a str, NodeCount>,
    misfits: Vec<Misfit>,
    fails: Option<String>,
    unchecked: Option<String>,
}

#[derive(Default)]
struct NodeCount {
    selected: u64,
    fitting: u64,
    /// How many times the request fits.
    times: u64,
}

/// Returns the nodes that have room for a request; none if it is not about devices of cgpu.
fn nodes<'a>(
    request: &DeviceRequest,
    claim: &DeviceClaim,
    facts: &'a Claims,
    selectors: &Selectors<'_>,
) -> Result<Option<BTreeSet<&'a str>>, Obstacle> {
    let mut nearest: Option<(Lack, String)> = None;
    let mut uncertain = None;
    let mut is_ours = false;
    for (name, it) in request.alternatives() {
        if !facts.is_class_ours(&it.device_class_name) {
            continue;
        }
        is_ours = true;
        let examined = examine(it, claim.is_distinct(&request.name), facts, selectors);
        if let Some(found) = examined.fails {
            return Err(Obstacle::SelectorFails(format!("request {name}: {found}")));
        }
        let count = it.count.unwrap_or(1);
        let has_room = |node: &NodeCount| match it.allocation_mode.as_str() {
            "All" => node.selected > 0 && node.fitting == node.selected,
            _ => node.times >= count,
        };
        let nodes: BTreeSet<&str> = examined
            .nodes
            .iter()
            .filter(|(_, node)| has_room(node))
            .map(|(name, _)| *name)
            .collect();
        if let (Some(found), false) = (&examined.unchecked, nodes.is_empty()) {
            uncertain.get_or_insert_with(|| format!("request {name}: {found}"));
        } else if !nodes.is_empty() {
            return Ok(Some(nodes));
        }
        let most = examined.nodes.values().map(|node| node.times).max().unwrap_or(0);
        let mut misfits = examined.misfits;
        if most > 0 && nodes.is_empty() {
            misfits.push(Misfit::new(Lack::TooFew, most, ""));
        }
        let Some(lack) = misfits.iter().map(|misfit| misfit.lack).max() else { continue };
        let found = if lack == Lack::TooFew {
            let wanted = if it.allocation_mode == "All" { "all".into() } else { count.to_string() };
            format!("request {name}: a node has {most} of {wanted} devices")
        } else {
            format!("request {name}: {}", counted(&misfits, facts.devices.len()))
        };
        if nearest.as_ref().is_none_or(|(nearest, _)| *nearest < lack) {
            nearest = Some((lack, found));
        }
    }
    match (uncertain, nearest) {
        (Some(found), _) => Err(Obstacle::SelectorUnchecked(found)),
        (None, Some((lack, found))) => Err(Obstacle::Lacking(lack, found)),
        (None, None) if is_ours => Ok(Some(BTreeSet::new())),
        (None, None) => Ok(None),
    }
}

fn examine<'a>(
    request: &Alternative,
    is_distinct: bool,
    facts: &'a Claims,
    selectors: &Selectors<'_>,
) -> Examined<'a> {
    let class = facts.classes.get(&request.device_class_name);
    let of_class = class.map_or(&[][..], |class| &class.spec.selectors);
    let mut examined = Examined::default();
    for (position, device) in facts.devices.iter().enumerate() {
        let expressions =
            of_class.iter().chain(&request.selectors).map(|it| it.cel.expression.as_str());
        match selectors.select(expressions, position) {
            Selection::Yes => {}
            Selection::Unchecked(found) => drop(examined.unchecked.get_or_insert(found)),
            Selection::Fails(found) => {
                examined.fails.get_or_insert(found);
                continue;
            }
            Selection::No => {
                examined.misfits.push(Misfit::new(Lack::Unselected, 0, "not selected"));
                continue;
            }
        }
        let node = examined.nodes.entry(&device.pool).or_default();
        node.selected += 1;
        match room::count(request, device) {
            Ok(times) => {
                node.fitting += 1;
                node.times = node.times.saturating_add(if is_distinct { 1 } else { times });
            }
            Err(misfit) => examined.misfits.push(misfit),
        }
    }
    examined
}

/// Returns how many devices lack what, the most common last: `1/3 devices: not selected; 2/3
/// devices: 4096 MiB free, 6144 requested`. Of several amounts the largest is named.
fn counted(misfits: &[Misfit], all: usize) -> String {
    let mut groups: BTreeMap<Lack, (usize, &Misfit)> = BTreeMap::new();
    for misfit in misfits {
        let (count, best) = groups.entry(misfit.lack).or_insert((0, misfit));
        *count += 1;
        if misfit.available > best.available {
            *best = misfit;
        }
    }
    let parts =
        groups.values().map(|(count, best)| format!("{count}/{all} devices: {}", best.detail));
    parts.collect::<Vec<_>>().join("; ")
}

impl DeviceRequest {
    /// Returns what it accepts, by the names that results and configuration use.
    pub(crate) fn alternatives(&self) -> impl Iterator<Item = (String, &Alternative)> {
        let one = self.exactly.iter().map(|it| (self.name.clone(), it));
        let several = self.first_available.iter();
        one.chain(several.map(|it| (format!("{}/{}", self.name, it.name), it)))
    }
}

impl DeviceClaim {
    /// Returns whether a request may have no device twice.
    fn is_distinct(&self, request: &str) -> bool {
        self.constraints.iter().any(|constraint| {
            let applies = constraint.requests.is_empty()
                || constraint.requests.iter().any(|it| config::base_request(it) == request);
            constraint.distinct_attribute.is_some() && applies
        })
    }
}
