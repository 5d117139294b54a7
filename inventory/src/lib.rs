//! Reads the GPUs of a host from NVML, for programs that start containers or give GPUs to them.
//!
//! One piece of code asks NVML, whichever program needs it. The monitor asks every second and
//! reports the answer ([`cgpu_client::inventory`]), so a container's start does not open the driver,
//! which takes tens of milliseconds and more where no program has a GPU open. [`health`] reads
//! whether GPUs answer, and which errors (XID) they report.
#![forbid(unsafe_code)]

pub mod health;

use std::path::{Path, PathBuf};

use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::{HostDevice, ListedDevice};
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;
/// What says that the driver is the simulated one, and where its GPUs' state lies.
const SIMULATED: [&str; 2] = ["CGPU_SIM_STATE", "CGPU_SIM_GPUS"];

/// Why the GPUs are not known.
#[derive(Debug)]
pub enum Unknown {
    /// The library of this name cannot be loaded, or not initialised.
    Library(PathBuf, NvmlError),
    /// It is not told how many there are.
    Count(NvmlError),
    /// That one does not answer: a limit on a GPU that is not known would be none.
    Gpu(u32, NvmlError),
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // The loader names the file itself.
            Self::Library(_, NvmlError::LibloadingError(error)) => error.fmt(f),
            Self::Library(name, error) => write!(f, "{}: {error}", name.display()),
            Self::Count(error) => write!(f, "NVML does not tell how many GPUs there are: {error}"),
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

/// What `cgpu-monitor --list-gpus` prints: all GPUs as NVML tells them now, a list in JSON. Programs that cannot load NVML themselves ask so.
///
/// # Errors
/// As [`ask`], and the library cannot be loaded.
pub fn list(library: &Path) -> anyhow::Result<String> {
    let gpus = ask(&open(library)?)?;
    Ok(serde_json::to_string(&gpus.iter().map(ListedDevice::from).collect::<Vec<_>>())?)
}

/// Asks for all of them.
///
/// # Errors
/// [`Unknown`] of one of them is of all.
pub fn ask(nvml: &Nvml) -> Result<Vec<HostDevice>, Unknown> {
    let mut gpus = Vec::new();
    for index in 0..nvml.device_count().map_err(Unknown::Count)? {
        gpus.extend(gpu(nvml, index).map_err(|error| Unknown::Gpu(index, error))?);
    }
    Ok(gpus)
}

/// The GPU, or the instances into which it is partitioned (MIG). Drivers before R470 name instances after their GPU: which is which cannot be told then.
fn gpu(nvml: &Nvml, index: u32) -> Result<Vec<HostDevice>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let whole = told(&device, DeviceId::of_gpu(index))?;
    if !device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED) {
        return Ok(vec![whole]);
    }
    let mut instances = Vec::new();
    for number in 0..device.mig_device_count()? {
        match device.mig_device_by_index(number) {
            Ok(instance) => instances.push(told(&instance, DeviceId::of_instance(index, number))?),
            // One that was destroyed leaves its number empty.
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

fn told(device: &Device<'_>, number: DeviceId) -> Result<HostDevice, NvmlError> {
    let uuid: Uuid = device.uuid()?.parse().map_err(|_| NvmlError::Unknown)?;
    Ok(HostDevice {
        uuid,
        number,
        total: Bytes(device.memory_info()?.total),
        is_partitioned: false,
    })
}

/// Where the state of this process's GPUs lies, if its environment says that they are simulated.
#[must_use]
pub fn simulated() -> Option<PathBuf> {
    let [state, list] = SIMULATED.map(std::env::var_os);
    let place = state.as_deref().and_then(|state| Path::new(state).canonicalize().ok());
    (state.is_some() || list.is_some()).then(|| place.unwrap_or_default())
}
