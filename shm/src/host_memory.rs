//! Memory of the host that can be a GPU's, as the kernel and the driver's modules show it.
//!
//! A limit counts what programs allocate of a GPU. Two kinds of host memory can be on a GPU, too:
//!
//! * With HMM, pages of plain `malloc` migrate to the GPU whose kernel uses them. The open kernel
//!   modules support it, unless `uvm_disable_hmm` is set.
//! * On hosts with coherent GPUs (GH200, GB200), the driver may add a GPU's memory to the kernel's,
//!   as a NUMA node without processors. `NVreg_CoherentGPUMemoryMode=driver` prevents it.
//!
//! | fact | file |
//! |---|---|
//! | nodes with processors, with memory | `/sys/devices/system/node/has_cpu`, `has_memory` |
//! | nodes of devices, by the firmware | `/sys/devices/system/node/has_generic_initiator` |
//! | the node of a GPU, by the driver | `/proc/driver/nvidia/gpus/*/numa_status`; -1: none |
//! | HMM is switched off | `/sys/module/nvidia_uvm/parameters/uvm_disable_hmm` |
//! | the kind of the modules | `/proc/driver/nvidia/version` |
//! | the mode of coherent GPUs | `/proc/driver/nvidia/params` |
//!
//! A device's `numa_node` in sysfs is the node of the nearest processors, not of its memory.

use core::fmt;
use core::ops::RangeInclusive;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

const NODES: &str = "sys/devices/system/node";
const DRIVER: &str = "proc/driver/nvidia";

/// The largest number of a node in any configuration of the kernel.
const MAX_NODE: u32 = 1023;

/// A set of NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes(Vec<RangeInclusive<u32>>);

impl Nodes {
    /// No node.
    pub const NONE: Self = Self(Vec::new());

    /// Reads which nodes have processors. Their memory is the host's. `root` is the root of the
    /// file system.
    ///
    /// # Errors
    /// I/O errors: without sysfs the nodes are unknown. [`ErrorKind::InvalidData`] for a list that
    /// is not understood.
    pub fn with_processors(root: &Path) -> io::Result<Self> {
        Self::read(root, "has_cpu")
    }

    /// Returns whether it has this node.
    #[must_use]
    pub fn contains(&self, node: u32) -> bool {
        self.0.iter().any(|range| range.contains(&node))
    }

    fn read(root: &Path, name: &str) -> io::Result<Self> {
        let path = root.join(NODES).join(name);
        let text = fs::read_to_string(&path)?;
        Self::parse(text.trim()).ok_or_else(|| {
            let text = text.escape_debug();
            let message = format!("{}: expected a list of nodes, found `{text}`", path.display());
            io::Error::new(ErrorKind::InvalidData, message)
        })
    }

    /// Parses the kernel's format: `0-1,4`; empty for none.
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::NONE);
        }
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last <= MAX_NODE).then_some(first..=last)
        };
        text.split(',').map(range).collect::<Option<_>>().map(Self)
    }

    fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().cloned().flatten()
    }
}

/// A kind of host memory that can be a GPU's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// HMM is on.
    Hmm,
    /// GPUs' memory is in NUMA nodes of the host.
    Nodes {
        /// The nodes, ascending.
        nodes: Vec<u32>,
        /// `CoherentGPUMemoryMode`; none: the driver has no such parameter.
        mode: Option<String>,
    },
}

impl Exposure {
    /// Returns what was found in the files.
    #[must_use]
    pub fn evidence(&self) -> String {
        match self {
            Self::Hmm => "open kernel modules, and uvm_disable_hmm of nvidia_uvm is N".to_owned(),
            Self::Nodes { nodes, mode } => {
                let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                let mode = mode.as_ref().map_or_else(
                    || "the driver has no CoherentGPUMemoryMode".to_owned(),
                    |mode| format!("CoherentGPUMemoryMode is \"{mode}\""),
                );
                format!("NUMA nodes {}; {mode}", nodes.join(", "))
            }
        }
    }
}

/// What it means.
impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self {
            Self::Hmm => "HMM is on: memory of plain malloc can move to a GPU",
            Self::Nodes { .. } => "memory of GPUs is memory of the host: programs can allocate it",
        };
        write!(f, "{meaning}, where no limit counts it ({}); see cgpu doctor", self.evidence())
    }
}

/// Finds host memory that can be a GPU's. `root` is the root of the file system. What the kernel or
/// the driver does not show is not there: a module that is not loaded, a driver that is too old.
#[must_use]
pub fn exposures(root: &Path) -> Vec<Exposure> {
    let nodes = gpu_nodes(root);
    let coherent = (!nodes.is_empty()).then(|| Exposure::Nodes { nodes, mode: mode(root) });
    has_hmm(root).then_some(Exposure::Hmm).into_iter().chain(coherent).collect()
}

fn has_hmm(root: &Path) -> bool {
    let parameter = root.join("sys/module/nvidia_uvm/parameters/uvm_disable_hmm");
    let is_on = fs::read_to_string(parameter).is_ok_and(|text| matches!(text.trim(), "N" | "0"));
    // If the driver does not tell, the modules may be open.
    let version = fs::read_to_string(root.join(DRIVER).join("version"));
    is_on && version.map_or(true, |text| text.contains("Open Kernel Module"))
}

/// Returns the nodes of GPUs' memory. A GPU with MIG instances has one for each of them, of which
/// the driver names the first; the firmware has declared all of them.
fn gpu_nodes(root: &Path) -> Vec<u32> {
    let folder = root.join(DRIVER).join("gpus");
    // The driver is not loaded, or the kernel has no NUMA.
    let Ok(gpus) = fs::read_dir(folder) else { return Vec::new() };
    let (Ok(processors), Ok(memory)) =
        (Nodes::with_processors(root), Nodes::read(root, "has_memory"))
    else {
        return Vec::new();
    };
    let of_gpus: Vec<u32> = gpus
        .flatten()
        .filter_map(|gpu| fs::read_to_string(gpu.path().join("numa_status")).ok())
        .filter_map(|text| value(&text, "Node")?.parse().ok())
        .collect();
    let of_devices = Nodes::read(root, "has_generic_initiator").unwrap_or_default();
    memory
        .all()
        .filter(|node| !processors.contains(*node))
        .filter(|node| of_gpus.contains(node) || of_devices.contains(*node))
        .collect()
}

fn mode(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join(DRIVER).join("params")).ok()?;
    Some(value(&text, "CoherentGPUMemoryMode")?.trim_matches('"').to_owned())
}

/// Returns the value in a line `name: value`.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06\n";
    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n";

    fn host(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn found(files: &[(&str, &str)]) -> Vec<Exposure> {
        exposures(host(files).path())
    }

    #[test]
    fn list_of_nodes_has_ranges_and_single_nodes() {
        let nodes = Nodes::parse("0-1,4").unwrap();
        assert_eq!(nodes.all().collect::<Vec<_>>(), [0, 1, 4]);
        assert!(nodes.contains(1) && !nodes.contains(2) && !nodes.contains(5));
        assert_eq!(Nodes::parse(""), Some(Nodes::NONE));
        for text in ["0-", "-1", "2-1", "0,,1", "a", "0-4294967295", "1024"] {
            assert_eq!(Nodes::parse(text), None, "{text}");
        }
    }

    #[test]
    fn nodes_that_cannot_be_read_are_an_error() {
        let error = Nodes::with_processors(host(&[]).path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let root = host(&[("sys/devices/system/node/has_cpu", "all\n")]);
        let error = Nodes::with_processors(root.path()).unwrap_err().to_string();
        assert!(error.contains("has_cpu: expected a list of nodes, found `all\\n`"), "{error}");
    }

    #[test]
    fn hmm_is_on_with_open_modules_unless_it_is_disabled() {
        let parameter = "sys/module/nvidia_uvm/parameters/uvm_disable_hmm";
        let version = "proc/driver/nvidia/version";
        assert_eq!(found(&[(parameter, "N\n"), (version, OPEN)]), [Exposure::Hmm]);
        assert_eq!(found(&[(parameter, "N\n")]), [Exposure::Hmm]);
        assert_eq!(found(&[(parameter, "Y\n"), (version, OPEN)]), []);
        assert_eq!(found(&[(parameter, "N\n"), (version, CLOSED)]), []);
        assert_eq!(found(&[(version, OPEN)]), []);
    }

    /// A host with two processors and two GPUs: nodes 0 and 1 are the processors', 2 and 10 the
    /// GPUs', 3 an instance's, 4 another instance's without memory, 20 of CXL memory.
    const COHERENT: &[(&str, &str)] = &[
        ("sys/devices/system/node/has_cpu", "0-1\n"),
        ("sys/devices/system/node/has_memory", "0-3,10,20\n"),
        ("sys/devices/system/node/has_generic_initiator", "2-4\n"),
        ("proc/driver/nvidia/gpus/0008:01:00.0/numa_status", "Node:      2\nStatus:    online\n"),
        ("proc/driver/nvidia/gpus/0018:01:00.0/numa_status", "Node:      10\nStatus:    online\n"),
        ("proc/driver/nvidia/params", "DeviceFileMode: 438\nCoherentGPUMemoryMode: \"\"\n"),
    ];

    #[test]
    fn nodes_of_gpus_are_those_with_memory_and_without_processors() {
        let nodes = vec![2, 3, 10];
        let mode = Some(String::new());
        assert_eq!(found(COHERENT), [Exposure::Nodes { nodes, mode }]);
        // By the driver alone: older firmware declares no initiators, older drivers have no mode.
        let nodes = vec![2, 10];
        let exposure = Exposure::Nodes { nodes, mode: None };
        let files = [&COHERENT[..2], &COHERENT[3..5]].concat();
        let message = exposure.to_string();
        assert!(message.contains("NUMA nodes 2, 10; the driver has no Coherent"), "{message}");
        assert_eq!(found(&files), [exposure]);
    }

    #[test]
    fn memory_that_the_driver_manages_is_in_no_node() {
        let status = "proc/driver/nvidia/gpus/0008:01:00.0/numa_status";
        for text in ["Node:      -1\nStatus:    disabled\n", "", "Node:      0\n"] {
            let files = [("sys/devices/system/node/has_memory", "0-1,20\n"), (status, text)];
            assert_eq!(found(&[&COHERENT[..1], &files].concat()), [], "{text}");
        }
        // Without the driver, a node without processors is other memory.
        assert_eq!(found(&COHERENT[..3]), []);
    }
}
