//! What can be set: by a flag, or by the variable beside it.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use cgpu_kubernetes_client::Access;
use cgpu_kubernetes_core::gpus::Placement;
use clap::{ArgAction, Parser, ValueEnum};

/// Answers kube-scheduler's questions about GPUs: filter, prioritize, bind, inspect, with gpushare's paths and bodies
#[derive(Parser, Clone, Debug)]
#[command(name = "cgpu-scheduler-extender", version, args_override_self = true)]
pub(crate) struct Options {
    /// The address to listen at
    #[arg(long, env = "CGPU_ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub address: IpAddr,
    /// The port to listen at; 0: any, which the log tells
    #[arg(long, env = "PORT", default_value_t = 39999)]
    pub port: u16,
    /// The certificate to show, in PEM, with those that lead to its authority; without it there is no TLS. Read again when it changes
    #[arg(long, env = "CGPU_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, env = "CGPU_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities, in PEM: who shows no certificate of theirs is not spoken to
    #[arg(long, env = "CGPU_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Which nodes come first: those that would be fullest, or emptiest
    #[arg(long, env = "CGPU_NODE_PLACEMENT", value_enum, default_value_t = NodePlacement::Binpack)]
    pub node_placement: NodePlacement,
    /// Listen to HAMi's names as well (nvidia.com/gpu, gpumem, gpumem-percentage, gpucores)
    #[arg(long, env = "CGPU_HAMI", action = ArgAction::SetTrue)]
    pub hami: bool,
    /// How often everything is listed anew, in seconds
    #[arg(long, env = "CGPU_RESYNC", value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub resync: u64,
    /// How often claims that came to nothing are looked for, in seconds
    #[arg(long, env = "CGPU_SWEEP", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub sweep: u64,
    /// Whether only one of several replicas does what one need do
    #[arg(long, env = "CGPU_LEADER_ELECT", action = ArgAction::Set, default_value_t = true)]
    pub leader_elect: bool,
    /// The lease that it is decided by
    #[arg(
        long,
        env = "CGPU_LEASE_NAME",
        value_name = "NAME",
        default_value = "cgpu-scheduler-extender"
    )]
    pub lease_name: String,
    /// The namespace of that lease [default: the one of this pod, or of the kubeconfig's context]
    #[arg(long, env = "CGPU_LEASE_NAMESPACE", value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// So long after its last word a leader counts as gone, in seconds
    #[arg(long, env = "CGPU_LEASE_DURATION", value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub lease_duration: u64,
    /// The name to take part under [default: the host's, and a number]
    #[arg(long, env = "CGPU_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// Threads that answer [default: one for each core]
    #[arg(long, env = "THREADNESS", value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// What is logged: error, warn, info, debug, trace, or a filter such as info,kube=debug
    #[arg(long, env = "LOG_LEVEL", value_name = "FILTER", default_value = "info")]
    pub log_level: String,
    /// How
    #[arg(long, env = "CGPU_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    #[command(flatten)]
    pub access: Access,
}

/// Which nodes come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodePlacement {
    /// Those that would be fullest.
    Binpack,
    /// Those that would be emptiest.
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

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object in a line.
    Json,
}

impl Options {
    /// How long a lease lasts, and how often it is renewed.
    pub(crate) fn term(&self) -> cgpu_kubernetes_client::Term {
        let lasts = Duration::from_secs(self.lease_duration);
        cgpu_kubernetes_client::Term { lasts, every: lasts / 5 }
    }

    /// Who we are among the replicas.
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
