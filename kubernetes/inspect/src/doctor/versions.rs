//! Checks of the cluster's parts: whether they know claims, and shares of devices.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_kubernetes_client::Api;

use super::causes::{Cause, Findings};
use super::claim::is_node_for_claims;
use super::facts::{Facts, ObservedPod};
use crate::claims::{Claims, results};

/// First minor version of Kubernetes 1 with `resource.k8s.io/v1`.
const CLAIMS: u32 = 34;
/// First one in which [`GATE`] is on by default.
const SHARES: u32 = 36;
/// Feature gate of devices that several claims share.
pub(super) const GATE: &str = "DRAConsumableCapacity";
/// Feature gate of claims.
const CLAIMS_GATE: &str = "DynamicResourceAllocation";
/// Label of the control plane's pods, where they are pods.
const COMPONENT: &str = "component";
const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-scheduler", "kube-controller-manager"];

/// What the API server says of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiFacts {
    /// Such as `v1.36.2`.
    pub(crate) version: Option<String>,
    /// Whether it serves `resource.k8s.io/v1`; none without the right to list its objects.
    pub(crate) serves_claims: Option<bool>,
    /// Whether its gate is on, where its metrics can be read.
    pub(crate) gate: Option<bool>,
}

impl ApiFacts {
    /// Reads them. Its metrics are large, so they are read only if cgpu has a class there.
    pub(crate) async fn read(api: &Api, claims: &Claims) -> Self {
        let metrics = match is_used_by(claims) {
            true => api.text("/metrics").await.unwrap_or_default(),
            false => String::new(),
        };
        Self { version: api.version().await.ok(), serves_claims: Some(true), gate: gate(&metrics) }
    }
}

/// Returns whether the gate is on, from the metrics of a component.
fn gate(metrics: &str) -> Option<bool> {
    let start = "kubernetes_feature_enabled{";
    let line = metrics
        .lines()
        .find(|line| line.starts_with(start) && line.contains(&format!("name=\"{GATE}\"")))?;
    Some(line.rsplit(' ').next() == Some("1"))
}

fn is_used_by(claims: &Claims) -> bool {
    !claims.devices.is_empty() || !claims.incomplete.is_empty() || claims.has_class()
}

/// Returns whether the cluster is set up for claims of cgpu's GPUs.
fn is_used(facts: &Facts) -> bool {
    is_used_by(&facts.claims.claims) || wants_claims(facts)
}

/// Returns whether a node is labelled for claims or publishes devices.
pub(super) fn wants_claims(facts: &Facts) -> bool {
    facts.nodes.keys().any(|name| is_node_for_claims(facts, name))
}

/// Returns whether pods may claim GPUs of cgpu, and the claims could be read.
pub(super) fn serves_claims(facts: &Facts) -> bool {
    facts.claims.api.serves_claims == Some(true) && is_used(facts)
}

pub(super) fn examine(facts: &Facts, findings: &mut Findings) {
    let api = &facts.claims.api;
    let Some(serves_claims) = api.serves_claims.filter(|_| is_used(facts)) else { return };
    let server = format!("API server {}", api.version.as_deref().unwrap_or("of unknown version"));
    if !serves_claims {
        return findings.add(Cause::ClaimsNotServed, &server, "");
    }
    let claims = &facts.claims.claims;
    let is_shared = claims.devices.iter().any(|device| device.published.allow_multiple_allocations);
    if !claims.devices.is_empty() && !is_shared {
        let found = "the devices in its ResourceSlices do not allow several allocations";
        findings.add(Cause::SharesOff, &server, found);
    } else if api.gate == Some(false) {
        findings.add(Cause::SharesOff, &server, format!("{GATE} is 0 in its metrics"));
    }
    let whole = claims
        .claims
        .iter()
        .find(|claim| results(claim).any(|it| !it.admin_access && it.consumed_capacity.is_empty()));
    if let Some(claim) = whole.filter(|_| is_shared) {
        let found = format!("claim {} was allocated without amounts", claim.title());
        findings.add(Cause::SharesOff, "kube-scheduler", found);
    }
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    versions.entry("API server").or_default().extend(api.version.as_deref());
    for observed in &facts.pods {
        let Some(component) = component(observed) else { continue };
        let subject = format!("{component} (pod {})", observed.title());
        let version = image_version(observed);
        versions.entry(component).or_default().extend(version);
        check(&subject, version, &gates(observed), findings);
    }
    for (name, observed) in &facts.nodes {
        if is_node_for_claims(facts, name) && !observed.kubelet_version().is_empty() {
            let version = observed.kubelet_version();
            versions.entry("kubelets").or_default().insert(version);
            if minor(version).is_some_and(|minor| minor < CLAIMS) {
                let subject = format!("node {name}");
                findings.add(Cause::TooOldForClaims, &subject, format!("kubelet {version}"));
            }
        }
    }
    for (part, versions) in versions {
        let versions: Vec<&str> = versions.into_iter().collect();
        if !versions.is_empty() {
            findings.examined(format!("{part} {}", versions.join(" and ")));
        }
    }
}

/// Checks the version and the gates of a component.
fn check(
    subject: &str,
    version: Option<&str>,
    gates: &BTreeMap<&str, bool>,
    findings: &mut Findings,
) {
    let minor = version.and_then(minor);
    if minor.is_some_and(|minor| minor < CLAIMS) {
        let found = format!("version {}", version.unwrap_or_default());
        return findings.add(Cause::TooOldForClaims, subject, found);
    }
    if gates.get(CLAIMS_GATE) == Some(&false) {
        return findings.add(Cause::SharesOff, subject, format!("{CLAIMS_GATE}=false"));
    }
    match gates.get(GATE) {
        Some(true) => {}
        Some(false) => findings.add(Cause::SharesOff, subject, format!("{GATE}=false")),
        None if minor.is_some_and(|minor| minor < SHARES) => {
            let found = format!("version {}, {GATE} is not set", version.unwrap_or_default());
            findings.add(Cause::SharesOff, subject, found);
        }
        None => {}
    }
}

/// Returns which component of the control plane a pod is.
fn component(observed: &ObservedPod) -> Option<&'static str> {
    let metadata = &observed.pod.metadata;
    let label = metadata.labels.get(COMPONENT).filter(|_| metadata.namespace == "kube-system")?;
    COMPONENTS.into_iter().find(|name| name == label)
}

/// Returns the tag of a component's image, such as `v1.36.2`.
fn image_version(observed: &ObservedPod) -> Option<&str> {
    let image = &observed.spec.containers.first()?.image;
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    minor(tag).map(|_| tag)
}

/// Returns the minor version of Kubernetes 1.
fn minor(version: &str) -> Option<u32> {
    let rest = version.trim_start_matches('v').strip_prefix("1.")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the feature gates of a component's command line.
fn gates(observed: &ObservedPod) -> BTreeMap<&str, bool> {
    let Some(container) = observed.spec.containers.first() else { return BTreeMap::new() };
    let arguments = container.command.iter().chain(&container.args);
    let lists = arguments.filter_map(|it| it.strip_prefix("--feature-gates="));
    let gates = lists.flat_map(|list| list.split(',')).filter_map(|gate| gate.split_once('='));
    gates.map(|(name, value)| (name.trim(), value.trim() == "true")).collect()
}
