//! Checks whether memory of the host can be a GPU's, where no limit counts it.

use std::path::Path;

use cgpu_diagnosis::Cause as _;
use cgpu_shm::host_memory::{Exposure, exposures};

use cgpu_host_diagnosis::causes::{Cause, Findings};

/// Checks the host whose file system has this root.
pub(super) fn check(root: &Path, findings: &mut Findings) {
    for exposure in exposures(root) {
        findings.add(cause(&exposure), "the host", exposure.evidence());
    }
}

/// Returns what the administrator may do about it: options of kernel modules, which cgpu never sets
/// by itself.
pub(crate) fn advice(root: &Path) -> Vec<String> {
    let advice = |exposure: &Exposure| {
        let entry = cause(exposure).entry();
        format!("{} {}", entry.message, entry.remedy)
    };
    exposures(root).iter().map(advice).collect()
}

fn cause(exposure: &Exposure) -> Cause {
    match exposure {
        Exposure::Hmm => Cause::Hmm,
        Exposure::Nodes { .. } => Cause::GpuNumaNode,
    }
}
