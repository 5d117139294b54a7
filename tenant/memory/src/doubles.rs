//! Test doubles: a manual clock, a container in a directory of its own.

use std::path::Path;

use cgpu_settings::declared::Declared;
use cgpu_shm::atomic::{AtomicU64, AtomicUsize, Ordering};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos};
use cgpu_shm::uuid::Uuid;

use crate::{Clock, GpuInfo, Inventory, Monotonic, Reason, Refusal, Start, Tenant};

/// A clock that advances only by sleeps and by the test.
#[derive(Debug)]
pub(crate) struct ManualClock {
    now: AtomicU64,
    slept: AtomicU64,
}

impl ManualClock {
    /// Returns a clock that shows the real time, as of now.
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            now: AtomicU64::new(Monotonic.now().0),
            slept: AtomicU64::new(0),
        }))
    }

    pub(crate) fn advance(&self, time: Nanos) {
        self.now.fetch_add(time.0, Ordering::Relaxed);
    }

    /// Returns the sum of all sleeps.
    pub(crate) fn slept(&self) -> Nanos {
        Nanos(self.slept.load(Ordering::Relaxed))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Nanos) {
        self.slept.fetch_add(time.0, Ordering::Relaxed);
        self.advance(time);
    }
}

/// The one GPU of [`Container`]: 100 MiB.
pub(crate) const GPU: GpuInfo = GpuInfo { uuid: Uuid([7; 16]), total: Bytes(100 << 20), order: 0 };

/// A container in a directory of its own, with variables that give it a limit.
pub(crate) struct Container {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) environment: Declared,
    pub(crate) clock: &'static ManualClock,
    contexts: AtomicUsize,
}

impl Container {
    pub(crate) fn limited(mib: u64) -> Self {
        let container = format!("ALIYUN_COM_GPU_MEM_CONTAINER={mib}");
        Self::with(&[&container, "CGPU_MEM_UNIT=MiB"])
    }

    /// Creates one with these variables, and its region in the default place.
    pub(crate) fn with(variables: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut environment = Declared::with(variables);
        environment.run_directory = directory.path().join("run");
        environment.shared_memory_directory = directory.path().join("shm");
        for made in [&environment.run_directory, &environment.shared_memory_directory] {
            std::fs::create_dir(made).expect("a directory");
        }
        Self { directory, environment, clock: ManualClock::new(), contexts: AtomicUsize::new(0) }
    }

    pub(crate) fn run(&self) -> &Path {
        &self.environment.run_directory
    }

    pub(crate) fn start(&self) -> Result<Start, Refusal> {
        self.start_by(self.clock)
    }

    pub(crate) fn start_by(&self, clock: &'static dyn Clock) -> Result<Start, Refusal> {
        Tenant::start(
            &self.environment,
            Inventory { gpus: &[GPU], partitioned: &[], complete: true },
            clock,
        )
    }

    pub(crate) fn tenant(&self) -> Tenant {
        match self.start() {
            Ok(Start::On(tenant)) => tenant,
            other => panic!("expected a tenant, found {other:?}"),
        }
    }

    pub(crate) fn handle(&self) -> crate::ContextId {
        crate::ContextId(0x5500_0000_0000 + self.contexts.fetch_add(1, Ordering::Relaxed) * 64)
    }
}

/// Creates a container with a limit in MiB, and a process in it.
pub(crate) fn limited(mib: u64) -> (Container, Tenant) {
    let container = Container::limited(mib);
    let tenant = container.tenant();
    (container, tenant)
}

pub(crate) fn gpu() -> DeviceIndex {
    DeviceIndex::new(0).expect("a GPU's index")
}

pub(crate) fn mib(count: u64) -> Bytes {
    Bytes::from_mib(count)
}

pub(crate) fn used(tenant: &Tenant) -> Bytes {
    tenant.view().usage(gpu()).used
}

pub(crate) fn implicit(tenant: &Tenant) -> Bytes {
    tenant.view().usage(gpu()).implicit
}

pub(crate) fn count(tenant: &Tenant, reason: Reason) -> u32 {
    let slot = tenant.region().slot(tenant.slot_owner().slot());
    slot.counter[reason as usize].load(Ordering::Relaxed)
}
