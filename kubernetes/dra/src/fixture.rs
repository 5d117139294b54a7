//! Devices and claims of tests.

use cgpu_client::inventory::HostDevice;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use serde_json::{Value, json};

use crate::claim::ResourceClaim;
use crate::device::{Details, Device, Mode, Pool};

pub(crate) const GIB: u64 = 1 << 30;

/// A device of 15109 MiB that 20 weights share.
pub(crate) fn device(id: &str) -> Device {
    let id: cgpu_client::device_id::DeviceId = id.parse().unwrap();
    let byte = u8::try_from(id.gpu() * 16 + id.instance().map_or(0, |at| at + 1)).unwrap();
    Device {
        host: HostDevice {
            uuid: Uuid([byte; 16]),
            id,
            total: Bytes(15109 << 20),
            is_partitioned: false,
        },
        mode: Mode::Weight,
        max_weight: 20,
        healthy: true,
        other_owner: None,
        details: Details::default(),
    }
}

/// Node `n1` with two GPUs and a MIG instance.
pub(crate) fn pool() -> Pool {
    Pool { node: "n1".into(), devices: ["0", "1", "2.0"].map(device).into() }
}

/// A result of our driver for request `main`.
pub(crate) fn result(device: &str, memory: &str, weight: u32) -> Value {
    json!({"request": "main", "driver": "gpu.cgpu.dev", "pool": "n1", "device": device,
        "shareID": "s", "consumedCapacity": {"memory": memory, "weight": weight.to_string()}})
}

/// A claim with this allocation.
pub(crate) fn claim(results: &Value, config: &Value) -> ResourceClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "test", "uid": "u1"},
        "spec": {"devices": {}},
        "status": {"allocation": {"devices": {"results": results, "config": config}}},
    }))
    .unwrap()
}
