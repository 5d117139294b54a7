//! The extender as a process, and kube-scheduler's requests to it.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Dist, Outcome};
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::http::{Connection, Reply};
use crate::wait::until_holds;

const TERMINATE: i32 = 15;

/// A running extender.
pub struct Extender {
    child: Child,
    address: SocketAddr,
}

impl Extender {
    /// Returns the program for an API server.
    fn command(kubeconfig: &Path) -> Command {
        let program = Dist::find().file("cgpu-scheduler-extender");
        // The log is read by line with the output.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(program);
        command.args([
            "--log-format",
            "json",
            "--log-level",
            "debug",
            "--address",
            "127.0.0.1",
            "--port",
            "0",
        ]);
        command.arg("--kubeconfig").arg(kubeconfig);
        // Machines that are busy deliver events and renew leases late.
        command.args(["--sweep", "1", "--watch-timeout", "60", "--leader-elect", "false"]);
        // This machine's variables must not affect a test.
        for name in ["KUBECONFIG", "PORT", "LOG_LEVEL", "THREADNESS"] {
            command.env_remove(name);
        }
        command
    }

    /// Starts an extender and waits until it is ready.
    #[must_use]
    pub fn start<S: AsRef<OsStr>>(server: &ApiServer, folder: &Path, flags: &[S]) -> Self {
        let extender = Self::begin(server, folder, flags);
        extender.wait_until_ready();
        extender
    }

    /// Starts an extender and waits until it listens.
    #[must_use]
    pub fn begin<S: AsRef<OsStr>>(server: &ApiServer, folder: &Path, flags: &[S]) -> Self {
        let mut command = Self::command(Path::new(&server.kubeconfig(folder)));
        command.args(flags);
        Self::of(Child::start(command))
    }

    /// Starts an extender that reads HAMi's names, too, for a real API server, and waits until it
    /// is ready.
    #[must_use]
    pub fn start_for(kubeconfig: &Path, flags: &[&str], lifetime: Duration) -> Self {
        let mut command = Self::command(kubeconfig);
        command.arg("--hami").args(flags);
        let extender = Self::of(Child::start_for(command, lifetime));
        extender.wait_until_ready();
        extender
    }

    /// Waits until it listens.
    fn of(mut child: Child) -> Self {
        let address = loop {
            let line = child.line();
            let Ok(entry) = serde_json::from_str::<Value>(&line) else { panic!("{line}") };
            if entry["fields"]["message"] == "listening" {
                break entry["fields"]["address"]
                    .as_str()
                    .expect("an address")
                    .parse()
                    .expect("an address");
            }
        };
        Self { child, address }
    }

    /// Waits until it reports that it is ready.
    pub fn wait_until_ready(&self) {
        until_holds("the extender is ready", || {
            self.connection().request("GET", "/readyz", "").status == 200
        });
    }

    /// Returns the address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to it.
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection::to(self.address)
    }

    /// Returns its process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Sends a filter request for this pod.
    #[must_use]
    pub fn filter(&self, pod: &Value, nodes: &[&str]) -> Value {
        filter(&mut self.connection(), pod, nodes)
    }

    /// Binds this pod to a node.
    #[must_use]
    pub fn bind(&self, pod: &Value, node: &str) -> Reply {
        bind(&mut self.connection(), pod, node)
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(TERMINATE);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        self.child.signal(signal);
    }

    /// Sends SIGTERM and waits for its end.
    pub fn end(self) -> Outcome {
        self.terminate();
        self.child.end()
    }

    /// Kills it.
    pub fn kill(self) {
        self.child.kill();
    }
}

/// Sends a filter request for this pod.
pub fn filter(connection: &mut Connection, pod: &Value, nodes: &[&str]) -> Value {
    let body = json!({"Pod": pod, "Nodes": null, "NodeNames": nodes}).to_string();
    let reply = connection.request("POST", "/gpushare-scheduler/filter", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Binds this pod to a node.
pub fn bind(connection: &mut Connection, pod: &Value, node: &str) -> Reply {
    let metadata = &pod["metadata"];
    let body = json!({
        "PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": node,
    });
    connection.request("POST", "/gpushare-scheduler/bind", &body.to_string())
}
