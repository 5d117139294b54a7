//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler on a machine of their own.

use std::fs;
use std::path::{Path, PathBuf};

use super::assets::Assets;
use super::certificates::Authority;
use super::machine::{Daemon, Machine};
use super::until;
use crate::plane::{scheduler_configuration, with_hami_resources};

/// The API server's URL for all programs, pods included: the first address of the services' range.
pub(super) const SERVER: &str = "https://10.0.0.1:443";
/// The machine's address on the network of the nodes and pods.
pub(super) const GATEWAY: &str = "192.168.1.200";

pub(super) struct ControlPlane {
    pub(super) authority: Authority,
    pub(super) administrator: PathBuf,
    scheduler: Option<Daemon>,
    second: Option<Daemon>,
    /// The scheduler's file.
    configuration: PathBuf,
    scheduler_arguments: Vec<String>,
    daemons: Vec<Daemon>,
}

/// Returns a script that sets up the network: one bridge with the addresses of all but the pods. It
/// has a fixed hardware address: otherwise it would take over a new pod's, and peers with the old
/// one would lose it for half a minute.
pub(super) fn network(addresses: &[&str]) -> String {
    let mut script =
        "ip link set lo up\nip link add br0 address 0a:00:00:00:00:01 type bridge\nip link set br0 up\n\
                      ip address add 10.0.0.1/32 dev br0\n"
            .to_owned();
    for address in [GATEWAY].iter().chain(addresses) {
        script.push_str(&format!("ip address add {address}/16 dev br0\n"));
    }
    script
}

impl ControlPlane {
    /// Starts the programs and waits until the API server is ready.
    pub(super) fn start(machine: &Machine, assets: &Assets, folder: &Path) -> Self {
        let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let authority = Authority::new(&folder.join("authority"));
        let tokens = authority.sign("tokens", "tokens", None, &[]);
        let ca = authority.certificate().to_string_lossy().into_owned();
        let own = authority.sign(
            "server",
            "kube-apiserver",
            None,
            &["10.0.0.1", GATEWAY, "127.0.0.1", "kubernetes.default.svc"],
        );
        let to_kubelets =
            authority.sign("to-kubelets", "kube-apiserver", Some("system:masters"), &[]);
        let kubeconfig =
            |file: &str, user: &str, group| authority.kubeconfig(file, user, group, SERVER);
        let administrator = kubeconfig("administrator", "administrator", Some("system:masters"));
        let controllers = kubeconfig("controllers", "system:kube-controller-manager", None);
        let scheduler = kubeconfig("scheduler", "system:kube-scheduler", None);

        let start = |name: &str, program: &Path, flags: &[(&str, &str)]| {
            let flags: Vec<String> =
                flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
            machine.start(name, program, &flags)
        };
        let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        let etcd = start(
            "etcd",
            &assets.etcd,
            &[
                ("name", "default"),
                ("data-dir", &at("etcd")),
                ("listen-client-urls", clients),
                ("advertise-client-urls", clients),
                ("listen-peer-urls", peers),
                ("initial-advertise-peer-urls", peers),
                ("initial-cluster", &format!("default={peers}")),
            ],
        );
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let api_server = start(
            "kube-apiserver",
            &assets.api_server,
            &[
                ("etcd-servers", clients),
                ("secure-port", "443"),
                ("advertise-address", GATEWAY),
                ("service-cluster-ip-range", "10.0.0.0/24"),
                ("authorization-mode", "Node,RBAC"),
                ("enable-admission-plugins", "NodeRestriction"),
                ("allow-privileged", "true"),
                ("client-ca-file", &ca),
                ("tls-cert-file", &text(&own.certificate)),
                ("tls-private-key-file", &text(&own.key)),
                ("kubelet-client-certificate", &text(&to_kubelets.certificate)),
                ("kubelet-client-key", &text(&to_kubelets.key)),
                ("kubelet-preferred-address-types", "InternalIP"),
                ("service-account-issuer", "https://kubernetes.default.svc"),
                ("service-account-key-file", &text(&tokens.certificate)),
                ("service-account-signing-key-file", &text(&tokens.key)),
            ],
        );
        let configuration = folder.join("scheduler.yaml");
        fs::write(
            &configuration,
            scheduler_configuration(&scheduler, &format!("127.0.0.1:{EXTENDER}")),
        )
        .expect("a configuration");
        let scheduler_arguments = vec![format!("--config={}", configuration.display())];
        let mut plane = Self {
            authority,
            administrator,
            scheduler: None,
            second: None,
            configuration,
            scheduler_arguments,
            daemons: vec![etcd, api_server],
        };
        until("the API server is ready", || {
            assert!(
                plane.daemons.iter_mut().all(Daemon::runs),
                "a part of the control plane has ended"
            );
            let kubeconfig = plane.administrator.as_os_str();
            let mut command = machine.inside(&assets.kubectl);
            command.arg("--kubeconfig").arg(kubeconfig).args(["get", "--raw", "/readyz"]);
            (cgpu_e2e::Outcome::of(command).code() == Some(0)).then_some(())
        });
        // It ends where the API server is not ready within 10 s.
        plane.daemons.push(start(
            "kube-controller-manager",
            &assets.controllers,
            &[
                ("kubeconfig", &text(&controllers)),
                ("use-service-account-credentials", "true"),
                ("service-account-private-key-file", &text(&tokens.key)),
                ("root-ca-file", &ca),
                ("leader-elect", "false"),
            ],
        ));
        plane.scheduler =
            Some(machine.start("kube-scheduler", &assets.scheduler, &plane.scheduler_arguments));
        plane
    }

    /// Adds HAMi's resources to the scheduler's configuration, which counts from its next start.
    pub(super) fn use_hami_names(&self) {
        let text = fs::read_to_string(&self.configuration).expect("a configuration");
        fs::write(&self.configuration, with_hami_resources(&text)).expect("a configuration");
    }

    pub(super) fn restart_scheduler(&mut self, machine: &Machine, assets: &Assets) {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.end("TERM");
        }
        self.scheduler =
            Some(machine.start("kube-scheduler", &assets.scheduler, &self.scheduler_arguments));
    }

    /// Starts a second kube-scheduler with the configuration and rights of our manifests, adapted
    /// to the paths here.
    pub(super) fn start_second_scheduler(
        &mut self,
        machine: &Machine,
        assets: &Assets,
        folder: &Path,
    ) {
        let user = "system:serviceaccount:kube-system:cgpu-scheduler";
        let files = self.authority.kubeconfig("second-scheduler", user, None, SERVER);
        let configuration = folder.join("second-scheduler.yaml");
        fs::write(&configuration, second_scheduling(&files)).expect("a configuration");
        let arguments =
            [format!("--config={}", configuration.display()), "--secure-port=10260".to_owned()];
        self.second = Some(machine.start("second-scheduler", &assets.scheduler, &arguments));
    }
}

/// Returns the configuration in our manifests' ConfigMap for a scheduler on this machine.
fn second_scheduling(kubeconfig: &Path) -> String {
    let manifests = include_str!("../../../../kubernetes/manifests/cgpu.yaml");
    let (_, text) =
        manifests.split_once("\n  scheduler.yaml: |\n").expect("a scheduler's configuration");
    let (text, _) = text.split_once("\n---\n").expect("its end");
    let text: String = text
        .lines()
        .map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line)))
        .collect();
    let service = "cgpu-scheduler-extender.kube-system.svc:39999";
    assert!(text.contains(service), "{text}");
    let text = text.replace(service, &format!("127.0.0.1:{EXTENDER}"));
    format!("{text}clientConnection:\n  kubeconfig: {}\n", kubeconfig.display())
}

/// The extender's port on the control plane's machine in that example.
pub(super) const EXTENDER: u16 = 32766;
