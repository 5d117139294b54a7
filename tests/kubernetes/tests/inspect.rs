//! `kubectl-inspect-gpushare` with a fake API server: tables, data, errors, and how it finds the
//! cluster.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use cgpu_e2e::{Child, Dist, Outcome, skip};
use cgpu_kubernetes_tests::api_server::{ApiServer, Fault, FaultAction, Key};
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::objects;
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

const PROGRAM: &str = "kubectl-inspect-gpushare";

/// Returns the cluster of document 001: two nodes with a T4 each.
fn documented() -> ApiServer {
    let server = ApiServer::start();
    for (name, address) in [("sd-cluster-04", "192.168.1.214"), ("sd-cluster-05", "192.168.1.215")]
    {
        let mut node = objects::node(name, &[15109]);
        node["status"]["addresses"][0]["address"] = json!(address);
        server.put("nodes", node);
    }
    server
}

/// Returns the program without this user's settings.
fn program(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent");
    for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        command.env_remove(name);
    }
    command
}

fn inspect(server: &ApiServer, arguments: &[&str]) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = program(Dist::find().file(PROGRAM));
    command.arg("--kubeconfig").arg(server.kubeconfig(folder.path())).args(arguments);
    Child::start(command).finish()
}

/// Does what kube-scheduler does: filters and ranks nodes, takes the best one, of equals the last,
/// and binds.
fn deploy(server: &ApiServer, extender: &Extender, name: &str, units: u64) -> String {
    let pod = server.put("pods", objects::pod("test", name, units));
    let uid = pod["metadata"]["uid"].clone();
    let knows = || extender.connection().request("GET", "/readyz", "").status == 200;
    until_holds("the extender is ready", knows);
    let filtered = extender.filter(&pod, &["sd-cluster-04", "sd-cluster-05"]);
    let body = json!({"Pod": pod, "Nodes": null, "NodeNames": filtered["NodeNames"]}).to_string();
    let ranked =
        extender.connection().request("POST", "/gpushare-scheduler/prioritize", &body).json();
    let score = |it: &&Value| it["Score"].as_u64().unwrap_or_default();
    let best = ranked.as_array().and_then(|all| all.iter().max_by_key(score)).expect("room");
    let node = best["Host"].as_str().expect("a name").to_owned();
    // The extender may not know the pod yet; kube-scheduler retries then.
    until_holds("the pod is bound", || extender.bind(&pod, &node).status == 200);
    // The next filter would miss a binding without an event.
    let reported =
        |it: &Value| it["metadata"]["uid"] == uid && it["spec"]["nodeName"] == node.as_str();
    assert!(server.objects("pods").iter().any(reported));
    node
}

const AFTER: [(&str, u64, &str); 5] = [
    ("binpack-1-6d6955c487-j4c4b", 2, "sd-cluster-05"),
    ("binpack-2-58579b95f7-4wpbl", 8, "sd-cluster-05"),
    ("binpack-2-58579b95f7-sjhwt", 8, "sd-cluster-04"),
    ("binpack-3-556bbd84f9-9xqg7", 2, "sd-cluster-05"),
    ("binpack-4-6956458f85-cv62j", 5, "sd-cluster-04"),
];

/// Returns the table of document 001 with these values.
fn table(one: u64, other: u64, dashes: usize, sum: &str) -> String {
    let row = |name: &str, address: &str, held: u64| {
        let gpu = format!("{held}/14");
        format!("{name}  {address}  {gpu:<21}  {gpu}\n")
    };
    format!(
        "NAME           IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)\n{}{}{}\nAllocated/Total GPU Memory In Cluster:\n{sum}\n",
        row("sd-cluster-04", "192.168.1.214", one),
        row("sd-cluster-05", "192.168.1.215", other),
        "-".repeat(dashes)
    )
}

/// The real extender places the four deployments of document 001, and the tables are the
/// document's, byte for byte.
#[test]
fn deployments_of_document_001_give_its_tables() {
    let server = documented();
    let folder = tempfile::tempdir().expect("a folder");
    let extender = Extender::start(&server, folder.path(), &[] as &[&str]);
    let tables = [
        Some(table(0, 2, 58, "2/28 (7%)")),
        None,
        Some(table(8, 10, 58, "18/28 (64%)")),
        Some(table(8, 12, 58, "20/28 (71%)")),
        Some(table(13, 12, 60, "25/28 (89%)")),
    ];
    for ((name, units, node), table) in AFTER.into_iter().zip(tables) {
        assert_eq!(deploy(&server, &extender, name, units), node, "{name}");
        if let Some(table) = table {
            assert_eq!(inspect(&server, &[]).exits(0).stdout, table, "after {name}");
        }
    }
    let _ = extender.end();
    let details = inspect(&server, &["-d", "sd-cluster-05"]).exits(0).stdout;
    let dashes = "-".repeat(115);
    assert_eq!(
        details,
        format!(
            "
NAME:       sd-cluster-05
IPADDRESS:  192.168.1.215

NAME                        NAMESPACE  GPU0(Allocated)
binpack-1-6d6955c487-j4c4b  test       2
binpack-2-58579b95f7-4wpbl  test       8
binpack-3-556bbd84f9-9xqg7  test       2
Allocated :                 12 (85%)
Total :                     14
{dashes}


Allocated/Total GPU Memory In Cluster:  12/14 (85%)
"
        )
    );
    let whole = inspect(&server, &["--details"]).exits(0).stdout;
    assert!(
        whole.contains("sd-cluster-04")
            && whole.contains("sd-cluster-05")
            && whole.ends_with("25/28 (89%)\n")
    );
}

#[test]
fn output_as_json_has_everything() {
    let server = documented();
    server.put("pods", objects::pod("test", "big", 16));
    let mut bypassed = objects::pod("test", "past", 3);
    bypassed["spec"]["nodeName"] = json!("sd-cluster-04");
    server.put("pods", bypassed);
    let mut done = objects::pod("test", "done", 3);
    done["status"]["phase"] = json!("Succeeded");
    server.put("pods", done);
    let json: Value =
        serde_json::from_str(&inspect(&server, &["-o", "json"]).exits(0).stdout).expect("JSON");
    assert_eq!(
        (&json["allocated"], &json["total"], &json["unit"]),
        (&json!(3), &json!(28), &json!("GiB"))
    );
    assert_eq!(
        json["waiting"][0]["reasons"][0],
        "sd-cluster-04: 1/1 GPUs: 16 units requested, the largest has 14"
    );
    assert_eq!(json["nodes"][0]["pods"][0]["name"], "past");
    assert!(inspect(&server, &[]).exits(0).stdout.contains("PENDING(Allocated)"));
    // It only lists, and it leaves out pods that have ended.
    let requested = server.journal();
    assert!(requested.iter().all(|it| it.method == "GET"), "{requested:?}");
    let pods = requested.iter().find(|it| it.path == "/api/v1/pods").expect("pods were listed");
    assert!(
        pods.query.contains("status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"),
        "{}",
        pods.query
    );
}

/// As `kubectl inspect cgpu` it also shows shares and weights; gpushare has no such tables.
#[test]
fn tables_have_shares_and_weights_under_our_name() {
    let server = documented();
    let folder = tempfile::tempdir().expect("a folder");
    let extender = Extender::start(&server, folder.path(), &[] as &[&str]);
    deploy(&server, &extender, "heavy", 3);
    let _ = extender.end();
    let heavy = Key::pod("test", "heavy");
    let variable = json!([{"name": "ALIYUN_COM_GPU_SCHD_WEIGHT", "value": "4"}]);
    assert!(server.edit(&heavy, |pod| pod["spec"]["containers"][0]["env"] = variable));
    // As the plugin of its node reports it.
    let uid = server.object(&heavy).expect("the pod")["metadata"]["uid"].clone();
    let held = json!({uid.as_str().expect("a uid"): {"pod": "test/heavy",
        "gpus": {"0": {"mib": 3237, "percent": 0, "containers": 1}}, "walls": {"main": "shim"},
        "wallReasons": {"main": "old_driver"}}});
    assert!(server.edit(&Key::node("sd-cluster-05"), |node| {
        node["metadata"]["annotations"]["cgpu.dev/held"] = json!(held.to_string());
    }));
    let link = folder.path().join("kubectl-inspect-cgpu");
    symlink(Dist::find().file(PROGRAM), &link).expect("a link");
    let run = |arguments: &[&str]| {
        let mut command = program(&link);
        command.arg("--kubeconfig").arg(server.kubeconfig(folder.path())).args(arguments);
        Child::start(command).finish().exits(0).stdout
    };
    let plain = inspect(&server, &[]).exits(0).stdout;
    let shares = "\nNODE           GPU  MEMORY(Allocated/Total)  WEIGHT  CORES(%)  SHARES\n\
                  sd-cluster-04  0    0/14                     0       0         0\n\
                  sd-cluster-05  0    3/14                     4       0         1\n";
    assert_eq!(run(&[]), format!("{plain}{shares}"));
    let pods = "\nPOD    NAMESPACE  NODE           MEMORY(GPU:Units)  WEIGHT  CORES(%)  WALL\n\
                heavy  test       sd-cluster-05  0:3                4       0         shim (driver older than r615)\n";
    assert!(run(&["-d"]).ends_with(&format!("{shares}{pods}")), "{}", run(&["-d"]));
    assert!(run(&["--help"]).contains("Usage: kubectl inspect cgpu"), "{}", run(&["--help"]));
}

#[test]
fn output_as_yaml_equals_that_as_json() {
    let server = documented();
    server.put("pods", objects::pod("test", "big", 16));
    let text = |format: &str| inspect(&server, &["-o", format]).exits(0).stdout;
    let json: Value = serde_json::from_str(&text("json")).expect("JSON");
    let yaml: Value = serde_saphyr::from_str(&text("yaml")).expect("YAML");
    assert_eq!(yaml, json);
    assert!(text("yaml").starts_with("unit: GiB\n"), "{}", text("yaml"));
}

/// A pod that holds a GPU by HAMi's names is shown as nothing without `--hami`.
#[test]
fn pods_of_the_other_dialect_cause_a_warning() {
    let server = documented();
    let folder = tempfile::tempdir().expect("a folder");
    let limits = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"});
    let mut pod = server.put("pods", objects::pod_with("test", "hami", &limits));
    let extender = Extender::start(&server, folder.path(), &["--hami"]);
    extender.wait_until_ready();
    until_holds("the pod is bound", || extender.bind(&pod, "sd-cluster-04").status == 200);
    let _ = extender.end();
    let wrong = inspect(&server, &[]).exits(0);
    assert!(wrong.stdout.contains("0/28 (0%)"), "{}", wrong.stdout);
    assert_eq!(
        wrong.stderr,
        "warning: pods hold GPUs by HAMi's names, which are not read (1): add --hami, as the \
         extender has it\n"
    );
    let json: Value =
        serde_json::from_str(&inspect(&server, &["-o", "json"]).stdout).expect("JSON");
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(1));
    let right = inspect(&server, &["--hami"]).exits(0);
    assert!(right.stdout.contains("3/28"), "{}", right.stdout);
    assert_eq!(right.stderr, "");

    // The other way round: the vendor's plugin gave this pod a whole GPU.
    let server = documented();
    pod["spec"]["nodeName"] = json!("sd-cluster-04");
    pod["status"]["phase"] = json!("Running");
    server.put("pods", pod);
    assert_eq!(inspect(&server, &[]).exits(0).stderr, "");
    let wrong = inspect(&server, &["--hami"]).exits(0).stderr;
    assert!(wrong.contains("leave out --hami, unless"), "{wrong}");
}

/// The extender places no pods on it, so it is not shown as healthy.
#[test]
fn gpu_that_a_config_map_takes_out_is_shown() {
    let server = documented();
    server.put(
        "configmaps",
        json!({"metadata": {"name": "unhealthy-gpu-sd-cluster-04", "namespace": "kube-system"},
               "data": {"gpus": "0"}}),
    );
    let healthy = || -> Vec<Value> {
        let text = inspect(&server, &["-o", "json"]).exits(0).stdout;
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let nodes = json["nodes"].as_array().expect("nodes").iter();
        nodes.map(|node| node["gpus"][0]["healthy"].clone()).collect()
    };
    assert_eq!(healthy(), [false, true]);
    let doctor = || inspect(&server, &["doctor", "--root", "/nonexistent"]).stdout;
    assert!(doctor().contains("gpu_taken_out"), "{}", doctor());
    // Without the right to read it, the rest is shown.
    let refuse = || {
        let refuse = FaultAction::Refuse(403, "Forbidden");
        server.fault(Fault::next("GET", "kube-system/configmaps", refuse));
    };
    refuse();
    assert_eq!(healthy(), [true, true]);
    refuse();
    let outcome = inspect(&server, &["doctor", "--root", "/nonexistent"]);
    assert!(!outcome.stdout.contains("gpu_taken_out"), "{outcome:?}");
    assert!(outcome.stdout.contains("2 nodes"), "{outcome:?}");
}

#[test]
fn large_cluster_is_read_in_pages() {
    let server = ApiServer::start();
    for number in 0..600 {
        server.put("nodes", objects::node(&format!("node-{number:03}"), &[15109, 15109]));
    }
    let text = inspect(&server, &[]).exits(0).stdout;
    assert_eq!(text.lines().filter(|line| line.starts_with("node-")).count(), 600);
    assert!(text.contains("GPU1(Allocated/Total)") && text.ends_with("0/16800 (0%)\n"), "{text}");
}

/// Asserts one line on stderr that begins like gpushare's, and nothing on stdout.
fn fails(outcome: &Outcome, parts: &[&str]) {
    assert_eq!(outcome.stdout, "", "{outcome:?}");
    assert!(
        outcome.stderr.starts_with("Failed due to ") && outcome.stderr.lines().count() == 1,
        "{outcome:?}"
    );
    for part in parts {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
    }
}

#[test]
fn error_is_one_line_with_the_remedy() {
    let server = documented();
    fails(&inspect(&server, &["nowhere"]).exits(1), &["nodes \"nowhere\" not found"]);
    server.fault(Fault::next("GET", "/api/v1/pods", FaultAction::Refuse(403, "Forbidden")));
    fails(&inspect(&server, &[]).exits(1), &["403", "cluster role cgpu-inspect"]);
    server.fault(Fault::next("GET", "/api/v1/nodes", FaultAction::Refuse(401, "Unauthorized")));
    fails(&inspect(&server, &[]).exits(1), &["401", "log in again"]);
    server.fault(Fault::next(
        "GET",
        "/api/v1/nodes",
        FaultAction::Wait(std::time::Duration::from_secs(60)),
    ));
    fails(&inspect(&server, &["--request-timeout", "1s"]).exits(1), &["does not answer", "1s"]);
    let mut gone = documented();
    gone.close();
    fails(&inspect(&gone, &[]).exits(1), &["does not answer", "can be reached from here"]);
    let mut lost = program(Dist::find().file(PROGRAM));
    lost.env("KUBECONFIG", "");
    fails(&Child::start(lost).finish().exits(1), &["no kubeconfig", "--kubeconfig or KUBECONFIG"]);
    let mut missing = program(Dist::find().file(PROGRAM));
    missing.args(["--kubeconfig", "/nonexistent/config"]);
    fails(
        &Child::start(missing).finish().exits(1),
        &["/nonexistent/config", "--kubeconfig or KUBECONFIG"],
    );
    fails(&inspect(&server, &["--context", "other"]).exits(1), &["other", "--context"]);
    // An error in the command line is clap's, with its exit code.
    inspect(&server, &["--nonsense"]).exits(2);
    fails(&inspect(&server, &["-d", "doctor"]).exits(2), &["before `doctor`"]);
}

fn two(folder: &Path, one: &ApiServer, other: &ApiServer) -> std::path::PathBuf {
    let path = folder.join("two");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: first\n\
         clusters:\n- {{name: a, cluster: {{server: '{}'}}}}\n- {{name: b, cluster: {{server: '{}'}}}}\n\
         users:\n- {{name: me, user: {{token: t}}}}\n- {{name: you, user: {{}}}}\n\
         contexts:\n- {{name: first, context: {{cluster: a, user: me}}}}\n- {{name: second, context: {{cluster: b, user: you}}}}\n",
        one.url(),
        other.url()
    );
    fs::write(&path, text).expect("a kubeconfig");
    path
}

#[test]
fn cluster_is_found_as_kubectl_finds_it() {
    let (one, other) = (documented(), ApiServer::start());
    other.put("nodes", objects::node("elsewhere", &[15109]));
    let folder = tempfile::tempdir().expect("a folder");
    let file = two(folder.path(), &one, &other);
    let seen = |environment: &[(&str, &Path)], arguments: &[&str]| {
        let mut command = program(Dist::find().file(PROGRAM));
        command.envs(environment.iter().copied()).args(arguments);
        let text = Child::start(command).finish().exits(0).stdout;
        if text.contains("elsewhere") { "other" } else { "one" }
    };
    let config = [("KUBECONFIG", file.as_path())];
    assert_eq!(seen(&config, &[]), "one");
    assert_eq!(seen(&config, &["--context", "second"]), "other");
    assert_eq!(seen(&config, &["--context=first", "--cluster=b"]), "other");
    assert_eq!(seen(&config, &["--user", "you"]), "one");
    assert_eq!(seen(&config, &["--server", &other.url()]), "other");
    assert_eq!(seen(&config, &["--token", "x", "--insecure-skip-tls-verify"]), "one");
    assert_eq!(seen(&[], &["--server", &other.url()]), "other");
    // A list of files: the first that names a context has it, and the others need not.
    let empty = folder.path().join("empty");
    fs::write(&empty, "apiVersion: v1\nkind: Config\n").expect("a kubeconfig");
    let list = std::env::join_paths([empty.as_path(), file.as_path()]).expect("a list");
    assert_eq!(seen(&[("KUBECONFIG", Path::new(&list))], &["--context", "second"]), "other");
    // By default, in the home folder.
    fs::create_dir(folder.path().join(".kube")).expect("a folder");
    symlink(&file, folder.path().join(".kube/config")).expect("a link");
    assert_eq!(seen(&[("HOME", folder.path())], &[]), "one");
}

#[test]
fn kubectl_finds_the_plugin() {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&paths);
    if !folders.any(|folder| folder.join("kubectl").is_file()) {
        return skip("kubectl_finds_the_plugin", "kubectl", "kubectl is not installed");
    }
    let server = documented();
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    symlink(Dist::find().file(PROGRAM), bin.join(PROGRAM)).expect("a link");
    let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&paths)))
        .expect("a path");
    let kubectl = |arguments: &[&str]| {
        let mut command = program("kubectl");
        command.env("PATH", &path).env("HOME", folder.path());
        command.env("KUBECONFIG", server.kubeconfig(folder.path())).args(arguments);
        Child::start(command).finish()
    };
    assert_eq!(kubectl(&["inspect", "gpushare"]).exits(0).stdout, table(0, 0, 58, "0/28 (0%)"));
    assert!(
        kubectl(&["inspect", "gpushare", "-d", "sd-cluster-04"])
            .exits(0)
            .stdout
            .contains("NAME:       sd-cluster-04")
    );
    assert!(
        kubectl(&["inspect", "gpushare", "doctor"]).exits(0).stdout.starts_with("nothing is wrong")
    );
}

/// Adds a node whose GPU is claimed, and a claim that has 6 GiB of it.
fn add_claims(server: &ApiServer) {
    let amount = |value: &str, default: &str, min: &str| {
        json!({"value": value, "requestPolicy":
            {"default": default, "validRange": {"min": min, "step": min}}})
    };
    let device = json!({
        "name": "gpu-0", "allowMultipleAllocations": true,
        "attributes": {"uuid": {"string": "GPU-0"}, "mode": {"string": "weight"}},
        "capacity": {"memory": amount("14Gi", "14Gi", "128Mi"), "weight": amount("20", "1", "1")},
    });
    let mut node = objects::node("claimed", &[]);
    node["metadata"]["labels"]["cgpu.dev/engine"] = json!("dra");
    server.put("nodes", node);
    let spec = json!({"driver": "gpu.cgpu.dev", "nodeName": "claimed", "devices": [device],
        "pool": {"name": "claimed", "generation": 1, "resourceSliceCount": 1}});
    server.put("resourceslices", json!({"metadata": {"name": "slice"}, "spec": spec}));
    let expression = "device.driver == \"gpu.cgpu.dev\"";
    server.put(
        "deviceclasses",
        json!({"metadata": {"name": "cgpu"},
            "spec": {"selectors": [{"cel": {"expression": expression}}]}}),
    );
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "cgpu"}});
    let result = json!({"request": "gpu", "driver": "gpu.cgpu.dev", "pool": "claimed",
        "device": "gpu-0", "shareID": "s", "consumedCapacity": {"memory": "6Gi", "weight": "3"}});
    server.put(
        "resourceclaims",
        json!({"metadata": {"name": "has", "namespace": "test"},
            "spec": {"devices": {"requests": [request]}},
            "status": {"allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": "trainer", "uid": "u"}]}}),
    );
    let mut wants = request;
    wants["exactly"]["capacity"] = json!({"requests": {"memory": "9Gi"}});
    server.put(
        "resourceclaims",
        json!({"metadata": {"name": "wants", "namespace": "test"},
            "spec": {"devices": {"requests": [wants]}}}),
    );
    let mut waits = objects::pod("test", "waits", 0);
    waits["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
    waits["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "wants"}]);
    server.put("pods", waits);
}

/// Both engines in one cluster: nodes that share by units, and one whose GPU is claimed.
#[test]
fn claims_are_shown_beside_units() {
    let server = documented();
    add_claims(&server);
    let claimed = "\
NODE     DEVICE  MEMORY(Claimed/Total MiB)  WEIGHT  CORES(%)  SHARES  TAINTS
claimed  gpu-0   6144/14336                 3/20    -         1
Claims: 2, not allocated: 1
";
    let both = format!("{}\n{claimed}", table(0, 0, 58, "0/28 (0%)"));
    assert_eq!(inspect(&server, &[]).exits(0).stdout, both);
    let details = inspect(&server, &["-d", "claimed"]).exits(0).stdout;
    assert!(details.starts_with("NODE     DEVICE"), "{details}");
    assert!(details.contains("has    test       claimed  gpu-0   6144"), "{details}");
    assert!(details.contains("trainer") && !details.contains("wants"), "{details}");
    let json: Value =
        serde_json::from_str(&inspect(&server, &["-o", "json"]).exits(0).stdout).expect("JSON");
    assert_eq!(json["total"], 28);
    assert_eq!(json["devices"][0]["memory_mib"], json!({"claimed": 6144, "total": 14336}));
    assert_eq!(json["claims"][0]["shares"][0]["weight"], 3);
    assert_eq!(json["claims"][1]["is_allocated"], false);
    // Without the right to list slices, the units are shown.
    server.fault(Fault::next("GET", "resourceslices", FaultAction::Refuse(403, "Forbidden")));
    let outcome = inspect(&server, &[]).exits(0);
    assert_eq!(outcome.stdout, table(0, 0, 58, "0/28 (0%)"));
    assert!(outcome.stderr.starts_with("claims are not shown: the API server answers 403"));
    // Older API servers have no such objects.
    server.fault(Fault::next("GET", "resourceslices", FaultAction::Refuse(404, "Unparsable")));
    let outcome = inspect(&server, &[]).exits(0);
    assert_eq!((outcome.stdout, outcome.stderr), (table(0, 0, 58, "0/28 (0%)"), String::new()));
}

#[test]
fn doctor_names_why_a_claim_is_not_allocated() {
    let server = documented();
    add_claims(&server);
    let waits = ["waits", "-n", "test"];
    let outcome = doctor(&server, &waits).exits(1);
    assert_eq!(
        outcome.stdout,
        "Why is this pod pending?\n  pod test/waits, claim gpu (claim_no_memory)\n    \
         No selected device has enough memory free.\n    \
         found: request gpu: 1/1 devices: 8192 MiB free, 9216 requested\n    \
         do:    Wait until other pods end, request less, or add a node.\n\
         something is wrong; examined: API server v1.36.2, pod test/waits\n"
    );
    // With the claim allocated and the pod on its node, the kubelet's event is the cause.
    let free = server.object(&Key::new("resourceclaims", "test", "has")).expect("the claim");
    server.edit(&Key::new("resourceclaims", "test", "wants"), |claim| {
        claim["status"] = free["status"].clone();
    });
    server.edit(&Key::pod("test", "waits"), |pod| pod["spec"]["nodeName"] = json!("claimed"));
    let uid =
        server.object(&Key::pod("test", "waits")).expect("the pod")["metadata"]["uid"].clone();
    server.put(
        "events",
        json!({"metadata": {"name": "e", "namespace": "test"}, "involvedObject": {"uid": uid},
            "reason": "FailedPrepareDynamicResources", "message": "gpu-0 waits for room"}),
    );
    let outcome = doctor(&server, &waits).exits(1);
    assert!(outcome.stdout.contains("pod test/waits (prepare_failed)"), "{outcome:?}");
    assert!(outcome.stdout.contains("found: gpu-0 waits for room"), "{outcome:?}");
    // Without the right to read claims, the rest is examined, and that is said.
    server.fault(Fault::next("GET", "resourceslices", FaultAction::Refuse(403, "Forbidden")));
    let outcome = doctor(&server, &[]).exits(2);
    assert!(outcome.stdout.starts_with("nothing is wrong"), "{outcome:?}");
    assert!(outcome.stderr.starts_with("claims were not examined: the API server answers 403"));
    // An API server without these objects.
    server.fault(Fault::next("GET", "resourceslices", FaultAction::Refuse(404, "Unparsable")));
    let outcome = doctor(&server, &["--node", "claimed"]).exits(1);
    assert!(outcome.stdout.contains("API server v1.36.2 (claims_not_served)"), "{outcome:?}");
}

fn doctor(server: &ApiServer, arguments: &[&str]) -> Outcome {
    let mut all = vec!["doctor", "--root", "/nonexistent"];
    all.extend(arguments);
    inspect(server, &all)
}

#[test]
fn doctor_names_why_a_pod_waits() {
    let server = documented();
    server.put("pods", objects::pod("test", "big", 16));
    server.put("pods", objects::pod("test", "fine", 2));
    let outcome = doctor(&server, &["big", "-n", "test"]).exits(1);
    assert_eq!(
        outcome.stdout,
        "Why is this pod pending?\n  pod test/big (never_fits)\n    No node could take the pod, even without other pods.\n    \
         found: sd-cluster-04, sd-cluster-05: 1/1 GPUs: 16 units requested, the largest has 14\n    \
         do:    Request less of each GPU, divide the request over several (label aliyun.com/gpu-count), correct the annotations if they permit no GPU, or add a node with larger GPUs; for GPUs that are unhealthy or of another plugin, check the node (doctor --node NODE).\n\
         something is wrong; examined: pod test/big\n"
    );
    let json: Value =
        serde_json::from_str(&doctor(&server, &["fine", "-n", "test", "--json"]).exits(1).stdout)
            .expect("JSON");
    assert_eq!(json["causes"][0]["cause"], "unseen");
    assert_eq!(json["examined"], json!(["pod test/fine"]));
    // Exit code 2 if the object does not exist, as of `cgpu doctor`.
    fails(
        &doctor(&server, &["none", "-n", "test"]).exits(2),
        &["pods \"none\" not found in namespace \"test\""],
    );
    // Without the right to list runtime classes the rest is examined.
    server.fault(Fault::next("GET", "runtimeclasses", FaultAction::Refuse(403, "Forbidden")));
    doctor(&server, &["--why", "pending"]).exits(1);
    doctor(&server, &["--why", "unlimited", "--node", "sd-cluster-04"]).exits(0);
}

#[test]
fn doctor_names_pods_without_limit_or_gpu() {
    let server = documented();
    let mut class = json!({"metadata": {"name": "kata"}, "handler": "kata"});
    class["apiVersion"] = json!("node.k8s.io/v1");
    server.put("runtimeclasses", class);
    server.edit(&Key::new("nodes", "", "sd-cluster-04"), |node| {
        node["metadata"]["labels"]["cgpu.disable.isolation"] = json!("true");
    });
    let mut bypassed = objects::pod("test", "past", 3);
    bypassed["spec"]["nodeName"] = json!("sd-cluster-05");
    bypassed["spec"]["runtimeClassName"] = json!("kata");
    server.put("pods", bypassed);
    let json: Value =
        serde_json::from_str(&doctor(&server, &["--json"]).exits(1).stdout).expect("JSON");
    let causes: BTreeSet<&str> = json["causes"]
        .as_array()
        .expect("causes")
        .iter()
        .filter_map(|it| it["cause"].as_str())
        .collect();
    assert_eq!(causes, BTreeSet::from(["bypassed", "isolation_off", "other_runtime"]));
}

/// Nodes usually have no kubeconfig.
#[test]
fn doctor_on_a_node_checks_its_files_without_a_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_string_lossy().into_owned();
    let alone = || {
        let mut command = program(Dist::find().file(PROGRAM));
        command.args(["doctor", "--root", &root]);
        Child::start(command).finish()
    };
    fails(&alone().exits(2), &["no kubeconfig"]);
    let put = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    put("var/lib/kubelet/device-plugins/kubelet.sock", "");
    put(
        "etc/containerd/config.toml",
        "default_runtime_name = \"cgpu\"\nBinaryName = \"/usr/bin/cgpu-runtime\"\n",
    );
    let outcome = alone().exits(1);
    assert!(
        outcome.stdout.contains("this node (runtime_missing)")
            && outcome.stdout.contains("(plugin_absent)"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.starts_with("only this node's files were examined: cannot access a cluster"),
        "{outcome:?}"
    );
    put("var/lib/kubelet/device-plugins/cgpu-mem.sock", "");
    put("usr/bin/cgpu-runtime", "");
    put("usr/lib/cgpu/libcgpu.so", "");
    // Nothing is wrong, but the cluster could not be examined.
    assert_eq!(alone().exits(2).stdout, "nothing is wrong; examined: this node's files\n");
    let whole = inspect(&documented(), &["doctor", "--root", &root]).exits(0);
    assert_eq!(whole.stdout, "nothing is wrong; examined: 2 nodes, 0 pods, this node's files\n");
}

/// `cgpu doctor kubernetes` runs the same program, with its output and exit code.
#[test]
fn cgpu_doctor_kubernetes_prints_the_same() {
    let server = documented();
    server.put("pods", objects::pod("test", "big", 16));
    let folder = tempfile::tempdir().expect("a folder");
    let config = server.kubeconfig(folder.path());
    let mut command = program(Dist::find().file("cgpu"));
    command.args(["doctor", "kubernetes", "big", "-n", "test", "--kubeconfig"]).arg(&config);
    let outcome = Child::start(command).finish().exits(1);
    assert_eq!(outcome.stdout, doctor(&server, &["big", "-n", "test"]).stdout);
    let mut help = program(Dist::find().file("cgpu"));
    help.args(["doctor", "kubernetes", "--help"]);
    assert!(Child::start(help).finish().exits(0).stdout.contains("--namespace"));
    // It reports where that program is missing.
    let alone = folder.path().join("cgpu");
    fs::copy(Dist::find().file("cgpu"), &alone).expect("a copy");
    let mut command = program(&alone);
    command.args(["doctor", "kubernetes"]).env("PATH", folder.path());
    let outcome = Child::start(command).finish().exits(2);
    assert!(
        outcome.stderr.contains("kubectl-inspect-gpushare is neither beside this program"),
        "{outcome:?}"
    );
}
