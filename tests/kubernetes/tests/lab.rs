//! `cargo xtask lab`: what it says where programs are missing, and the lab itself where the
//! environment names them (`docs/internals/testing.md`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Dist, Outcome};
use cgpu_kubernetes_tests::cluster::is_available;
use cgpu_kubernetes_tests::extender::filter;
use cgpu_kubernetes_tests::http::Connection;
use cgpu_kubernetes_tests::objects::pod;
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

/// Deadline of a lab in a test.
const LIFETIME: Duration = Duration::from_secs(900);

fn lab(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu-lab"));
    command.env("CGPU_DIST", Dist::find().folder()).arg("--folder").arg(folder).args(arguments);
    command
}

fn without_programs(mut command: Command) -> Command {
    let names = std::env::vars().map(|(name, _)| name);
    for name in names.filter(|name| name.starts_with("TEST_ASSET_")) {
        command.env_remove(name);
    }
    command
}

#[test]
fn lab_names_all_that_is_missing_and_how_to_get_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = without_programs(lab(folder.path(), &[]));
    command.env("PATH", folder.path());
    let outcome = Outcome::of(command).exits(1);
    for name in ["etcd", "kube-apiserver", "kube-scheduler", "kubelet", "containerd"] {
        assert!(outcome.stderr.contains(&format!("no {name}")), "{name}: {}", outcome.stderr);
    }
    let bin = folder.path().join("bin");
    let remedy = format!("sh tests/kubernetes/programs.sh {}", bin.display());
    assert!(outcome.stderr.contains(&remedy), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("apt-get install runc"), "{}", outcome.stderr);
    let image = Outcome::of(lab(folder.path(), &["--image", "missing.tar"])).exits(1);
    assert!(image.stderr.contains("cannot read missing.tar"), "{image:?}");
    let gpus = Outcome::of(lab(folder.path(), &["--gpus", "A11"])).exits(2);
    assert!(gpus.stderr.contains("unknown model \"A11\""), "{gpus:?}");
    // It has started nothing, so there is nothing to stop.
    let stopped = Outcome::of(lab(folder.path(), &["--stop"])).exits(0);
    assert_eq!(stopped.stdout, "no lab runs\n");
}

/// Returns a folder that serves as all the sites, with their files of sums.
fn sites(folder: &Path) -> BTreeMap<&'static str, String> {
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(folder);
        Outcome::of(command).exits(0).stdout
    };
    let machine = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    shell(&format!(
        "mkdir kubernetes v3.6.10 v2.3.4 made made/bin
         for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
             echo $name > kubernetes/$name
             sha256sum < kubernetes/$name | cut -d' ' -f1 > kubernetes/$name.sha256
         done
         echo etcd > made/etcd
         tar -czf v3.6.10/etcd-v3.6.10-linux-{machine}.tar.gz made/etcd
         (cd v3.6.10 && sha256sum *.gz > SHA256SUMS)
         for name in containerd ctr containerd-shim-runc-v2; do echo $name > made/bin/$name; done
         cd v2.3.4
         tar -czf containerd-2.3.4-linux-{machine}.tar.gz -C ../made bin
         for file in *.gz; do sha256sum $file > $file.sha256sum; done"
    ));
    let of = |name: &str| format!("file://{}", folder.join(name).display());
    [("KUBERNETES", of("kubernetes")), ("ETCD", of("v3.6.10")), ("CONTAINERD", of("v2.3.4"))].into()
}

#[test]
fn programs_are_downloaded_and_compared_with_their_sums() {
    let folder = tempfile::tempdir().expect("a folder");
    let variables = sites(folder.path());
    let bin = folder.path().join("bin");
    let get = || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs.sh");
        let mut command = Command::new("sh");
        command.arg(script).arg(&bin).envs(&variables);
        Outcome::of(command)
    };
    let wrong = folder.path().join("kubernetes/kubelet");
    fs::write(&wrong, "something else").expect("a file");
    let refused = get().exits(1);
    assert!(refused.stderr.contains("kubelet is not what"), "{refused:?}");
    assert!(bin.join("kube-apiserver").exists() && !bin.join("kubelet").exists());
    fs::write(&wrong, "kubelet\n").expect("a file");
    get().exits(0);
    let read = |name: &str| fs::read_to_string(bin.join(name)).unwrap_or_default();
    for name in ["kube-scheduler", "kubelet", "kubectl", "etcd", "containerd", "ctr"] {
        assert_eq!(read(name), format!("{name}\n"));
    }
    assert_eq!(fs::read_dir(&bin).expect("a folder").count(), 9);
}

/// Returns a script that has the environment that the lab prints.
fn with_exports(lines: &[String], script: &str) -> Command {
    let exports = lines.iter().filter(|line| line.trim().starts_with("export "));
    let exports = exports.cloned().collect::<Vec<_>>().join("\n");
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{exports}\n{script}")]).env_remove("KUBECONFIG");
    command
}

const PAGE: &str = include_str!("../../../docs/kubernetes.md");

/// Runs the page's pod that is too large, and the doctor.
fn doctor_explains_the_large_pod(lines: &[String]) {
    let begin = PAGE.find("    kubectl apply -f - <<EOF\n").expect("a pod");
    let commands = PAGE[begin..].split_once("\n\n").expect("an end").0;
    let commands: Vec<&str> = commands.lines().map(|line| &line[4..]).collect();
    assert_eq!(commands.last(), Some(&"kubectl inspect cgpu doctor"));
    let child = Child::start_for(with_exports(lines, &commands.join("\n")), LIFETIME);
    // It finds something.
    let diagnosed = child.finish().exits(1);
    println!("{}", diagnosed.stdout);
    assert!(diagnosed.stdout.contains("pod default/large (never_fits)"), "{diagnosed:?}");
    assert!(diagnosed.stdout.contains("40"), "{diagnosed:?}");
    let delete = with_exports(lines, "kubectl delete pod large --force --grace-period=0");
    Child::start_for(delete, LIFETIME).finish().exits(0);
}

/// Runs all commands that the lab prints, as a user pastes them.
fn paste(lines: &[String]) -> Outcome {
    let commands = lines.iter().filter_map(|line| line.strip_prefix("    "));
    let script = format!("set -e\n{}", commands.collect::<Vec<_>>().join("\n"));
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env_remove("KUBECONFIG");
    Child::start_for(command, LIFETIME).finish()
}

/// Calls the extender as a scheduler on this host does, by the command of the page.
fn extender_answers(lines: &[String]) {
    let command = PAGE.split('`').find(|text| text.starts_with("kubectl port-forward"));
    let command = command.expect("the command");
    let script = with_exports(lines, &format!("exec {command}"));
    let mut forward = Child::start_for(script, LIFETIME);
    let line = forward.line();
    let port = command.rsplit([' ', ':']).nth(1).expect("a port");
    let address = format!("127.0.0.1:{port}");
    assert!(line.contains(&address), "{line}");
    let mut connection = Connection::to(address.parse().expect("an address"));
    let pod = pod("default", "mine", 4);
    assert_eq!(filter(&mut connection, &pod, &["n1", "n2"])["NodeNames"], json!(["n1"]));
    forward.kill();
}

fn runs(test: &str, engine: &str, sizes: &str) {
    if !is_available(test) {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{engine}"));
    let _ = fs::remove_dir_all(&folder);
    let gpus = format!("--gpus={sizes}");
    let mut child =
        Child::start_for(lab(&folder, &["--nodes=1", "--engine", engine, &gpus]), LIFETIME);
    let mut lines: Vec<String> = Vec::new();
    while !lines.last().is_some_and(|line| line.contains("--stop")) {
        lines.push(child.line());
    }
    let second = Outcome::of(lab(&folder, &[])).exits(1);
    assert!(second.stderr.contains("a lab runs in"), "{second:?}");
    let pasted = paste(&lines).exits(0);
    let number = |pod: &str, key: &str| {
        let mut lines = pasted.stdout.lines().filter_map(|line| line.strip_prefix(pod));
        lines.find_map(|line| serde_json::from_str::<Value>(line).ok()?[key].as_u64())
    };
    let granted = number("", "granted").expect("a sum");
    assert!((3 << 30..4 << 30).contains(&granted), "{granted} bytes of a limit of 4 GiB");
    let launches = |pod| number(pod, "launches").unwrap_or_else(|| panic!("{pod} {pasted:?}"));
    assert!(launches("fast: ") > launches("slow: "), "{pasted:?}");
    let is_listed = |line: &str| line.contains("fast") && line.contains("default");
    assert!(pasted.stdout.lines().any(is_listed), "{pasted:?}");
    assert!(pasted.stdout.contains("WEIGHT"), "{pasted:?}");
    if engine == "extender" {
        extender_answers(&lines);
        doctor_explains_the_large_pod(&lines);
    }
    Outcome::of(lab(&folder, &["--stop"])).exits(0);
    child.finish().exits(0);
    until_holds("its files are removed", || !folder.join("cluster").exists());
    assert!(!folder.join("kubeconfig").exists());
    fs::remove_dir_all(&folder).expect("a folder");
}

#[test]
fn lab_with_the_extender_enforces_limits_until_it_is_stopped() {
    let test = "lab_with_the_extender_enforces_limits_until_it_is_stopped";
    runs(test, "extender", "A100:40960");
}

#[test]
fn lab_with_claims_enforces_limits_until_it_is_stopped() {
    runs("lab_with_claims_enforces_limits_until_it_is_stopped", "dra", "A100:40960");
}
