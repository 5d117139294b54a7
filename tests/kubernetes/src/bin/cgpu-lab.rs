//! `cargo xtask lab`: a cluster with simulated GPUs on this machine, until ctrl-C or `--stop`.

#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use cgpu_e2e::Dist;
use cgpu_kubernetes_tests::cluster::{Lab, NodeSpec};
use cgpu_sim::GpuSpec;
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

/// Pods that share a GPU by units and by claims.
const UNITS: &str = include_str!("lab-units.yaml");
const CLAIMS: &str = include_str!("../../../../kubernetes/examples/dra/weights.yaml");

#[derive(Parser)]
#[command(
    name = "cargo xtask lab",
    about = "Start a Kubernetes cluster with simulated GPUs on this machine"
)]
struct Arguments {
    /// Number of nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    nodes: u8,
    /// GPUs of each node: MODEL:MIB,...
    #[arg(
        long,
        default_value = "A100:40960,A100:40960",
        value_name = "GPUS",
        value_parser = gpus
    )]
    gpus: String,
    /// How pods get their part of a GPU
    #[arg(long, default_value = "extender")]
    engine: Engine,
    /// Also load this archive of `docker save` on each node
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Stop the lab that runs, and remove its files
    #[arg(long)]
    stop: bool,
    /// Where the lab's files are [default: target/lab]
    #[arg(long, value_name = "FOLDER", hide = true)]
    folder: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Units: the device plugin and the scheduler extender
    Extender,
    /// Claims: the driver for dynamic resource allocation
    Dra,
}

/// Checks a list of simulated GPUs.
fn gpus(list: &str) -> Result<String, String> {
    match GpuSpec::parse_list(list) {
        Ok(_) => Ok(list.to_owned()),
        Err(error) => Err(error.to_string().replace("CGPU_SIM_GPUS: ", "")),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let folder = arguments.folder.clone().unwrap_or_else(|| {
        let dist = Dist::find();
        dist.folder().parent().unwrap_or(Path::new(".")).join("lab")
    });
    let outcome = if arguments.stop { stop(&folder) } else { run(&arguments, &folder) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cgpu-lab: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Opens the file that a running lab has locked. It contains the lab's process id.
fn lock(folder: &Path) -> Result<File, String> {
    let open = || {
        fs::create_dir_all(folder)?;
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join("lock"))
    };
    open().map_err(|error| format!("cannot use {}: {error}", folder.display()))
}

fn stop(folder: &Path) -> Result<(), String> {
    let mut file = lock(folder)?;
    if file.try_lock().is_ok() {
        Lab::clean(folder);
        println!("no lab runs");
        return Ok(());
    }
    let mut process = String::new();
    file.read_to_string(&mut process).map_err(|error| error.to_string())?;
    let status = Command::new("kill").args(["-TERM", process.trim()]).status();
    if !status.is_ok_and(|status| status.success()) {
        return Err(format!("cannot stop process {process}: stop it as the user who started it"));
    }
    file.lock().map_err(|error| error.to_string())?;
    println!("the lab has stopped");
    Ok(())
}

fn run(arguments: &Arguments, folder: &Path) -> Result<(), String> {
    // Nodes have another working folder.
    let absolute = |image: &PathBuf| {
        image.canonicalize().map_err(|error| format!("cannot read {}: {error}", image.display()))
    };
    let images = arguments.image.iter().map(absolute).collect::<Result<Vec<_>, _>>()?;
    let mut file = lock(folder)?;
    file.try_lock().map_err(|_| {
        format!("a lab runs in {}: stop it (cargo xtask lab --stop)", folder.display())
    })?;
    let write = |file: &mut File| {
        file.set_len(0)?;
        writeln!(file, "{}", std::process::id())
    };
    write(&mut file).map_err(|error| error.to_string())?;
    let nodes: Vec<NodeSpec> = (0..arguments.nodes)
        .map(|index| NodeSpec {
            // They are needed as long as the process lives.
            name: format!("n{}", index + 1).leak(),
            address: format!("192.168.1.{}", 210 + index).leak(),
            gpus: arguments.gpus.clone().leak(),
            is_claimed: arguments.engine == Engine::Dra,
        })
        .collect();
    let count = match nodes.len() {
        1 => "1 node".to_owned(),
        several => format!("{several} nodes"),
    };
    eprintln!("cgpu-lab: starting {count}; this takes a minute or two");
    let lab =
        Lab::start(folder, &nodes, &images).map_err(|missing| instructions(&missing, folder))?;
    let example = folder.join("example.yaml");
    // Both pods are to be on one GPU.
    let claims = CLAIMS
        .replace("  containers:", "  nodeSelector: {kubernetes.io/hostname: n1}\n  containers:");
    let text = if arguments.engine == Engine::Dra { &claims } else { UNITS };
    fs::write(&example, text).map_err(|error| error.to_string())?;
    lab.wait_until_accepted(&example);
    let (kubectl, dist) = (lab.kubectl().display(), Dist::find());
    println!(
        "The lab runs: {count}, each with the simulated GPUs {}. In another terminal:

    export KUBECONFIG={}
    export PATH={kubectl}:{}:$PATH
    kubectl apply -f {}
    kubectl wait --for=condition=Ready pod/slow pod/fast --timeout=2m
    kubectl exec slow -- alloc_fill 64M
    for pod in slow fast; do
        echo run 10 | kubectl exec -i $pod -- worker 1000 | sed \"s/^/$pod: /\" &
    done; wait
    kubectl inspect cgpu -d

alloc_fill sees a GPU of 4 GiB, and gets what its context leaves of it. Of two workers, the one in
fast launches three times as many kernels. To stop: ctrl-C here, or cargo xtask lab --stop.",
        arguments.gpus,
        lab.kubeconfig().display(),
        dist.folder().display(),
        example.display(),
    );
    let _ = std::io::stdout().flush();
    wait_for_end().map_err(|error| format!("cannot wait for signals: {error}"))?;
    eprintln!("cgpu-lab: stopping");
    Ok(())
}

/// Returns what a user should do about what is missing.
fn instructions(missing: &[String], folder: &Path) -> String {
    let list: String = missing.iter().map(|it| format!("\n  {it}")).collect();
    format!(
        "cannot start a cluster:{list}
Get the programs of Kubernetes, etcd and containerd (about 300 MB):
  sh tests/kubernetes/programs.sh {}
Get the tools from your distribution, such as apt-get install runc iproute2 util-linux.",
        folder.join("bin").display()
    )
}

/// Returns when the user, or `--stop`, ends this process.
fn wait_for_end() -> std::io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let [mut interrupt, mut terminate, mut hangup] = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ];
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        Ok(())
    })
}
