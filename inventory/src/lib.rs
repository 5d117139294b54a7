//! Reads the GPUs of a host from NVML, for programs that start containers or give GPUs to them.
//!
//! All programs use this code. The monitor reads every second and reports the result
//! ([`cgpu_client::inventory`]), so starting a container does not open the driver, which takes tens
//! of milliseconds and more while no program has a GPU open. [`health`] reads whether GPUs answer,
//! and which errors (XID) they report; [`board`] reads temperature, power and clocks.
//! [`memory_limits`] sets the memory limits of control groups.
#![deny(unsafe_code)]

pub mod board;
pub mod health;
pub mod memory_limits;

use std::path::{Path, PathBuf};

use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::{HostDevice, ListedDevice};
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;
/// Variables that show that the driver is simulated. The first names the directory of its state.
const SIMULATED: [&str; 2] = ["CGPU_SIM_STATE", "CGPU_SIM_GPUS"];

/// Why the GPUs are not known.
#[derive(Debug)]
pub enum Unknown {
    /// The library of this name cannot be loaded or initialized.
    Library(PathBuf, NvmlError),
    /// NVML does not report the number of GPUs.
    Count(NvmlError),
    /// NVML does not report this GPU. A limit cannot be applied to an unknown GPU, so none is
    /// returned.
    Gpu(u32, NvmlError),
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // The loader's message has the file's name.
            Self::Library(_, NvmlError::LibloadingError(error)) => error.fmt(f),
            Self::Library(name, error) => write!(f, "{}: {error}", name.display()),
            Self::Count(error) => write!(f, "NVML does not report the number of GPUs: {error}"),
            Self::Gpu(index, error) => write!(f, "NVML does not answer for GPU {index}: {error}"),
        }
    }
}

impl std::error::Error for Unknown {}

/// Loads the library of this name.
///
/// # Errors
/// [`Unknown::Library`].
pub fn open(library: &Path) -> Result<Nvml, Unknown> {
    let opened = Nvml::builder().lib_path(library.as_os_str()).init();
    opened.map_err(|error| Unknown::Library(library.to_owned(), error))
}

/// Returns what `cgpu-monitor --list-gpus` prints: all GPUs that NVML reports, as a JSON list.
/// Programs that cannot load NVML themselves run that command.
///
/// # Errors
/// As [`read_devices`], and when the library cannot be loaded.
pub fn list(library: &Path) -> anyhow::Result<String> {
    let gpus = read_devices(&open(library)?)?;
    Ok(serde_json::to_string(&gpus.iter().map(ListedDevice::from).collect::<Vec<_>>())?)
}

/// Reads all GPUs.
///
/// # Errors
/// [`Unknown`], if any of them cannot be read.
pub fn read_devices(nvml: &Nvml) -> Result<Vec<HostDevice>, Unknown> {
    let mut gpus = Vec::new();
    for index in 0..nvml.device_count().map_err(Unknown::Count)? {
        gpus.extend(gpu(nvml, index).map_err(|error| Unknown::Gpu(index, error))?);
    }
    Ok(gpus)
}

/// Reads all GPUs; of a GPU that does not answer, takes the devices of an earlier list. Returns
/// `None` unless the others are those of that list.
#[must_use]
pub fn complete_devices(nvml: &Nvml, earlier: &[HostDevice]) -> Option<Vec<HostDevice>> {
    let found = (0..nvml.device_count().ok()?).map(|index| gpu(nvml, index).ok());
    complete(found, earlier)
}

/// Completes what each GPU has answered, by index.
fn complete(
    found: impl Iterator<Item = Option<Vec<HostDevice>>>,
    earlier: &[HostDevice],
) -> Option<Vec<HostDevice>> {
    let same = |one: &HostDevice, other: &HostDevice| (one.id, one.uuid) == (other.id, other.uuid);
    let mut all: Vec<HostDevice> = Vec::new();
    for (index, devices) in (0_u32..).zip(found) {
        let of_index = earlier.iter().filter(|device| device.id.gpu() == index).copied();
        all.extend(devices.unwrap_or_else(|| of_index.collect()));
        // A GPU that is in neither list is unknown.
        all.last().filter(|device| device.id.gpu() == index)?;
    }
    let is_known = all.len() == earlier.len()
        && all.iter().all(|device| earlier.iter().any(|other| same(device, other)));
    is_known.then_some(all)
}

/// Reads a GPU, or its instances if MIG is enabled. Drivers before R470 name instances after their
/// GPU, so they cannot be distinguished.
fn gpu(nvml: &Nvml, index: u32) -> Result<Vec<HostDevice>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let whole = read_device(&device, DeviceId::of_gpu(index))?;
    if !device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED) {
        return Ok(vec![whole]);
    }
    let mut instances = Vec::new();
    for number in 0..device.mig_device_count()? {
        match device.mig_device_by_index(number) {
            Ok(instance) => {
                instances.push(read_device(&instance, DeviceId::of_instance(index, number))?)
            }
            // A destroyed instance leaves its number unused.
            Err(NvmlError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    let known = |instance: &HostDevice| instance.uuid != whole.uuid;
    if instances.is_empty() || !instances.iter().all(known) {
        return Ok(vec![HostDevice { is_partitioned: true, ..whole }]);
    }
    Ok(instances)
}

fn read_device(device: &Device<'_>, id: DeviceId) -> Result<HostDevice, NvmlError> {
    let uuid: Uuid = device.uuid()?.parse().map_err(|_| NvmlError::Unknown)?;
    Ok(HostDevice { uuid, id, total: Bytes(device.memory_info()?.total), is_partitioned: false })
}

/// Returns the directory of the simulated GPUs' state if this process's environment has simulated
/// GPUs; empty if it is not known.
#[must_use]
pub fn simulated() -> Option<PathBuf> {
    let [state, list] = SIMULATED.map(std::env::var_os);
    let directory = state.as_deref().and_then(|state| Path::new(state).canonicalize().ok());
    (state.is_some() || list.is_some()).then(|| directory.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(id: &str, byte: u8) -> HostDevice {
        let (uuid, total) = (Uuid([byte; 16]), Bytes(1 << 30));
        HostDevice { uuid, id: id.parse().unwrap(), total, is_partitioned: false }
    }

    #[test]
    fn gpu_that_does_not_answer_is_that_of_the_earlier_list() {
        let (first, second) = (vec![device("0", 1)], vec![device("1.0", 2), device("1.2", 3)]);
        let earlier = [first.clone(), second.clone()].concat();
        let of = |found: &[Option<&Vec<HostDevice>>]| {
            complete(found.iter().map(|devices| devices.cloned()), &earlier)
        };
        for found in [[None, None], [Some(&first), None], [None, Some(&second)]] {
            assert_eq!(of(&found), Some(earlier.clone()), "{found:?}");
        }
        // Another GPU at an index, fewer or more devices, another number of GPUs.
        let (other, fewer) = (vec![device("0", 9)], vec![device("1.0", 2)]);
        for found in [
            &[Some(&other), None][..],
            &[None, Some(&fewer)],
            &[Some(&first)],
            &[None, None, None],
            &[Some(&first), None, None],
        ] {
            assert_eq!(of(found), None, "{found:?}");
        }
        assert_eq!(complete([None].into_iter(), &[]), None);
    }
}
