//! `kubectl inspect gpushare doctor` and `cgpu doctor kubernetes`: why is this pod pending, why is
//! it not limited, why has it no GPU.
//!
//! It reads from the API server, with the same accounting and reasons as the extender. On a node,
//! it also reads that node's files. It changes nothing. `causes` is the table of what it can find.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cgpu_diagnosis::{CANNOT_EXAMINE, Options};
use cgpu_kubernetes_client::{Access, Failure, Query};
use cgpu_kubernetes_core::names::Dialects;
use clap::Args;

use crate::claims::selector::Selectors;
use crate::error::Error;
use crate::listing;

mod causes;
mod claim;
mod facts;
mod files;
mod node;
mod pod;
#[cfg(test)]
mod tests;
mod versions;

use causes::{Cause, Findings, Question};
use claim::ClaimFacts;
use facts::{Facts, ObservedClass, ObservedNode, ObservedPod};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Check only this pod and its node
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// Namespace of the pod [default: the context's]; without a pod: check only the pods of this
    /// namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Check only this node and its pods
    #[arg(long, value_name = "NAME", conflicts_with = "pod")]
    node: Option<String>,
    #[command(flatten)]
    options: Options<Question>,
    /// Root folder of this node's files; they are checked if it has a kubelet's folder [default: /]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

pub(crate) async fn run(
    access: &Access,
    dialects: Dialects,
    arguments: &Arguments,
) -> Result<ExitCode, Error> {
    let mut findings = Findings::default();
    let outcome = examine(access, dialects, arguments, &mut findings).await;
    let here = arguments.node_root().filter(|_| arguments.pod.is_none());
    if let Some(root) = here {
        files::examine(root, &mut findings);
    }
    let unexamined = match outcome {
        Ok(None) => None,
        Ok(Some(failure)) => Some(format!("claims were not examined: {}", Error::from(failure))),
        // Most nodes have no kubeconfig; their files are checked nevertheless.
        Err(error) if here.is_some() => {
            Some(format!("only this node's files were examined: {error}"))
        }
        Err(error) => return Err(error.with_code(CANNOT_EXAMINE)),
    };
    let findings = findings.about(arguments.options.why);
    print!("{}", findings.report(&arguments.options));
    if let Some(message) = &unexamined {
        eprintln!("{message}");
    }
    let is_incomplete = unexamined.is_some() && findings.is_well();
    Ok(if is_incomplete { ExitCode::from(CANNOT_EXAMINE) } else { findings.exit_code() })
}

impl Arguments {
    /// Returns the root folder of this node's files, if this is a node.
    fn node_root(&self) -> Option<&Path> {
        let root = self.root.as_deref().unwrap_or(Path::new("/"));
        root.join("var/lib/kubelet").is_dir().then_some(root)
    }
}

/// Examines the cluster. Returns why claims could not be read, if pods may have some.
async fn examine(
    access: &Access,
    dialects: Dialects,
    arguments: &Arguments,
    findings: &mut Findings,
) -> Result<Option<Failure>, Error> {
    let api = access.api().await?;
    let nodes: Vec<ObservedNode> = listing::all(&api, &Query::all()).await?;
    // Failed pods are included, because a pod that the kubelet rejects has failed. A named pod may
    // have succeeded.
    let query = match arguments.pod {
        Some(_) => Query::all(),
        None => Query::all().field("status.phase!=Succeeded"),
    };
    let pods: Vec<ObservedPod> = listing::all(&api, &query).await?;
    let classes = match api.list::<ObservedClass>(&Query::all()).await {
        Ok(list) => Some(list.items),
        // Without permission for runtime classes, the other checks still run.
        Err(Failure::Refused { code: 403, .. } | Failure::NotFound(_)) => None,
        Err(failure) => return Err(failure.into()),
    };
    let (claims, unread) = ClaimFacts::read(&api).await?;
    let mut facts = Facts::new(dialects, nodes, pods, classes, claims);
    facts.cluster.replace_cordons(listing::cordons(&api).await?);
    let unknown = Query::all().field(format!("reason={}", pod::NODE_UNKNOWN));
    facts.unknown_nodes = claim::permitted(&api, unknown).await?.unwrap_or_default();
    let namespace = match (&arguments.pod, &arguments.namespace) {
        (Some(_), None) => Some(api.namespace()),
        (_, namespace) => namespace.as_deref(),
    };
    let scope = Scope { pod: arguments.pod.as_deref(), namespace, node: arguments.node.as_deref() };
    diagnose(&facts, &scope, findings)?;
    Ok(unread.filter(|_| versions::wants_claims(&facts)))
}

/// Pods and nodes to check.
#[derive(Clone, Copy, Debug, Default)]
struct Scope<'a> {
    pod: Option<&'a str>,
    namespace: Option<&'a str>,
    node: Option<&'a str>,
}

impl Scope<'_> {
    fn includes(&self, observed: &ObservedPod) -> bool {
        let metadata = &observed.pod.metadata;
        self.pod.is_none_or(|name| name == metadata.name)
            && self.namespace.is_none_or(|name| name == metadata.namespace)
            && self.node.is_none_or(|name| name == observed.pod.spec.node_name)
    }
}

fn diagnose(facts: &Facts, scope: &Scope<'_>, findings: &mut Findings) -> Result<(), Error> {
    let pods: Vec<&ObservedPod> =
        facts.pods.iter().filter(|observed| scope.includes(observed)).collect();
    let nodes: Vec<&str> = match (scope.pod, scope.node) {
        (Some(name), _) if pods.is_empty() => {
            return Err(Error::new(format!(
                "pods \"{name}\" not found in namespace \"{}\"",
                scope.namespace.unwrap_or_default()
            )));
        }
        (None, Some(name)) if !facts.nodes.contains_key(name) => {
            return Err(Error::new(format!("nodes \"{name}\" not found")));
        }
        (Some(_), _) => {
            let bound = pods.iter().map(|observed| observed.pod.spec.node_name.as_str());
            bound.filter(|name| facts.nodes.contains_key(*name)).collect()
        }
        (None, Some(name)) => vec![name],
        (None, None) => facts.nodes.keys().map(String::as_str).collect(),
    };
    // The node of a pending pod is not known; if no node shares GPUs, that is the cause.
    let wants_units =
        !versions::wants_claims(facts) || facts.cluster.pods().any(|pod| pod.node().is_none());
    let shares = facts.cluster.nodes().any(|(node, _)| !node.gpus.is_empty());
    if scope.node.is_none() && wants_units && !shares {
        findings.add(Cause::NoNodes, "the cluster", "");
    }
    versions::examine(facts, findings);
    for name in &nodes {
        if claim::is_node_for_claims(facts, name) {
            claim::examine_node(facts, name, findings);
        } else {
            node::examine(facts, name, findings);
        }
    }
    let selectors = Selectors::new(&facts.claims.claims.devices);
    for observed in &pods {
        pod::examine(facts, observed, scope.pod.is_some(), findings);
        claim::examine_pod(facts, observed, &selectors, findings);
    }
    if scope.pod.is_none() && scope.node.is_none() {
        claim::examine_unused(facts, scope.namespace, &selectors, findings);
    }
    match scope.pod {
        Some(_) => {
            pods.iter().for_each(|observed| findings.examined(format!("pod {}", observed.title())))
        }
        None => findings.examined(format!("{} nodes, {} pods", nodes.len(), pods.len())),
    }
    Ok(())
}
