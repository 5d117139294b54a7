//! A process of a container with one GPU.

use std::path::Path;

use cgpu_memory::{
    Bytes, Clock, DeviceIndex, Environment, GpuInfo, Inventory, Monotonic, Nanos, Start, System,
    Tenant, Uuid,
};
use cgpu_shm::region::Region;
use cgpu_shm::slots::State;
use cgpu_shm::units::SlotIndex;

use crate::child::Child;

const GPU: GpuInfo = GpuInfo { uuid: Uuid([7; 16]), total: Bytes(1 << 40), order: 0 };

/// A process of a container.
pub(crate) struct Member {
    pub(crate) tenant: Tenant,
    pub(crate) gpu: DeviceIndex,
}

impl Member {
    pub(crate) fn join() -> Self {
        Self::join_by(&System)
    }

    pub(crate) fn join_by(environment: &dyn Environment) -> Self {
        let inventory = Inventory { gpus: &[GPU], partitioned: &[], complete: true };
        match Tenant::start(environment, inventory, &Monotonic) {
            Ok(Start::On(tenant)) => {
                let gpu = tenant.gpu(GPU.uuid).expect("the GPU is sliced");
                Self { tenant, gpu }
            }
            other => panic!("expected a tenant, found {other:?}"),
        }
    }
}

/// Starts a child in the container of `directory`, with a limit in MiB.
pub(crate) fn start_child(role: &str, directory: &Path, limit_mib: u64, argument: usize) -> Child {
    let variables = [
        ("CGPU_DIR", directory.to_str().expect("the path is text")),
        ("CGPU_MEM_UNIT", "MiB"),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", &limit_mib.to_string()),
    ];
    Child::start_with(role, directory, argument, &variables)
}

/// The environment of the test's own process, which does not have its children's variables.
pub(crate) struct Inside<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) limit_mib: u64,
}

impl Environment for Inside<'_> {
    fn variable(&self, name: &std::ffi::CStr) -> Option<std::ffi::OsString> {
        match name.to_bytes() {
            b"CGPU_DIR" => Some(self.directory.into()),
            b"CGPU_MEM_UNIT" => Some("MiB".into()),
            b"ALIYUN_COM_GPU_MEM_CONTAINER" => Some(self.limit_mib.to_string().into()),
            _ => None,
        }
    }

    fn user(&self) -> u32 {
        System.user()
    }

    fn pid_namespace(&self) -> u64 {
        System.pid_namespace()
    }

    fn process_name(&self) -> Vec<u8> {
        System.process_name()
    }

    fn host_name(&self) -> String {
        System.host_name()
    }
}

/// Reclaims all exited processes, whenever they exited.
pub(crate) fn reclaim_exited(region: &Region) {
    let now = Monotonic.now();
    for time in [now, now + Nanos::from_millis(10_000)] {
        region.sweep(time, false).expect("exited processes can be scanned");
    }
}

/// Slots that are not free.
pub(crate) fn taken(region: &Region) -> Vec<SlotIndex> {
    let state = |slot| region.slots().word(slot).expect("a slot").state();
    SlotIndex::all().filter(|slot| state(*slot) != Some(State::Free)).collect()
}
