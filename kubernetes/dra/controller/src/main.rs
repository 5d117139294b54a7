//! `cgpu-dra-controller`: makes the templates that translated pods name, and deletes those that
//! pods no longer name.
//!
//! ```text
//!   policy: old resources --> pods with names of templates
//!                               |
//!                  reflectors --+--> cache --> which are missing or unused --> API server
//!                  templates ---+
//! ```
//!
//! `cgpu_kubernetes_dra::templates` decides. The program keeps no state: after a restart, the time
//! of unused templates begins anew. Two instances do each other no harm.

#![forbid(unsafe_code)]

mod cache;
mod objects;
mod options;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use cgpu_kubernetes_client::{
    Api, Backoff, Event, Failure, Query, Regarding, Severity, Timing, reflector,
};
use cgpu_kubernetes_core::names::label;
use cgpu_kubernetes_dra::templates::{Change, Key, UnusedTemplates};
use cgpu_kubernetes_node::program;
use clap::Parser;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::cache::Cache;
use crate::objects::{Pod, Template};
use crate::options::Options;

const NAME: &str = "cgpu-dra-controller";
/// Label of the templates that the controller has made.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Shortest and longest delay before a failed write is repeated.
const RETRY_BACKOFF: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(120)];
/// Longest interval between two looks for templates that were unused for long enough.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    program::run(NAME, run(Options::parse())).await
}

async fn run(options: Options) -> Result<()> {
    let (mut stop, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let api = options.access.api().await?;
    let (cache, timing) = (Cache::new(), Timing::default());
    // Ended pods need no claim any more. A watch reports a pod that ends as deleted.
    let pods = Query::all()
        .label(format!("{}=true", label::TRANSLATED))
        .field("status.phase!=Succeeded")
        .field("status.phase!=Failed");
    let templates = Query::all().label(format!("{MANAGED_BY}={NAME}"));
    tokio::select! {
        () = reflector::run::<Pod>(&api, &pods, &timing, &cache) => {}
        () = reflector::run::<Template>(&api, &templates, &timing, &cache) => {}
        () = reconcile(&api, &cache, Duration::from_secs(options.retention)) => {}
        _ = stop.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Keeps the templates as they are to be, without end.
async fn reconcile(api: &Api, cache: &Cache, retention: Duration) {
    let (mut unused, start) = (UnusedTemplates::default(), Instant::now());
    let mut known = cache.subscribe();
    let [shortest, longest] = RETRY_BACKOFF;
    let mut backoff = Backoff::new(shortest, longest);
    loop {
        let changes = match known.borrow_and_update().templates() {
            Some((used, existing)) => unused.changes(&used, existing, start.elapsed(), retention),
            None => Vec::new(),
        };
        let mut failed = false;
        for change in changes {
            if let Err(failure) = write(api, cache, &change).await {
                warn!(?change, "cannot change a ResourceClaimTemplate: {failure}");
                failed = true;
                if let (Change::Create(key, _), Failure::Refused { .. }) = (&change, &failure) {
                    let pods = known.borrow().pods_of(key);
                    report(api, key, pods, &failure).await;
                }
            }
        }
        let delay = if failed {
            backoff.next(fastrand::f64())
        } else {
            backoff.reset();
            retention.min(MAX_POLL_INTERVAL)
        };
        tokio::select! {
            changed = known.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(delay) => {}
        }
    }
}

/// Writes a change. A new template is known at once: the watch may report it later.
async fn write(api: &Api, cache: &Cache, change: &Change) -> Result<(), Failure> {
    match change {
        Change::Create(key, request) => {
            let (namespace, name) = key;
            let object = json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                "metadata": {
                    "name": name, "namespace": namespace, "labels": { MANAGED_BY: NAME },
                },
                "spec": request.template(),
            });
            match api.create::<Template>(namespace, &object).await {
                Ok(_) => {
                    info!(namespace, name, "created");
                    cache.put(key.clone(), true);
                }
                // Its author has made it, or the watch will report it. A namespace that is being
                // deleted gets no more pods.
                Err(Failure::Exists(_) | Failure::NotFound(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Change::Delete(key) => {
            let (namespace, name) = key;
            match api.delete::<Template>(namespace, name).await {
                Ok(()) => info!(namespace, name, "deleted: no pod names it"),
                Err(Failure::NotFound(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(())
}

/// Reports on pods why their template is not made, such as a quota of the namespace.
async fn report(api: &Api, (_, template): &Key, pods: Vec<(Key, String)>, failure: &Failure) {
    for ((namespace, name), uid) in pods {
        let event = Event {
            regarding: Regarding::Pod,
            namespace,
            name,
            uid,
            severity: Severity::Warning,
            reason: "ClaimTemplateRefused",
            message: format!("cannot create the ResourceClaimTemplate {template}: {failure}"),
            component: NAME,
        };
        if let Err(failure) = api.publish(&event).await {
            warn!(pod = event.name, "cannot publish an event: {failure}");
        }
    }
}
