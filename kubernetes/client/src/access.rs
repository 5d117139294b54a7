//! How the API server is found and which credentials are used: the same as in kubectl.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::api::Api;
use crate::failure::{Failure, chain};

/// Flags that select the cluster. Without flags: the files of KUBECONFIG, else `~/.kube/config`,
/// else the service account of the pod.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Cluster")]
pub struct Access {
    /// Kubeconfig file [default: $KUBECONFIG, else ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
    /// Cluster of the kubeconfig
    #[arg(long, value_name = "NAME", global = true)]
    pub cluster: Option<String>,
    /// User of the kubeconfig
    #[arg(long, value_name = "NAME", global = true)]
    pub user: Option<String>,
    /// Address of the API server
    #[arg(long, short = 's', value_name = "URL", global = true)]
    pub server: Option<String>,
    /// Bearer token for the API server
    #[arg(long, value_name = "TOKEN", global = true)]
    pub token: Option<String>,
    /// User to impersonate
    #[arg(long = "as", value_name = "USER", global = true)]
    pub impersonate: Option<String>,
    /// Accept any certificate of the API server
    #[arg(long, global = true)]
    pub insecure_skip_tls_verify: bool,
    /// Timeout of a request: 30, 30s, 500ms, 2m; 0: none
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time, global = true)]
    pub request_timeout: Duration,
}

/// Parses a timeout as kubectl does: a number of seconds, or a number and its unit.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let per_second = match unit {
        "ms" => Some(1),
        "" | "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let millis = number.zip(per_second).and_then(|(number, millis)| number.checked_mul(millis));
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| "expected a time such as 30, 30s, 500ms or 2m".to_owned())
}

impl Access {
    /// Returns the API of the selected cluster. Nothing is sent yet.
    ///
    /// # Errors
    /// No cluster is configured, or a kubeconfig is invalid.
    pub async fn api(&self) -> Result<Api, Failure> {
        let config = self.config().await?;
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|error| Failure::Setup(chain(&error)))?;
        let endless = Duration::from_secs(100 * 365 * 86_400);
        let timeout = if self.request_timeout.is_zero() { endless } else { self.request_timeout };
        Ok(Api::new(client, namespace, timeout))
    }

    async fn config(&self) -> Result<Config, Failure> {
        let setup = |error: &dyn std::error::Error| Failure::Setup(chain(error));
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let named = self.context.is_some() || self.cluster.is_some() || self.user.is_some();
        let file = match &self.kubeconfig {
            Some(path) => Some(Kubeconfig::read_from(path).map_err(|error| setup(&error))?),
            // A missing kubeconfig is an error only if a flag or KUBECONFIG refers to it.
            None if named || is_set("KUBECONFIG") => {
                Some(Kubeconfig::read().map_err(|error| setup(&error))?)
            }
            None => Kubeconfig::read().ok(),
        };
        let mut config = match (file, &self.server) {
            (Some(file), server) => match Config::from_custom_kubeconfig(file, &options).await {
                Ok(config) => config,
                Err(_) if server.is_some() && !named => self.bare()?,
                Err(error) => return Err(setup(&error)),
            },
            (None, Some(_)) => self.bare()?,
            (None, None) => Config::incluster().map_err(|error| {
                Failure::Setup(format!(
                    "there is no kubeconfig (--kubeconfig, $KUBECONFIG, ~/.kube/config), and this \
                     is not a pod: {}",
                    chain(&error)
                ))
            })?,
        };
        if let Some(server) = &self.server {
            config.cluster_url = address(server)?;
        }
        if let Some(token) = &self.token {
            config.auth_info.token = Some(token.clone().into());
        }
        if let Some(name) = &self.impersonate {
            config.auth_info.impersonate = Some(name.clone());
        }
        config.accept_invalid_certs |= self.insecure_skip_tls_verify;
        Ok(config)
    }

    /// Returns a configuration that has only the address of `--server`.
    fn bare(&self) -> Result<Config, Failure> {
        Ok(Config::new(address(self.server.as_deref().unwrap_or_default())?))
    }
}

fn address(text: &str) -> Result<http::Uri, Failure> {
    let uri: http::Uri =
        text.parse().map_err(|error| Failure::Setup(format!("`{text}`: {error}")))?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(uri),
        _ => Err(Failure::Setup(format!(
            "`{text}` is not an address; expected one such as https://10.0.0.1:6443"
        ))),
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_parse_as_kubectl_parses_them() {
        for (text, millis) in [
            ("30", 30_000),
            ("5s", 5_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0", 0),
        ] {
            assert_eq!(time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1", "1.5s", "1d", "99999999999999999999", "18446744073709551615h"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
