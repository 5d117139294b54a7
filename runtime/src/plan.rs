//! Decides what a container gets: a slice, nothing, or a refusal.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStringExt;

use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::HostDevice;
use cgpu_settings::{Decision, Variables};
use cgpu_settings::{Environment, GpuInfo, Inventory};
use cgpu_shm::limits::Limits;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use cgpu_text::is_printable;

/// The decision for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It requests no limit and is started unchanged.
    Native,
    /// It gets these limits, for at least one GPU.
    Slice(Limits),
}

/// Why a container is not started, as a message of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.replace(['\n', '\r'], " "))
    }
}

impl std::error::Error for Refusal {}

impl From<cgpu_settings::Refusal> for Refusal {
    fn from(refusal: cgpu_settings::Refusal) -> Self {
        Self(refusal.message().to_owned())
    }
}

/// Prefixes of cgpu's variables. NVIDIA_VISIBLE_DEVICES is none of them: Docker appends it to an
/// image's own, and the last one counts, as for the vendor's runtime.
const OURS: &[&str] = &["ALIYUN_COM_GPU_", "CGPU_"];

/// The variables of a container's first process, `NAME=VALUE` each.
#[derive(Clone, Debug, Default)]
pub struct Declared<'a>(&'a [String]);

impl<'a> Declared<'a> {
    /// Checks and takes the variables.
    ///
    /// # Errors
    /// One of cgpu's variables is set twice to different values, and readers differ in which one
    /// counts.
    pub fn new(variables: &'a [String]) -> Result<Self, Refusal> {
        let pairs: Vec<(&str, &str)> =
            variables.iter().filter_map(|variable| variable.split_once('=')).collect();
        for (at, (name, value)) in pairs.iter().enumerate() {
            if !OURS.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            if let Some((_, other)) =
                pairs.iter().skip(at + 1).find(|other| other.0 == *name && other.1 != *value)
            {
                return Err(Refusal(format!(
                    "{name} is set twice, to `{}` and `{}`, expected one value; leave one out",
                    value.escape_default(),
                    other.escape_default()
                )));
            }
        }
        Ok(Self(variables))
    }

    /// Returns the value of a variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0
            .iter()
            .filter_map(|variable| variable.split_once('='))
            .rfind(|(other, _)| *other == name)
            .map(|pair| pair.1)
    }

    /// Returns whether they request memory; without it there is no slice.
    #[must_use]
    pub fn request_memory(&self) -> bool {
        Variables::read(self).request_memory()
    }
}

impl Environment for Declared<'_> {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        let value = self.get(name.to_str().ok()?)?;
        Some(OsString::from_vec(value.as_bytes().to_vec()))
    }

    // Settings do not depend on these.
    fn user(&self) -> u32 {
        0
    }

    fn pid_namespace(&self) -> u64 {
        0
    }

    fn process_name(&self) -> Vec<u8> {
        Vec::new()
    }

    fn host_name(&self) -> String {
        String::new()
    }
}

/// A GPU of the host, or an instance of one (MIG).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostGpu {
    /// The GPU as the settings use it.
    pub gpu: GpuInfo,
    /// Its name in the control tree.
    pub id: DeviceId,
    /// Whether it is partitioned into MIG instances that the driver does not list, or into none.
    pub is_partitioned: bool,
}

impl HostGpu {
    /// Returns a device that is not partitioned.
    #[must_use]
    pub fn new(uuid: Uuid, total: Bytes, id: DeviceId) -> Self {
        // NVML's indexes are in PCI order; the low bits count instances from 1.
        let at = id.instance().map_or(0, |instance| u64::from(instance) + 1);
        let order = (u64::from(id.gpu()) + 1) * (GpuInfo::INSTANCE + 1) + at;
        Self { gpu: GpuInfo { uuid, total, order }, id, is_partitioned: false }
    }
}

impl From<HostDevice> for HostGpu {
    fn from(found: HostDevice) -> Self {
        Self {
            is_partitioned: found.is_partitioned,
            ..Self::new(found.uuid, found.total, found.id)
        }
    }
}

/// Decides. `gpus` returns all GPUs of the host, and is called only for a limit.
///
/// The code that reads the variables inside the container reads them here. The GPUs that they name
/// are resolved to UUIDs, which are the same inside.
///
/// # Errors
/// [`Refusal`]: a value is invalid or does not fit the GPUs, or there are no GPUs.
pub fn plan(
    declared: &Declared<'_>,
    name: &str,
    gpus: impl FnOnce() -> Result<Vec<HostGpu>, Refusal>,
) -> Result<Plan, Refusal> {
    let variables = Variables::read(declared);
    // This decision needs no GPUs, so containers without a limit skip the search.
    let nothing = Inventory { gpus: &[], partitioned: &[], complete: false };
    if let Ok(Decision::Off(cgpu_settings::Reason::NoLimit | cgpu_settings::Reason::Disabled)) =
        variables.decide(nothing)
    {
        return Ok(Plan::Native);
    }
    let gpus = gpus()?;
    if gpus.is_empty() {
        return Err(Refusal(
            "ALIYUN_COM_GPU_MEM_CONTAINER requests a limit, but this host has no GPU; start the \
             container on a host with a GPU, or leave the variable out"
                .into(),
        ));
    }
    check_indexes(declared, gpus.iter().map(|gpu| gpu.id.gpu()).collect())?;
    let known: Vec<GpuInfo> = gpus.iter().map(|gpu| gpu.gpu).collect();
    let settings =
        match variables.decide(Inventory { gpus: &known, partitioned: &[], complete: true })? {
            Decision::Off(_) => return Ok(Plan::Native),
            Decision::On(settings) => settings,
        };
    if let Some(partitioned) = settings.gpus.iter().find(|limit| is_partitioned(&gpus, limit.uuid))
    {
        return Err(Refusal(format!(
            "the GPU {} is partitioned into MIG instances that the driver does not list; install \
             the driver R470 or newer, or name other GPUs in NVIDIA_VISIBLE_DEVICES",
            partitioned.uuid
        )));
    }
    let limits = Limits {
        name: name_of(name),
        weight: settings.weight,
        percent: settings.core_percentage,
        high_priority: settings.high_priority,
        gpus: settings.gpus.iter().map(|gpu| (gpu.uuid, gpu.limit)).collect(),
    };
    debug_assert!(limits.gpus.iter().all(|(_, limit)| *limit > Bytes::ZERO));
    Ok(Plan::Slice(limits))
}

fn is_partitioned(gpus: &[HostGpu], uuid: Uuid) -> bool {
    gpus.iter().any(|gpu| gpu.gpu.uuid == uuid && gpu.is_partitioned)
}

/// Checks indexes. Inside a container GPUs are numbered anew, so any index may be valid there; here
/// they are the host's.
fn check_indexes(declared: &Declared<'_>, gpus: BTreeSet<u32>) -> Result<(), Refusal> {
    let Some(list) = declared.get("NVIDIA_VISIBLE_DEVICES") else { return Ok(()) };
    for index in
        list.split(',').filter_map(|name| name.trim_matches([' ', '\t']).parse::<u64>().ok())
    {
        if !u32::try_from(index).is_ok_and(|index| gpus.contains(&index)) {
            return Err(Refusal(format!(
                "NVIDIA_VISIBLE_DEVICES is `{}`, but there is no GPU {index}: this host has {}; \
                 name only existing GPUs",
                list.escape_default(),
                gpus.len()
            )));
        }
    }
    Ok(())
}

/// Returns a name for the limits file, which is only displayed: invalid characters are replaced,
/// and a long name is cut.
pub(crate) fn name_of(name: &str) -> Option<String> {
    let fit = |c: char| if c.is_whitespace() || !is_printable(c) || c == '#' { '_' } else { c };
    let mut fitting = String::new();
    for character in name.chars().map(fit) {
        if fitting.len() + character.len_utf8() > cgpu_shm::limits::MAX_NAME_LENGTH {
            break;
        }
        fitting.push(character);
    }
    (!fitting.is_empty()).then_some(fitting)
}

#[cfg(test)]
mod tests;
