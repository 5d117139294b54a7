//! Checks of claims, of the pods that use them, and of the nodes that publish devices.

use std::collections::BTreeSet;

use cgpu_kubernetes_client::{Api, Failure, Query, Record};
use cgpu_kubernetes_dra::dialect::ClaimRequest;
use cgpu_kubernetes_dra::slices::UNHEALTHY;

use super::causes::{Cause, Findings};
use super::facts::{Facts, ObservedPod};
use super::versions::{self, ApiFacts};
use crate::claims::Claims;
use crate::claims::object::{ObservedEvent, ObservedTemplate};
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
        let uid = &observed.pod.metadata.uid;
        let events = self.events.iter();
        let events = events.filter(|it| it.involved_object.uid == *uid && it.reason == reason);
        events.max_by_key(|event| event.time()).map(|event| event.message.as_str())
    }
}

/// Lists objects; `None` without permission.
async fn permitted<R: Record>(api: &Api, query: Query) -> Result<Option<Vec<R>>, Failure> {
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
        if device.published.taints.iter().any(|taint| taint.key == UNHEALTHY) {
            let found = format!("{} ({})", device.published.name, device.text("uuid"));
            findings.add(Cause::GpuUnhealthy, &subject, found);
        }
    }
}

pub(super) fn examine_pod(
    facts: &Facts,
    observed: &ObservedPod,
    selectors: &Selectors<'_>,
    findings: &mut Findings,
) {
    let has_started =
        matches!(observed.pod.status.phase.as_str(), "Failed" | "Succeeded" | "Running");
    if has_started || !versions::serves_claims(facts) {
        return;
    }
    let (mut is_ours, mut is_allocated) = (false, true);
    for reference in &observed.spec.resource_claims {
        let namespace = &observed.pod.metadata.namespace;
        let subject = format!("pod {}, claim {}", observed.title(), reference.name);
        let made = observed.status.resource_claim_statuses.iter();
        let made = made.filter(|it| it.name == reference.name);
        let made = made.filter_map(|it| it.resource_claim_name.as_deref()).next();
        let name = match (&reference.resource_claim_name, &reference.resource_claim_template_name) {
            (Some(name), _) => name,
            (None, Some(template)) => match made {
                Some(name) => name,
                None => {
                    let key = (namespace.clone(), template.clone());
                    let templates = facts.claims.templates.as_ref();
                    let is_missing = templates.is_some_and(|known| !known.contains(&key));
                    let (cause, reason) = match is_missing {
                        false => (Cause::ClaimNotMade, NOT_MADE),
                        true if ClaimRequest::named(template).is_some() => {
                            (Cause::TemplateAwaited, TEMPLATE_REFUSED)
                        }
                        true => (Cause::TemplateMissing, NOT_MADE),
                    };
                    let message = facts.claims.message(observed, reason);
                    let message = message.map(|message| format!(": {message}"));
                    let found = format!("template {template}{}", message.unwrap_or_default());
                    findings.add(cause, &subject, found);
                    continue;
                }
            },
            (None, None) => continue,
        };
        let Some(claim) = facts.claims.claims.claim(namespace, name) else {
            findings.add(Cause::ClaimMissing, &subject, format!("claim {name}"));
            continue;
        };
        if !facts.claims.claims.is_ours(claim) {
            continue;
        }
        is_ours = true;
        if claim.status.allocation.is_some() {
            if let Some(refusal) = obstacle::refused_allocation(claim) {
                findings.add(Cause::ClaimConfigRefused, &subject, refusal);
            }
            continue;
        }
        is_allocated = false;
        match obstacle::of(claim, &facts.claims.claims, selectors) {
            Some(obstacle) => report(obstacle, &subject, findings),
            None => {
                let message = observed.scheduler_message();
                if message.contains(versions::GATE) {
                    findings.add(Cause::SharesOff, "kube-scheduler", message);
                    continue;
                }
                let found = match message {
                    "" => format!("schedulerName {}", observed.spec.scheduler_name),
                    _ => message.to_owned(),
                };
                findings.add(Cause::ClaimOtherObstacle, &subject, found);
            }
        }
    }
    let node = &observed.pod.spec.node_name;
    if is_ours && is_allocated && !node.is_empty() {
        examine_start(facts, observed, node, findings);
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
