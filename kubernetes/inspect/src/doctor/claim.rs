//! Checks of claims, of the pods that use them, and of the nodes that publish devices.

use std::collections::BTreeSet;

use cgpu_kubernetes_client::{Api, Failure, Query, Record};
use cgpu_kubernetes_dra::dialect::ClaimRequest;
use cgpu_kubernetes_dra::slices::{OTHER_OWNER, UNHEALTHY};

use super::causes::{Cause, Findings};
use super::facts::{ClaimReference, Facts, ObservedPod};
use super::versions::{self, ApiFacts};
use crate::claims::Claims;
use crate::claims::object::{Condition, ObservedClaim, ObservedEvent, ObservedTemplate};
use crate::claims::obstacle::{self, Obstacle};
use crate::claims::room::Lack;
use crate::claims::selector::Selectors;
use crate::listing;

/// Label of the driver's pods.
const DRIVER_PODS: &str = "cgpu-dra-driver";
/// Label of nodes with its value where pods claim GPUs.
const ENGINE: (&str, &str) = ("cgpu.dev/engine", "dra");
/// Reason of the kubelet's events about claims that are not prepared.
const NOT_PREPARED: &str = "FailedPrepareDynamicResources";
/// Reason of Kubernetes' events about claims that are not made.
const NOT_MADE: &str = "FailedResourceClaimCreation";
/// Reason of events about templates that cgpu-dra-controller could not make.
const TEMPLATE_REFUSED: &str = "ClaimTemplateRefused";

/// What the API server has of claims.
#[derive(Default)]
pub(crate) struct ClaimFacts {
    pub(crate) claims: Claims,
    /// Namespace and name of each template; `None` without permission to list them.
    pub(crate) templates: Option<BTreeSet<(String, String)>>,
    /// Events about claims that were not made or not prepared.
    pub(crate) events: Vec<ObservedEvent>,
    pub(crate) api: ApiFacts,
}

impl ClaimFacts {
    /// Reads them. Also returns why claims could not be read, if there is no permission.
    pub(crate) async fn read(api: &Api) -> Result<(Self, Option<Failure>), Failure> {
        let claims = match listing::claims(api).await {
            Ok(claims) => claims,
            Err(failure @ Failure::Refused { code: 403, .. }) => {
                return Ok((Self::default(), Some(failure)));
            }
            Err(failure) => return Err(failure),
        };
        let Some(claims) = claims else {
            let version = api.version().await.ok();
            let api = ApiFacts { version, serves_claims: Some(false), gate: None };
            return Ok((Self { api, ..Self::default() }, None));
        };
        let templates = permitted::<ObservedTemplate>(api, Query::all()).await?;
        let mut events = Vec::new();
        for reason in [NOT_PREPARED, NOT_MADE, TEMPLATE_REFUSED] {
            let query = Query::all().field(format!("reason={reason}"));
            events.extend(permitted::<ObservedEvent>(api, query).await?.unwrap_or_default());
        }
        let templates = templates.map(|all| {
            let name = |it: ObservedTemplate| (it.metadata.namespace, it.metadata.name);
            all.into_iter().map(name).collect()
        });
        let api = ApiFacts::read(api, &claims).await;
        Ok((Self { claims, templates, events, api }, None))
    }

    /// Returns the message of the latest event of a pod with this reason.
    fn message(&self, observed: &ObservedPod, reason: &str) -> Option<&str> {
        latest(&self.events, observed, reason)
    }
}

/// Returns the message of the latest event of a pod with this reason.
pub(super) fn latest<'a>(
    events: &'a [ObservedEvent],
    observed: &ObservedPod,
    reason: &str,
) -> Option<&'a str> {
    let uid = &observed.pod.metadata.uid;
    let events = events.iter();
    let events = events.filter(|it| it.involved_object.uid == *uid && it.reason == reason);
    events.max_by_key(|event| event.time()).map(|event| event.message.as_str())
}

/// Lists objects; `None` without permission.
pub(super) async fn permitted<R: Record>(
    api: &Api,
    query: Query,
) -> Result<Option<Vec<R>>, Failure> {
    match api.list_each(&query, |record: R| record).await {
        Ok(list) => Ok(Some(list.items)),
        Err(Failure::Refused { code: 403, .. } | Failure::NotFound(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Returns whether pods claim the node's GPUs instead of counting units.
pub(super) fn is_node_for_claims(facts: &Facts, name: &str) -> bool {
    let is_labelled = facts.nodes.get(name).is_some_and(|observed| {
        let label = observed.node.metadata.labels.get(ENGINE.0);
        label.is_some_and(|value| value == ENGINE.1)
    });
    is_labelled || facts.claims.claims.has_pool(name)
}

pub(super) fn examine_node(facts: &Facts, name: &str, findings: &mut Findings) {
    let subject = format!("node {name}");
    let claims = &facts.claims.claims;
    let driver = facts
        .pods
        .iter()
        .find(|observed| observed.pod.spec.node_name == name && observed.is_component(DRIVER_PODS));
    let obstacles = driver.map(ObservedPod::obstacles).unwrap_or_default();
    if !obstacles.is_empty() {
        findings.add(Cause::DriverFailing, &subject, obstacles.join("; "));
    } else if versions::serves_claims(facts) && !claims.has_pool(name) {
        let found = driver.map_or_else(
            || "no pod of it is on the node".to_owned(),
            |observed| format!("its pod is {}", observed.title()),
        );
        findings.add(Cause::NoDriver, &subject, found);
    }
    if claims.incomplete.iter().any(|pool| pool == name) {
        findings.add(Cause::SlicesIncomplete, &subject, "");
    }
    for device in claims.pool(name) {
        let title = format!("{} ({})", device.published.name, device.text("uuid"));
        for taint in &device.published.taints {
            match taint.key.as_str() {
                UNHEALTHY => findings.add(Cause::GpuUnhealthy, &subject, &title),
                OTHER_OWNER => {
                    let found = format!("{title}: {}", taint.value);
                    findings.add(Cause::OtherOwner, &subject, found);
                }
                _ => {}
            }
        }
    }
}

pub(super) fn examine_pod(
    facts: &Facts,
    observed: &ObservedPod,
    selectors: &Selectors<'_>,
    findings: &mut Findings,
) {
    let phase = observed.pod.status.phase.as_str();
    if matches!(phase, "Failed" | "Succeeded") || !versions::serves_claims(facts) {
        return;
    }
    let has_started = phase == "Running";
    let mut is_allocated = None;
    for reference in &observed.spec.resource_claims {
        let subject = format!("pod {}, claim {}", observed.title(), reference.name);
        let claim = match find(facts, observed, reference) {
            Ok(claim) => claim,
            Err((cause, found)) if !has_started => {
                findings.add(cause, &subject, found);
                continue;
            }
            Err(_) => continue,
        };
        if !facts.claims.claims.is_ours(claim) {
            continue;
        }
        let conditions = claim.status.devices.iter().flat_map(|device| &device.conditions);
        for found in conditions.filter_map(Condition::unresized) {
            findings.add(Cause::NotResized, &subject, found);
        }
        *is_allocated.get_or_insert(true) &= claim.status.allocation.is_some();
        if claim.status.allocation.is_none() {
            examine_unallocated(facts, observed, claim, selectors, &subject, findings);
        } else if let Some(refusal) = obstacle::refused_allocation(claim).filter(|_| !has_started) {
            findings.add(Cause::ClaimConfigRefused, &subject, refusal);
        }
    }
    let node = &observed.pod.spec.node_name;
    if is_allocated == Some(true) && !node.is_empty() && !has_started {
        examine_start(facts, observed, node, findings);
    }
}

/// Returns a claim of a pod.
///
/// # Errors
/// Why there is none, and what was found.
fn find<'a>(
    facts: &'a Facts,
    observed: &ObservedPod,
    reference: &ClaimReference,
) -> Result<&'a ObservedClaim, (Cause, String)> {
    let namespace = &observed.pod.metadata.namespace;
    let claim = |name: &str| {
        let claim = facts.claims.claims.claim(namespace, name);
        claim.ok_or_else(|| (Cause::ClaimMissing, format!("claim {name}")))
    };
    let made = observed.status.resource_claim_statuses.iter().find(|it| it.name == reference.name);
    let name = made.unwrap_or(reference).resource_claim_name.as_ref();
    let name = reference.resource_claim_name.as_ref().or(name);
    if let Some(name) = name {
        return claim(name);
    }
    let template = reference.resource_claim_template_name.as_deref().unwrap_or_default();
    let key = (namespace.clone(), template.to_owned());
    let is_missing = facts.claims.templates.as_ref().is_some_and(|known| !known.contains(&key));
    let (cause, reason) = match is_missing {
        false => (Cause::ClaimNotMade, NOT_MADE),
        true if ClaimRequest::named(template).is_some() => {
            (Cause::TemplateAwaited, TEMPLATE_REFUSED)
        }
        true => (Cause::TemplateMissing, NOT_MADE),
    };
    let message = facts.claims.message(observed, reason).map(|message| format!(": {message}"));
    Err((cause, format!("template {template}{}", message.unwrap_or_default())))
}

fn examine_unallocated(
    facts: &Facts,
    observed: &ObservedPod,
    claim: &ObservedClaim,
    selectors: &Selectors<'_>,
    subject: &str,
    findings: &mut Findings,
) {
    let message = observed.scheduler_message();
    match obstacle::of(claim, &facts.claims.claims, selectors) {
        Some(obstacle) => report(obstacle, subject, findings),
        None if message.contains(versions::GATE) => {
            findings.add(Cause::SharesOff, "kube-scheduler", message)
        }
        None if message.is_empty() => {
            let found = format!("schedulerName {}", observed.spec.scheduler_name);
            findings.add(Cause::ClaimOtherObstacle, subject, found);
        }
        None => findings.add(Cause::ClaimOtherObstacle, subject, message),
    }
}

/// Examines why a pod with allocated claims has not started on its node.
fn examine_start(facts: &Facts, observed: &ObservedPod, node: &str, findings: &mut Findings) {
    let subject = format!("pod {}", observed.title());
    let before = findings.iter().count();
    if let Some(found) = facts.nodes.get(node).and_then(|node| node.unready()) {
        findings.add(Cause::NodeNotReady, &subject, found);
    }
    let message = facts.claims.message(observed, NOT_PREPARED);
    if let Some(message) = message.filter(|_| !observed.has_sandbox()) {
        findings.add(Cause::PrepareFailed, &subject, message);
    }
    // A pod that also requests units is examined for these, too.
    if facts.cluster.pod(&observed.pod.metadata.uid).is_some() {
        return;
    }
    for obstacle in observed.obstacles() {
        findings.add(Cause::StartRefused, &subject, obstacle);
    }
    if findings.iter().count() == before {
        findings.add(Cause::Starting, &subject, format!("on node {node}"));
    }
}

/// Examines claims that no pod names.
pub(super) fn examine_unused(
    facts: &Facts,
    namespace: Option<&str>,
    selectors: &Selectors<'_>,
    findings: &mut Findings,
) {
    let of_pod = |observed: &ObservedPod| {
        let named =
            observed.spec.resource_claims.iter().chain(&observed.status.resource_claim_statuses);
        let names = named.filter_map(|it| it.resource_claim_name.clone());
        let namespace = observed.pod.metadata.namespace.clone();
        names.map(|name| (namespace.clone(), name)).collect::<Vec<_>>()
    };
    let used: BTreeSet<(String, String)> = facts.pods.iter().flat_map(of_pod).collect();
    let claims = &facts.claims.claims;
    for claim in claims.claims.iter().filter(|claim| claims.is_ours(claim)) {
        let metadata = &claim.metadata;
        let is_included = namespace.is_none_or(|name| name == metadata.namespace);
        let is_used = used.contains(&(metadata.namespace.clone(), metadata.name.clone()));
        if !is_included || is_used || claim.status.allocation.is_some() {
            continue;
        }
        let subject = format!("claim {}", claim.title());
        match obstacle::of(claim, claims, selectors) {
            Some(obstacle) => report(obstacle, &subject, findings),
            None => findings.add(Cause::ClaimUnused, &subject, ""),
        }
    }
}

fn report(obstacle: Obstacle, subject: &str, findings: &mut Findings) {
    let (cause, found) = match obstacle {
        Obstacle::ClassUnknown(found) => (Cause::ClaimClassUnknown, found),
        Obstacle::ConfigRefused(found) => (Cause::ClaimConfigRefused, found),
        Obstacle::NoDevices => (Cause::ClaimNoDevices, String::new()),
        Obstacle::SelectorFails(found) => (Cause::ClaimSelectorFails, found),
        Obstacle::SelectorUnchecked(found) => (Cause::ClaimSelectorUnchecked, found),
        Obstacle::Scattered(found) => (Cause::ClaimScattered, found),
        Obstacle::Lacking(lack, found) => (cause(lack), found),
    };
    findings.add(cause, subject, found);
}

fn cause(lack: Lack) -> Cause {
    match lack {
        Lack::Unselected => Cause::ClaimUnselected,
        Lack::Tainted => Cause::ClaimTainted,
        Lack::OtherMode => Cause::ClaimOtherMode,
        Lack::TooSmall => Cause::ClaimTooLarge,
        Lack::Whole => Cause::ClaimWholeDevice,
        Lack::Cores => Cause::ClaimNoCores,
        Lack::Weight => Cause::ClaimNoWeight,
        Lack::Memory => Cause::ClaimNoMemory,
        Lack::TooFew => Cause::ClaimTooFewDevices,
    }
}
