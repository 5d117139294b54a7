//! A real etcd and API server, without nodes and controllers, behind `kubectl proxy`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Child, skip};
use cgpu_kubernetes_core::names::{annotation, label};
use cgpu_kubernetes_core::unit::Unit;
use cgpu_kubernetes_tests::http::{Connection, Reply};
use cgpu_kubernetes_tests::wait::{until, until_holds};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::dialects::{Policies, claims, dialect_objects, large, refused, translated};
use crate::interpreter::Policy;
use crate::requests::{GROWER, NAMESPACES, Operation, Request, User, objects, requests};
use crate::{policies, policy_objects};

pub(crate) const ADMINISTRATOR: User = User { name: "admin", node: None };

fn program(name: &str) -> Option<PathBuf> {
    let given = std::env::var_os(format!("TEST_ASSET_{name}")).map(PathBuf::from);
    given.filter(|path| path.is_file())
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

pub(crate) struct ApiServer {
    proxy: SocketAddr,
    _children: [Child; 3],
}

impl ApiServer {
    /// Starts it with the data in `folder`; all users may do all that the policies allow, and one
    /// may let pods grow.
    fn start(etcd: &Path, api_server: &Path, kubectl: &Path, folder: &Path) -> Self {
        let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let [clients, peers, secure, proxy] = std::array::from_fn(|_| free_port());
        let mut command = Command::new(etcd);
        let (clients, peers) =
            (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
        command.args(["--name=default", &format!("--data-dir={}", at("etcd"))]);
        for flag in ["listen-client-urls", "advertise-client-urls"] {
            command.arg(format!("--{flag}={clients}"));
        }
        for flag in ["listen-peer-urls", "initial-advertise-peer-urls"] {
            command.arg(format!("--{flag}={peers}"));
        }
        command.arg(format!("--initial-cluster=default={peers}"));
        let etcd = Child::start(command);

        let key = KeyPair::generate().expect("a key");
        let tokens = CertificateParams::default().self_signed(&key).expect("a certificate");
        std::fs::write(at("key"), key.serialize_pem()).expect("a file");
        std::fs::write(at("certificate"), tokens.pem()).expect("a file");
        std::fs::write(at("tokens"), "secret,admin,1,system:masters\n").expect("a file");
        let mut command = Command::new(api_server);
        command.args([
            &format!("--etcd-servers={clients}"),
            &format!("--secure-port={secure}"),
            "--bind-address=127.0.0.1",
            &format!("--cert-dir={}", at("certificates")),
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://kubernetes.default.svc",
            &format!("--service-account-key-file={}", at("certificate")),
            &format!("--service-account-signing-key-file={}", at("key")),
            &format!("--token-auth-file={}", at("tokens")),
        ]);
        let api_server = Child::start(command);

        let mut command = Command::new(kubectl);
        command.env("HOME", folder).env_remove("KUBECONFIG").args([
            &format!("--server=https://127.0.0.1:{secure}"),
            "--insecure-skip-tls-verify",
            "--token=secret",
            "proxy",
            &format!("--port={proxy}"),
            "--accept-hosts=.*",
        ]);
        let children = [etcd, api_server, Child::start(command)];
        let proxy = SocketAddr::from(([127, 0, 0, 1], proxy));
        until_holds("the API server is ready", || {
            let Ok(stream) = cgpu_kubernetes_tests::http::connect(proxy) else { return false };
            let reply = Connection::over(stream).try_request("GET", "/readyz", "");
            reply.is_ok_and(|reply| reply.status == 200)
        });
        Self { proxy, _children: children }
    }

    pub(crate) fn send(&self, user: User, method: &str, path: &str, body: &Value) -> Reply {
        let kind = if method == "PATCH" { "merge-patch+json" } else { "json" };
        let mut headers = vec![("Content-Type", format!("application/{kind}"))];
        headers.push(("Impersonate-User", user.name.to_owned()));
        if user.name == ADMINISTRATOR.name {
            headers.push(("Impersonate-Group", "system:masters".to_owned()));
        }
        headers.extend(user.node.map(|node| {
            ("Impersonate-Extra-authentication.kubernetes.io%2fnode-name", node.to_owned())
        }));
        let mut connection = Connection::to(self.proxy);
        connection.request_with(method, path, &headers, &body.to_string()).expect("a reply")
    }

    pub(crate) fn create(&self, path: &str, object: &Value) {
        let reply = self.send(ADMINISTRATOR, "POST", path, object);
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    /// Creates a policy or a binding.
    pub(crate) fn create_policy(&self, object: &Value) {
        let kind = object["kind"].as_str().expect("a kind").to_lowercase();
        let kind = kind.replace("policy", "policies").replace("policiesbinding", "policybindings");
        self.create(&format!("/apis/admissionregistration.k8s.io/v1/{kind}"), object);
    }

    /// Sends a request of the table, which changes nothing.
    fn attempt(&self, request: &Request) -> Reply {
        let (resource, part) = request.resource.split_once('/').unwrap_or((request.resource, ""));
        let namespace = match &request.operation {
            Operation::Create(object) => object["metadata"]["namespace"].as_str(),
            Operation::Update(..) => None,
        };
        let namespace = namespace.unwrap_or("default");
        let all = match resource {
            "nodes" => "/api/v1/nodes".to_owned(),
            "resourceslices" => format!("/apis/resource.k8s.io/v1/{resource}"),
            "resourceclaims" | "resourceclaimtemplates" => {
                format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/{resource}")
            }
            _ => format!("/api/v1/namespaces/{namespace}/{resource}"),
        };
        let part = if part.is_empty() { String::new() } else { format!("/{part}") };
        let (method, path, body) = match &request.operation {
            Operation::Create(object) if part.is_empty() => ("POST", all, object),
            Operation::Create(object) => {
                let name = object["metadata"]["name"].as_str().expect("a name");
                ("POST", format!("{all}/{name}{part}"), object)
            }
            Operation::Update(name, patch) => ("PATCH", format!("{all}/{name}{part}"), patch),
        };
        self.send(request.user, method, &format!("{path}?dryRun=All"), body)
    }
}

/// Starts an API server in this folder; none: a program is missing.
pub(crate) fn started(test: &str, folder: &Path) -> Option<ApiServer> {
    let kubectl = program("KUBECTL").unwrap_or_else(|| PathBuf::from("kubectl"));
    let (Some(etcd), Some(api_server)) = (program("ETCD"), program("KUBE_APISERVER")) else {
        skip(test, "cluster", "TEST_ASSET_ETCD or TEST_ASSET_KUBE_APISERVER is no program");
        return None;
    };
    let server = ApiServer::start(&etcd, &api_server, &kubectl, folder);
    until_holds("the namespace is there", || {
        server.send(ADMINISTRATOR, "GET", "/api/v1/namespaces/default", &json!({})).status == 200
    });
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = |name: &str, rule: Value| json!({"metadata": {"name": name}, "rules": [rule]});
    let groups = ["", "resource.k8s.io", "admissionregistration.k8s.io"];
    let all = json!({"apiGroups": groups, "resources": ["*"], "verbs": ["*"]});
    let grow = json!({"apiGroups": ["cgpu.dev"], "resources": ["pods"], "verbs": ["grow"]});
    let binding = |name: &str, kind: &str, subject: &str| {
        json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject}]})
    };
    let all_users = binding("all", "Group", "system:authenticated");
    server.create(&format!("{rbac}/clusterroles"), &role("all", all));
    server.create(&format!("{rbac}/clusterrolebindings"), &all_users);
    server.create(&format!("{rbac}/clusterroles"), &role("grow", grow));
    let grower = binding("grow", "User", GROWER.name);
    server.create(&format!("{rbac}/namespaces/default/rolebindings"), &grower);
    Some(server)
}

#[test]
fn real_api_server_allows_and_refuses_the_requests_of_the_table() {
    let test = "real_api_server_allows_and_refuses_the_requests_of_the_table";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = started(test, folder.path()) else { return };
    for (name, labels) in NAMESPACES {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        let object = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": labels}});
        server.create("/api/v1/namespaces", &object);
    }
    for object in objects() {
        let kind = if object["kind"] == "Node" { "nodes" } else { "namespaces/default/pods" };
        server.create(&format!("/api/v1/{kind}"), &object);
    }
    policy_objects().iter().for_each(|object| server.create_policy(object));
    let (requests, policies) = (requests(), policies());
    // The policies count as soon as the API server has read its own objects.
    until("the policies count", || {
        let wrong = requests
            .iter()
            .filter(|request| request.refused)
            .find(|request| server.attempt(request).status < 300);
        wrong.is_none().then_some(())
    });
    for request in &requests {
        let reply = server.attempt(request);
        if !request.refused {
            assert!(reply.status < 300, "{request:#?}: {reply:?}");
            continue;
        }
        let refusal = policies.iter().find_map(|policy: &Policy| policy.refusal(request));
        let message = refusal.expect("a refusal").message;
        let status = reply.json()["message"].as_str().expect("a message").to_owned();
        assert!(reply.status == 422 && status.contains(&message), "{request:#?}: {status}");
    }
    let types = server.send(
        ADMINISTRATOR,
        "GET",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        &json!({}),
    );
    println!("{} requests; {}", requests.len(), types.json()["items"][0]["status"]);
}

#[test]
fn real_api_server_translates_old_resources_as_the_interpreter() {
    let test = "real_api_server_translates_old_resources_as_the_interpreter";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = started(test, folder.path()) else { return };
    dialect_objects(Unit::Gib, false).iter().for_each(|object| server.create_policy(object));
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "claims", "labels": {"cgpu.dev/engine": "dra"}}});
    server.create("/api/v1/namespaces", &namespace);
    let create = |namespace: &str, pod: &Value| {
        let mut pod = pod.clone();
        pod["metadata"]["namespace"] = json!(namespace);
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
        server.send(ADMINISTRATOR, "POST", &path, &pod)
    };
    let refused = refused();
    until("the policies count", || {
        let is_refused = |pod| create("claims", pod).status == 422;
        let is_translated = |pod| !claims(&create("claims", pod).json()).0.is_empty();
        (is_refused(&refused[0]) && is_translated(&translated()[0].0)).then_some(())
    });
    let policies = Policies::new(Unit::Gib, false);
    for (mut pod, ..) in translated() {
        let expected = policies.admit(&pod).expect("a pod");
        // The API server adds requests to limits.
        for container in pod["spec"]["containers"].as_array_mut().expect("containers") {
            container["resources"].as_object_mut().map(|it| it.remove("requests"));
        }
        let reply = create("claims", &pod);
        assert_eq!(reply.status, 201, "{reply:?}");
        let admitted = reply.json();
        assert_eq!(claims(&admitted), claims(&expected), "{admitted:#}");
        assert!(!admitted["spec"].to_string().contains("aliyun.com"), "{admitted:#}");
        for of in [["annotations", annotation::REQUEST], ["labels", label::TRANSLATED]] {
            let [admitted, expected] =
                [&admitted, &expected].map(|pod| &pod["metadata"][of[0]][of[1]]);
            assert!(expected.is_string());
            assert_eq!(admitted, expected);
        }
        // Other namespaces have the other engine.
        let other = create("default", &pod);
        assert!(other.status == 201 && other.json()["spec"].to_string().contains("aliyun.com"));
    }
    // The API server bounds what expressions cost.
    for (containers, amounts) in [(200, json!({"aliyun.com/gpu-mem": "8"})), (400, json!({}))] {
        let reply = create("claims", &large(containers, &amounts));
        assert_eq!(reply.status, 201, "{containers} containers: {}", reply.text);
    }
    for pod in &refused {
        let reply = create("claims", pod);
        let by_policy = reply.text.contains("ValidatingAdmissionPolicy 'cgpu-dialects'");
        assert!(reply.status == 422 && by_policy, "{reply:?}");
    }
}

/// The policy of the example adds the number of GPUs after the first look of ours.
#[test]
fn real_api_server_translates_pods_that_another_policy_completes() {
    let test = "real_api_server_translates_pods_that_another_policy_completes";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = started(test, folder.path()) else { return };
    let labels = json!({"metadata": {"labels": {"cgpu.dev/engine": "dra"}}});
    let reply = server.send(ADMINISTRATOR, "PATCH", "/api/v1/namespaces/default", &labels);
    assert_eq!(reply.status, 200, "{reply:?}");
    dialect_objects(Unit::Gib, true).iter().for_each(|object| server.create_policy(object));
    let example = crate::objects_of("kubernetes/examples/hami-one-gpu.yaml");
    example.iter().for_each(|object| server.create_policy(object));
    let amounts = json!({"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30",
        "nvidia.com/priority": "0"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": amounts}}]}});
    let path = "/api/v1/namespaces/default/pods?dryRun=All";
    let admitted = until("both policies count", || {
        let reply = server.send(ADMINISTRATOR, "POST", path, &pod);
        (reply.status == 201).then(|| reply.json()).filter(|pod| !claims(pod).0.is_empty())
    });
    let template = "cgpu-memory-3000mi-cores-30-high-gpus-1".to_owned();
    assert_eq!(claims(&admitted).0, [("cgpu-0".to_owned(), template)]);
    assert!(!admitted["spec"].to_string().contains("nvidia.com"), "{admitted:#}");
    // The API server bounds what expressions cost.
    let mut large = large(200, &json!({"nvidia.com/gpu": "1", "nvidia.com/priority": "0"}));
    large["metadata"]["namespace"] = json!("default");
    let reply = server.send(ADMINISTRATOR, "POST", path, &large);
    assert_eq!(reply.status, 201, "{}", reply.text);
}
