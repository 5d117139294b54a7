//! A container's files with any bytes, as the shim sees them, before it starts or while it runs.
//! The shim starts or refuses with one message. Later changes harm only the container's own
//! accounting: no panic, no endless wait, no allocation over a limit that it reads.

use std::ffi::{CStr, OsString};
use std::path::PathBuf;

use crate::container::Container;
use cgpu_memory::{
    Address, Bytes, Clock, Environment, GpuInfo, Inventory, Monotonic, Nanos, Start, Tenant, Uuid,
};
use cgpu_shm::atomic::{AtomicU64, Ordering};

const GPU: GpuInfo = GpuInfo { uuid: Uuid([7; 16]), total: Bytes::from_mib(1 << 14), order: 16 };

/// A clock a hundred times as fast as real time, which advances when a caller sleeps, so that
/// bounded waits end soon.
struct FastClock(AtomicU64);

static CLOCK: FastClock = FastClock(AtomicU64::new(0));

impl Clock for FastClock {
    fn now(&self) -> Nanos {
        Nanos(100 * Monotonic.now().0 + self.0.load(Ordering::Relaxed))
    }
    fn sleep(&self, time: Nanos) {
        self.0.fetch_add(time.0, Ordering::Relaxed);
    }
}

struct FakeEnvironment(PathBuf);

impl Environment for FakeEnvironment {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        match name.to_bytes() {
            b"ALIYUN_COM_GPU_MEM_CONTAINER" => Some("8".into()),
            b"CGPU_DIR" => Some(self.0.clone().into()),
            _ => None,
        }
    }
    fn user(&self) -> u32 {
        1000
    }
    fn pid_namespace(&self) -> u64 {
        1
    }
    fn process_name(&self) -> Vec<u8> {
        b"fuzz".to_vec()
    }
    fn host_name(&self) -> String {
        "fuzz".to_owned()
    }
    fn run_directory(&self) -> PathBuf {
        self.0.join("none")
    }
    fn shared_memory_directory(&self) -> PathBuf {
        self.0.join("none")
    }
}

fn start(container: &Container) -> Option<Tenant> {
    let inside = FakeEnvironment(container.path().to_owned());
    match Tenant::start(
        &inside,
        Inventory { gpus: &[GPU], partitioned: &[], complete: true },
        &CLOCK,
    ) {
        Ok(Start::On(tenant)) => Some(tenant),
        Ok(Start::Off(_)) => None,
        Err(refusal) => {
            assert!(!refusal.message().contains('\n') && !refusal.message().is_empty());
            None
        }
    }
}

/// Allocates and frees. `is_pristine`: nothing was written, so the limit holds to the byte.
fn use_it(tenant: &Tenant, is_pristine: bool) {
    let Some(gpu) = tenant.gpu(GPU.uuid) else { return };
    if is_pristine && let Some(limit) = tenant.view().limit(gpu) {
        assert!(tenant.charge(gpu, limit + Bytes(1)).is_err(), "more than {limit:?}");
        assert!(tenant.charge(gpu, limit).is_ok(), "{limit:?}");
    }
    for number in 0..4_u64 {
        let address = Address(0x7f00_0000_0000 + (number << 21));
        if let Ok(charge) = tenant.charge(gpu, Bytes::from_mib(2 << number)) {
            let bytes = charge.bytes();
            charge.commit(address, None);
            if let Some(limit) = tenant.view().limit(gpu) {
                assert!(bytes <= limit, "{bytes:?} of {limit:?}");
            }
        }
        let _ = (tenant.view().limit(gpu), tenant.view().usage(gpu));
        if let Some(view) = tenant.view().memory(gpu, Bytes::from_mib(1 << 13)) {
            assert!(view.free <= view.total && view.used <= view.total, "{view:?}");
        }
        if number % 2 == 0
            && let Some(taken) = tenant.allocations().begin_free(address)
        {
            taken.freed();
        }
    }
}

thread_local! {
    static CONTAINER: Container = Container::new();
}

pub(crate) fn check(input: &[u8]) {
    CONTAINER.with(|container| {
        // The first bit says whether the process starts before the writes. Then the length is kept:
        // truncating a file kills a process that has it mapped.
        let Some((&first, writes)) = input.split_first() else { return };
        let mut writes = writes.to_vec();
        let early = (first & 1 == 0).then(|| start(container)).flatten();
        if early.is_some()
            && let Some(length) = writes.first_mut()
        {
            *length = 255;
        }
        container.overwrite(&writes);
        if let Some(tenant) = early.or_else(|| start(container)) {
            use_it(&tenant, writes.len() <= 1);
        }
        container.restore();
    });
}
