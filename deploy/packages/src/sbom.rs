//! The list of components (CycloneDX): all crates that the shipped programs are linked with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::release::Release;

/// The packages of shipped programs and libraries.
const SHIPPED: &[&str] = &[
    "cgpu-cli",
    "cgpu-device-plugin",
    "cgpu-dra-controller",
    "cgpu-dra-driver",
    "cgpu-kubernetes-inspect",
    "cgpu-monitor",
    "cgpu-runtime",
    "cgpu-scheduler-extender",
    "cgpu-shim",
    "cgpu-sim-libcuda",
    "cgpu-sim-libnvidia-ml",
];

/// Returns the document as JSON.
pub(crate) fn make(release: &Release, sources: &Path) -> Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(sources)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let linked = linked(&metadata)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    for package in packages {
        let id = text(&package["id"])?;
        if linked.contains_key(id) {
            let (name, version) = (text(&package["name"])?, text(&package["version"])?);
            names.insert(id, format!("pkg:cargo/{name}@{version}"));
        }
    }
    let mut components = BTreeMap::new();
    for package in packages {
        let Some(url) = names.get(text(&package["id"])?) else { continue };
        let license = package["license"].as_str().unwrap_or("NOASSERTION");
        // An old form of `OR`.
        let license = license.replace('/', " OR ");
        let component = json!({
            "type": "library",
            "bom-ref": url,
            "name": package["name"],
            "version": package["version"],
            "licenses": [{ "expression": license }],
            "purl": url,
        });
        components.insert(url, component);
    }
    let dependencies: BTreeMap<&String, Vec<&String>> = linked
        .iter()
        .map(|(id, needed)| {
            let mut needed: Vec<&String> = needed.iter().map(|id| &names[id]).collect();
            needed.sort_unstable();
            (&names[id], needed)
        })
        .collect();
    let dependencies: Vec<Value> = dependencies
        .into_iter()
        .map(|(url, needed)| json!({ "ref": url, "dependsOn": needed }))
        .collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": release.date,
            "component": {
                "type": "application",
                "bom-ref": "cgpu",
                "name": "cgpu",
                "version": release.version,
                "licenses": [{ "expression": release.license }],
            },
        },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    Ok(serde_json::to_vec_pretty(&document)?)
}

/// Returns the packages that the shipped ones are linked with, each with what it is linked with.
fn linked(metadata: &Value) -> Result<BTreeMap<&str, BTreeSet<&str>>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("cargo metadata has no graph")?;
    let nodes: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut next: Vec<&str> = packages
        .filter(|package| package["name"].as_str().is_some_and(|name| SHIPPED.contains(&name)))
        .filter_map(|package| package["id"].as_str())
        .collect();
    ensure!(next.len() == SHIPPED.len(), "the workspace lacks a shipped package");
    let mut found = BTreeMap::new();
    while let Some(id) = next.pop() {
        if found.contains_key(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("the graph has no {id}"))?;
        let needed: BTreeSet<&str> = node["deps"]
            .as_array()
            .into_iter()
            .flatten()
            // Others are built for tests and build scripts.
            .filter(|edge| {
                let mut kinds = edge["dep_kinds"].as_array().into_iter().flatten();
                kinds.any(|kind| kind["kind"].is_null())
            })
            .filter_map(|edge| edge["pkg"].as_str())
            .collect();
        next.extend(&needed);
        found.insert(id, needed);
    }
    Ok(found)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("cargo metadata lacks a text")
}
