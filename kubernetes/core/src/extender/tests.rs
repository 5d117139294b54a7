use super::*;
use crate::fixture::{node, plain_node, pod, sharing, texts};
use crate::names::Dialects;
use crate::object::Node;
use serde_json::json;

fn cluster(nodes: &[Node], pods: &[Pod]) -> Cluster {
    let mut cluster = Cluster::new(Dialects::default());
    cluster.replace(nodes, pods);
    cluster
}

fn on(name: &str, units: u64, node: &str, gpu: u32) -> Pod {
    let mut pod = sharing(name, units);
    pod.spec.node_name = node.into();
    pod.metadata.annotations = texts(&[("ALIYUN_COM_GPU_MEM_IDX", &gpu.to_string())]);
    pod
}

fn golden(name: &str) -> String {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn text<T: Serialize>(answer: &T) -> String {
    serde_json::to_string(answer).unwrap()
}

#[test]
fn calls_have_the_paths_of_gpushare() {
    for (method, path, expected) in [
        ("GET", "/version", Some(Call::Version)),
        ("POST", "/gpushare-scheduler/filter", Some(Call::Filter)),
        ("POST", "/gpushare-scheduler/prioritize", Some(Call::Prioritize)),
        ("POST", "/gpushare-scheduler/bind", Some(Call::Bind)),
        ("POST", "/gpushare-scheduler/preempt", Some(Call::Preempt)),
        ("GET", "/gpushare-scheduler/inspect", Some(Call::Inspect(None))),
        ("GET", "/gpushare-scheduler/inspect/n1", Some(Call::Inspect(Some("n1")))),
        ("GET", "/gpushare-scheduler/filter", None),
        ("POST", "/version", None),
        ("GET", "/gpushare-scheduler/inspect/n1/x", None),
        ("GET", "/gpushare-schedulerx/inspect", None),
        ("GET", "/", None),
    ] {
        assert_eq!(Call::of(method, path), expected, "{method} {path}");
    }
    assert_eq!(version(), env!("CARGO_PKG_VERSION"));
}

/// The bodies in `tests/golden` were written by hand in the format of kube-scheduler 1.36.
#[test]
fn filter_of_node_names_returns_node_names() {
    let nodes =
        [node("n1", "GiB", &[15109]), node("n2", "GiB", &[15109]), node("n3", "GiB", &[7680])];
    let cluster = cluster(&nodes, &[on("a", 10, "n2", 0)]);
    let body = golden("filter-request.json");
    let candidates: Candidates = decode(body.as_bytes()).unwrap();
    assert_eq!(candidates.pod.as_ref().unwrap().metadata.name, "binpack-2-58579b95f7-4wpbl");
    let answer = filter(&cluster, &candidates);
    assert_eq!(text(&answer), golden("filter-reply.json").trim_end());
}

#[test]
fn filter_of_whole_nodes_returns_whole_nodes() {
    let cluster = cluster(&[node("n1", "GiB", &[15109]), node("n2", "GiB", &[4096])], &[]);
    let items = json!([{"metadata": {"name": "n1", "x": 1}}, {"metadata": {"name": "n2"}}]);
    let nodes = json!({"metadata": {}, "items": items});
    let body = json!({"Pod": sharing("p", 8), "Nodes": nodes, "NodeNames": null}).to_string();
    let answer = filter(&cluster, &decode(body.as_bytes()).unwrap());
    assert_eq!(text(&answer.nodes), r#"{"items":[{"metadata":{"name":"n1","x":1}}]}"#);
    assert_eq!(answer.node_names, None);
    assert_eq!(
        answer.failed_and_unresolvable_nodes["n2"],
        "node(s) with no GPUs for the pod (1/1 GPUs: 8 units requested, the largest has 4)"
    );
}

#[test]
fn filter_of_an_invalid_pod_fails_every_node() {
    let cluster = cluster(&[node("n1", "GiB", &[15109])], &[]);
    let requests = |pod: Pod, names: &[&str]| Candidates {
        pod: Some(pod),
        node_names: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        nodes: None,
    };
    let answer = filter(&cluster, &requests(pod("p", &[("aliyun.com/gpu-mem", "1.5")]), &["n1"]));
    assert!(
        answer.failed_and_unresolvable_nodes["n1"].contains("`1.5`, which is not a whole number")
    );
    // A pod without requests passes every node; one with requests fails on an unknown node.
    assert_eq!(
        filter(&cluster, &requests(pod("p", &[]), &["n1", "n9"])).node_names.unwrap(),
        ["n1", "n9"]
    );
    let answer = filter(&cluster, &requests(sharing("p", 2), &["n1", "n9"]));
    assert_eq!(
        answer.failed_and_unresolvable_nodes["n9"],
        "node(s) with no GPUs for the pod (cgpu does not know the node: it is new, or was deleted)"
    );
    assert_eq!(filter(&cluster, &Candidates::default()).error, "the request names no pod");
    assert!(
        decode::<Candidates>(b"{")
            .unwrap_err()
            .message()
            .starts_with("the request is not what kube-scheduler sends")
    );
}

#[test]
fn prioritize_ranks_by_fullness() {
    let nodes =
        [node("n1", "GiB", &[15109]), node("n2", "GiB", &[15109]), node("n3", "GiB", &[15109])];
    let cluster = cluster(&nodes, &[on("a", 10, "n2", 0), on("b", 5, "n3", 0)]);
    let body = format!(
        r#"{{"Pod":{},"Nodes":null,"NodeNames":["n1","n2","n3","n9","n1"]}}"#,
        text(&sharing("p", 2))
    );
    let candidates = decode(body.as_bytes()).unwrap();
    assert_eq!(
        text(&prioritize(&cluster, &candidates, Placement::Binpack, &HashMap::new())),
        concat!(
            r#"[{"Host":"n1","Score":0},{"Host":"n2","Score":10},"#,
            r#"{"Host":"n3","Score":4},{"Host":"n9","Score":0}]"#
        )
    );
    assert_eq!(prioritize(&cluster, &candidates, Placement::Spread, &HashMap::new())[0].score, 10);
}

fn candidates_of(pod: Pod, names: &[&str]) -> Candidates {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Candidates { pod: Some(pod), nodes: None, node_names: Some(names) }
}

#[test]
fn annotation_of_a_pod_decides_which_node_comes_first() {
    let nodes = [node("n1", "GiB", &[15109]), node("n2", "GiB", &[15109])];
    let mut cluster = Cluster::new(Dialects { hami: true });
    cluster.replace(&nodes, &[on("a", 10, "n2", 0)]);
    let best = |policy: &str, placement| {
        let mut pod = sharing("p", 2);
        pod.metadata.annotations = texts(&[("hami.io/node-scheduler-policy", policy)]);
        let ranked =
            prioritize(&cluster, &candidates_of(pod, &["n1", "n2"]), placement, &HashMap::new());
        ranked.into_iter().max_by_key(|it| it.score).unwrap().host
    };
    assert_eq!(best("spread", Placement::Binpack), "n1");
    assert_eq!(best("binpack", Placement::Spread), "n2");
    let mut pod = sharing("p", 2);
    pod.metadata.annotations = texts(&[("hami.io/node-scheduler-policy", "full")]);
    let answer = filter(&cluster, &candidates_of(pod, &["n1"]));
    assert_eq!(
        answer.failed_and_unresolvable_nodes["n1"],
        "node(s) with no GPUs for the pod (the annotation hami.io/node-scheduler-policy is \
         `full`, expected `binpack` or `spread`)"
    );
}

#[test]
fn bind_returns_the_patch() {
    let waiting = sharing("p1", 8);
    let cluster =
        cluster(&[node("n1", "GiB", &[15109])], &[waiting, on("a", 10, "n1", 0), sharing("p2", 2)]);
    let binding: Binding =
        decode(br#"{"PodName":"p2","PodNamespace":"test","PodUID":"uid-p2","Node":"n1"}"#).unwrap();
    let change = bind(&cluster, &binding, 5).unwrap();
    assert_eq!(change.annotations["ALIYUN_COM_GPU_MEM_IDX"].as_deref(), Some("0"));
    let refused = |name: &str, uid: &str, node: &str| {
        let binding = Binding {
            pod_name: name.into(),
            pod_namespace: "test".into(),
            pod_uid: uid.into(),
            node: node.into(),
        };
        bind(&cluster, &binding, 5).unwrap_err().to_string()
    };
    assert_eq!(
        refused("p1", "uid-p1", "n1"),
        "test/p1 does not fit on node `n1`: 1/1 GPUs: 4 of 8 units free"
    );
    assert_eq!(refused("p1", "uid-p1", "n7"), "the node `n7` is not known");
    assert_eq!(refused("p1", "uid-p2", "n1"), "the pod uid-p2 is test/p2, not test/p1");
    assert!(
        refused("p1", "gone", "n1").starts_with("the pod test/p1 is not known, or was deleted")
    );
    assert_eq!(text(&Bound::default()), r#"{"Error":""}"#);
}

/// After a failed binding, kube-scheduler calls filter again while the claim still counts.
#[test]
fn filter_ignores_the_claim_of_the_pod_itself() {
    let mut cluster = cluster(&[node("n1", "GiB", &[15109])], &[sharing("p", 8)]);
    let binding: Binding =
        decode(br#"{"PodName":"p","PodNamespace":"test","PodUID":"uid-p","Node":"n1"}"#).unwrap();
    let mut claimed = sharing("p", 8);
    bind(&cluster, &binding, 5).unwrap().apply(&mut claimed);
    claimed.metadata.resource_version = "2".into();
    cluster.apply_pod(&claimed);
    let candidates =
        |pod| Candidates { pod: Some(pod), nodes: None, node_names: Some(vec!["n1".into()]) };
    assert_eq!(filter(&cluster, &candidates(claimed)).node_names.unwrap(), ["n1"]);
    assert_eq!(
        filter(&cluster, &candidates(sharing("other", 8))).failed_nodes["n1"],
        "node(s) with no GPUs for the pod (1/1 GPUs: 6 of 8 units free)"
    );
    assert!(bind(&cluster, &binding, 6).is_ok());
}

#[test]
fn inspect_reply_equals_that_of_gpushare() {
    let nodes = [
        plain_node("n1", "10.0.0.1", 28, 2),
        node("n2", "GiB", &[]),
        plain_node("n3", "10.0.0.3", 14, 1),
    ];
    let cluster = cluster(&nodes, &[on("a", 10, "n1", 1), on("b", 2, "n1", 1)]);
    assert_eq!(text(&inspect(&cluster, None)), golden("inspect-reply.json").trim_end());
    assert_eq!(
        text(&inspect(&cluster, Some("n9"))),
        r#"{"nodes":[],"error":"the node n9 does not exist"}"#
    );
    assert_eq!(inspect(&cluster, Some("n3")).nodes.len(), 1);
}

/// Any client that reaches the extender may send a body.
#[test]
fn request_that_would_need_many_times_its_size_is_refused() {
    let cluster = cluster(&[node("n1", "GiB", &[15109])], &[]);
    let read =
        |body: &Value, whole_nodes| candidates(body.to_string().as_bytes(), whole_nodes, &cluster);
    let names = |count: usize| json!({"Pod": {}, "NodeNames": vec!["n"; count]});
    assert_eq!(read(&names(1002), false).unwrap().node_names.unwrap().len(), 1002);
    assert_eq!(
        read(&names(1003), false).unwrap_err().message(),
        "the request names 1003 nodes, but the cluster has 1"
    );
    let whole = json!({"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "n1"}}]}});
    assert!(read(&whole, false).unwrap_err().message().contains("--whole-nodes"));
    assert_eq!(read(&whole, true).unwrap().nodes.unwrap().items.len(), 1);
    assert!(read(&json!({"Pod": {}, "Nodes": null}), false).is_ok());
}
