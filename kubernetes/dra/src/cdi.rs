//! CDI devices of claims: one for each share, in one specification for each claim.

use std::path::PathBuf;

use cgpu_kubernetes_core::cdi::{Device, Hook, specification};
use cgpu_kubernetes_core::refusal::Refusal;

use crate::allocation::{NodeClaim, Share};

/// CDI kind of shares.
pub const KIND: &str = "cgpu.dev/share";

/// Hooks of a share: when they run, and their first argument after `hook share`.
const HOOKS: [(&str, &str); 4] = [
    ("createRuntime", "plan"),
    ("createContainer", "mount"),
    ("poststart", "verify"),
    ("poststop", "clear"),
];

/// How the node's engine gives devices to containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cdi {
    /// Path of `cgpu-runtime` on the host.
    pub runtime: PathBuf,
    /// Its configuration, if it is not the usual file.
    pub config: Option<PathBuf>,
    /// The vendor's kind, whose devices are named by UUID: `nvidia.com/gpu`. Without one,
    /// `cgpu-runtime` names the GPUs to the vendor's runtime.
    pub vendor_kind: Option<String>,
}

impl Cdi {
    /// Returns the CDI ids of a share, for the kubelet.
    ///
    /// # Errors
    /// It is for administration, and there is no vendor's device.
    pub fn ids(&self, share: &Share) -> Result<Vec<String>, Refusal> {
        let vendors = self.vendor_kind.as_ref().map(|kind| format!("{kind}={}", share.gpu));
        if share.is_admin() && vendors.is_none() {
            return Err(Refusal::new(format!(
                "adminAccess to {} needs the vendor's CDI devices: set --vendor-cdi-kind",
                share.device
            )));
        }
        let own = (!share.is_admin()).then(|| format!("{KIND}={}", share.name));
        Ok(vendors.into_iter().chain(own).collect())
    }

    /// Returns the specification of a claim, or `None` if it needs none.
    #[must_use]
    pub fn specification(&self, claim: &NodeClaim) -> Option<String> {
        let device = |share: &Share| Device {
            name: share.name.clone(),
            variables: Vec::new(),
            hooks: HOOKS.map(|(stage, what)| self.hook(stage, what, &share.name)).into(),
        };
        let limited = claim.shares.iter().filter(|share| !share.is_admin());
        let devices: Vec<Device> = limited.map(device).collect();
        (!devices.is_empty()).then(|| specification(KIND, &devices, &self.runtime))
    }

    fn hook(&self, stage: &'static str, what: &str, share: &str) -> Hook {
        let mut arguments: Vec<String> = ["share", what, share].map(str::to_owned).into();
        if let Some(config) = &self.config {
            arguments.extend(["--config".to_owned(), config.display().to_string()]);
        }
        Hook { stage, arguments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{claim, pool, result};
    use serde_json::{Value, json};

    fn of(results: &[Value]) -> NodeClaim {
        NodeClaim::of(&claim(&json!(results), &Value::Null), &pool()).unwrap()
    }

    fn cdi(vendor: Option<&str>) -> Cdi {
        Cdi {
            runtime: "/usr/bin/cgpu-runtime".into(),
            config: None,
            vendor_kind: vendor.map(str::to_owned),
        }
    }

    #[test]
    fn each_share_is_a_device_of_its_own() {
        let claim = of(&[result("gpu-0", "1Gi", 1), result("gpu-2-mig-0", "1Gi", 1)]);
        let text = cdi(None).specification(&claim).unwrap();
        let specification: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(specification["kind"], "cgpu.dev/share");
        assert_eq!(specification["devices"][1]["name"], "u1-1");
        assert_eq!(
            specification["devices"][0]["containerEdits"]["hooks"][0],
            json!({"hookName": "createRuntime", "path": "/usr/bin/cgpu-runtime",
                "args": ["cgpu-runtime", "hook", "share", "plan", "u1-0"]})
        );
        let configured = Cdi { config: Some("/etc/x.toml".into()), ..cdi(None) };
        let text = configured.specification(&claim).unwrap();
        assert!(text.contains("\"u1-0\",") && text.contains("\"/etc/x.toml\""), "{text}");
        let hooks = specification["devices"][1]["containerEdits"]["hooks"].as_array().unwrap();
        assert!(hooks.len() == 4 && hooks.iter().all(|hook| hook["args"][4] == "u1-1"));
        assert_eq!(cdi(None).ids(&claim.shares[0]), Ok(vec!["cgpu.dev/share=u1-0".into()]));
        assert_eq!(
            cdi(Some("nvidia.com/gpu")).ids(&claim.shares[1]).unwrap(),
            ["nvidia.com/gpu=MIG-21212121-2121-2121-2121-212121212121", "cgpu.dev/share=u1-1"]
        );
    }

    #[test]
    fn administration_gets_the_vendors_device_alone() {
        let mut admin = result("gpu-0", "1Gi", 1);
        admin["adminAccess"] = true.into();
        let claim = of(&[admin]);
        assert_eq!(cdi(None).specification(&claim), None);
        assert_eq!(
            cdi(Some("nvidia.com/gpu")).ids(&claim.shares[0]).unwrap(),
            ["nvidia.com/gpu=GPU-00000000-0000-0000-0000-000000000000"]
        );
        assert!(cdi(None).ids(&claim.shares[0]).is_err());
    }
}
