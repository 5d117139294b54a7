//! Command line. Each flag has an environment variable.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use cgpu_kubernetes_client::Access;
use cgpu_kubernetes_core::gpus::Placement;
use clap::{ArgAction, Parser, ValueEnum};

/// Serve kube-scheduler's requests about GPUs: filter, prioritize, bind and inspect, with
/// gpushare's paths and bodies
#[derive(Parser, Clone, Debug)]
#[command(name = "cgpu-scheduler-extender", version, args_override_self = true)]
pub(crate) struct Options {
    /// Address to listen at
    #[arg(long, env = "CGPU_ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub address: IpAddr,
    /// Port to listen at; 0: any free port, which is logged
    #[arg(long, env = "PORT", default_value_t = 39999)]
    pub port: u16,
    /// Certificate chain in PEM; without it there is no TLS. It is read again when it changes
    #[arg(long, env = "CGPU_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key in PEM
    #[arg(long, env = "CGPU_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Certificate authorities in PEM: clients must show a certificate of one of them, except for
    /// /healthz, /readyz and /metrics
    #[arg(long, env = "CGPU_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Accept whole nodes, from schedulers without `nodeCacheCapable: true`. Bodies may then have
    /// 128 MiB instead of 4: give the extender 2 GiB of memory, and let no other client reach it
    #[arg(long, env = "CGPU_WHOLE_NODES", action = ArgAction::SetTrue)]
    pub whole_nodes: bool,
    /// Nodes that are preferred: those that would be the fullest, or the emptiest
    #[arg(long, env = "CGPU_NODE_PLACEMENT", value_enum, default_value_t = NodePlacement::Binpack)]
    pub node_placement: NodePlacement,
    /// Read HAMi's names as well (nvidia.com/gpu, gpumem, gpumem-percentage, gpucores, priority,
    /// and annotations)
    #[arg(long, env = "CGPU_HAMI", action = ArgAction::SetTrue)]
    pub hami: bool,
    /// Interval of lists of all nodes and pods, in seconds
    #[arg(
        long,
        env = "CGPU_RESYNC",
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub resync: u64,
    /// Interval of checks for stale claims, in seconds
    #[arg(
        long,
        env = "CGPU_SWEEP",
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub sweep: u64,
    /// Time for the watch to report a claim, in seconds; after that, pods are listed to confirm it
    #[arg(
        long,
        env = "CGPU_WATCH_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=60)
    )]
    pub watch_timeout: u64,
    /// Time for which containers of deleted pods count on a node that is not ready, in seconds
    #[arg(long, env = "CGPU_LOST_AFTER", value_name = "SECONDS", default_value_t = 300)]
    pub lost_after: u64,
    /// Elect the replica that answers kube-scheduler; the others pass requests on to it. Without
    /// it, this one answers all that it gets
    #[arg(long, env = "CGPU_LEADER_ELECT", action = ArgAction::Set, default_value_t = true)]
    pub leader_elect: bool,
    /// Name of the lease for the election
    #[arg(
        long,
        env = "CGPU_LEASE_NAME",
        value_name = "NAME",
        default_value = "cgpu-scheduler-extender"
    )]
    pub lease_name: String,
    /// Namespace of the lease [default: that of this pod, or of the kubeconfig's context]
    #[arg(long, env = "CGPU_LEASE_NAMESPACE", value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Time after its last renewal until the lease expires, in seconds
    #[arg(
        long,
        env = "CGPU_LEASE_DURATION",
        value_name = "SECONDS",
        default_value_t = 15,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub lease_duration: u64,
    /// Name of this replica in the election [default: host name and a random number]
    #[arg(long, env = "CGPU_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// Address at which other replicas reach this one [default: that at which it listens]
    #[arg(long, env = "CGPU_ADVERTISE_ADDRESS", value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// The scheduler's `httpTimeout`, in seconds: what another replica is to answer is answered
    /// within it
    #[arg(
        long,
        env = "CGPU_CALL_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=60)
    )]
    pub call_timeout: u64,
    /// Number of worker threads [default: one for each core]
    #[arg(
        long,
        env = "THREADNESS",
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub threads: Option<u16>,
    /// Log level: error, warn, info, debug, trace, or a filter such as info,kube=debug
    #[arg(long, env = "LOG_LEVEL", value_name = "FILTER", default_value = "info")]
    pub log_level: String,
    /// Log format
    #[arg(long, env = "CGPU_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    #[command(flatten)]
    pub access: Access,
}

/// Nodes that are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodePlacement {
    /// Those that would be the fullest.
    Binpack,
    /// Those that would be the emptiest.
    Spread,
}

impl From<NodePlacement> for Placement {
    fn from(placement: NodePlacement) -> Self {
        match placement {
            NodePlacement::Binpack => Self::Binpack,
            NodePlacement::Spread => Self::Spread,
        }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people.
    Text,
    /// A JSON object in each line.
    Json,
}

impl Options {
    /// Returns the duration of the lease and the interval of renewals.
    pub(crate) fn lease_timing(&self) -> cgpu_kubernetes_client::LeaseTiming {
        let duration = Duration::from_secs(self.lease_duration);
        cgpu_kubernetes_client::LeaseTiming { duration, renew_interval: duration / 5 }
    }

    /// Returns the address of this replica for others, if it listens at `own`; empty if it is not
    /// known.
    pub(crate) fn advertised(&self, own: SocketAddr) -> String {
        let listens = Some(own.ip()).filter(|address| !address.is_unspecified());
        let address = self.advertise_address.or(listens);
        address.map_or_else(String::new, |ip| SocketAddr::new(ip, own.port()).to_string())
    }

    /// Returns the name of this replica in the election.
    pub(crate) fn identity(&self) -> String {
        if let Some(name) = &self.identity {
            return name.clone();
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}_{:016x}", host.trim(), fastrand::u64(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Options::command().debug_assert();
        let options = Options::try_parse_from(["x"]).unwrap();
        assert_eq!((options.port, options.leader_elect, options.hami), (39999, true, false));
        assert!(Options::try_parse_from(["x", "--tls-cert", "a"]).is_err());
        assert!(Options::try_parse_from(["x", "--resync", "0"]).is_err());
    }

    #[test]
    fn replica_advertises_an_address_that_others_reach() {
        let advertised = |flags: &[&str], own: &str| {
            let options = Options::try_parse_from([&["x"], flags].concat()).unwrap();
            options.advertised(own.parse().unwrap())
        };
        assert_eq!(advertised(&[], "0.0.0.0:39999"), "");
        assert_eq!(advertised(&[], "127.0.0.1:7"), "127.0.0.1:7");
        let flags = ["--advertise-address", "fd00::1"];
        assert_eq!(advertised(&flags, "0.0.0.0:39999"), "[fd00::1]:39999");
    }

    #[test]
    fn every_own_flag_has_a_variable() {
        let access = [
            "kubeconfig",
            "context",
            "cluster",
            "user",
            "server",
            "token",
            "as",
            "insecure-skip-tls-verify",
            "request-timeout",
        ];
        for argument in Options::command().get_arguments() {
            let name = argument.get_long().unwrap_or_default();
            assert!(argument.get_env().is_some() || access.contains(&name), "{name}");
        }
    }
}
