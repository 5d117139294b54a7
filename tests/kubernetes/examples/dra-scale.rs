//! Latency of the real DRA driver when a kubelet has many claims prepared at once: `cargo xtask
//! build && cargo run --release --package cgpu-kubernetes-tests --example dra-scale`. Prints one
//! JSON object.
//!
//! A fake API server and a fake kubelet run on the same machine. Each claim is a call of its own,
//! as for the pods of a node, and all calls begin at once. The driver's records are on the disk of
//! the folder for temporary files; limits and CDI specifications are in memory, as /run is.

use cgpu_e2e::Fixture;
use cgpu_kubelet_api::registration::PluginInfo;
use cgpu_kubernetes_tests::api_server::{ApiServer, Key};
use cgpu_kubernetes_tests::kubelet::driver::{DriverKubelet, start};
use serde_json::{Value, json};

const NODE: &str = "n1";
const DRIVER: &str = "gpu.cgpu.dev";
/// Each has 20 places.
const GPUS: [&str; 4] = ["A10:23028"; 4];
const CLAIMS: usize = 64;
/// Claims whose containers run meanwhile.
const RUNNING: usize = 16;
const ROUNDS: usize = 40;

fn main() {
    let fixture = Fixture::new(&GPUS.join(","));
    let disk = tempfile::tempdir().expect("a folder");
    let server = ApiServer::start();
    server.put("nodes", json!({"metadata": {"name": NODE, "uid": "uid-n1"}}));
    let kubelet = DriverKubelet::new(&fixture.path("registry"));
    let kubeconfig = server.kubeconfig(&fixture.path(""));
    let _driver = start(&fixture, &kubeconfig, NODE, disk.path(), &[]);
    let info = fixture.eventually("the driver's registration", || kubelet.register(DRIVER));
    run_containers(&fixture, &server, &kubelet, &info);
    let (mut calls, mut rounds) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let claims = claims(&server, round, CLAIMS);
        let all: Vec<&Value> = claims.iter().collect();
        let took = kubelet.prepare_each(&info, &all).expect("prepared claims");
        let took: Vec<f64> = took.iter().map(|took| took.as_secs_f64() * 1e3).collect();
        rounds.extend(took.iter().copied().max_by(f64::total_cmp));
        calls.extend(took);
        kubelet.unprepare(&info, &all).expect("unprepared claims");
        for at in 0..CLAIMS {
            server.remove(&Key::new("resourceclaims", "test", &name(round, at)));
        }
    }
    println!(
        "{}",
        json!({
            "claims": CLAIMS, "running": RUNNING, "rounds": ROUNDS,
            "dra_prepare_p50_ms": quantile(&mut calls, 500),
            "dra_prepare_p99_ms": quantile(&mut calls, 990),
            "slowest_of_a_round_p50_ms": quantile(&mut rounds, 500),
        })
    );
}

/// Prepares the claims of the other places, and records a container for each.
fn run_containers(
    fixture: &Fixture,
    server: &ApiServer,
    kubelet: &DriverKubelet,
    driver: &PluginInfo,
) {
    let claims = claims(server, ROUNDS, RUNNING);
    kubelet.prepare_each(driver, &claims.iter().collect::<Vec<_>>()).expect("prepared claims");
    for claim in claims {
        let share = format!("{}-0", claim["metadata"]["uid"].as_str().expect("a uid"));
        let folder = fixture.root().join("containers").join(&share);
        std::fs::create_dir_all(&folder).expect("a folder");
        let first = json!({"pid": std::process::id(), "started": 0});
        let record = json!({"bundle": "/b", "id": "c", "shares": [share], "first": first});
        std::fs::write(folder.join("container"), record.to_string()).expect("a record");
    }
}

fn claims(server: &ApiServer, round: usize, count: usize) -> Vec<Value> {
    (0..count).map(|at| claim(server, round, at)).collect()
}

fn name(round: usize, at: usize) -> String {
    format!("c{round}-{at}")
}

fn claim(server: &ApiServer, round: usize, at: usize) -> Value {
    let gpu = format!("gpu-{}", at % GPUS.len());
    let result = json!({"request": "main", "driver": DRIVER, "pool": NODE, "device": gpu,
        "shareID": name(round, at), "consumedCapacity": {"memory": "1Gi", "weight": "1"}});
    server.put(
        "resourceclaims",
        json!({"metadata": {"name": name(round, at), "namespace": "test"}, "spec": {},
            "status": {"allocation": {"devices": {"results": [result]}}}}),
    )
}

fn quantile(all: &mut [f64], part: usize) -> f64 {
    all.sort_by(f64::total_cmp);
    let at = (all.len() * part / 1000).min(all.len().saturating_sub(1));
    (all.get(at).copied().unwrap_or(0.0) * 1000.0).round() / 1000.0
}
