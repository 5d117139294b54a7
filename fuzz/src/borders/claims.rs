//! A claim as the API server sends it, and a record as the disk has it, with any bytes. What a
//! claim gets can be enforced: it has limits within its device, and a record that is read back
//! unchanged. An annotation raises none of them beyond what it consumes.

use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::HostDevice;
use cgpu_kubernetes_core::refusal::Refusal;
use cgpu_kubernetes_dra::allocation::NodeClaim;
use cgpu_kubernetes_dra::claim::ResourceClaim;
use cgpu_kubernetes_dra::device::{Details, Device, Mode, Pool};
use cgpu_kubernetes_dra::ledger::Ledger;
use cgpu_kubernetes_dra::{record, resize};
use cgpu_shm::limits::Limits;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

/// A GPU that is shared by weight, and an instance that is shared by cores.
fn pool() -> Pool {
    let device = |byte: u8, id: DeviceId, mode: Mode| Device {
        host: HostDevice {
            uuid: Uuid([byte; 16]),
            id,
            total: Bytes(15109 << 20),
            is_partitioned: false,
        },
        mode,
        max_weight: 20,
        healthy: true,
        other_owner: None,
        details: Details::default(),
    };
    let devices = vec![
        device(1, DeviceId::of_gpu(0), Mode::Weight),
        device(2, DeviceId::of_instance(1, 0), Mode::Cores),
    ];
    Pool { node: "n1".into(), devices }
}

pub(crate) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    check_refusal(record::read("u1", &text).map(|claim| check_claim(&claim)));
    let Ok(claim) = serde_json::from_str::<ResourceClaim>(&text) else { return };
    let pool = pool();
    let annotation = claim.metadata.annotations.get(resize::ANNOTATION);
    check_refusal(NodeClaim::of(&claim, &pool).map(|claim| {
        check_claim(&claim);
        check_refusal(resize::resized(&claim, annotation.map(String::as_str)).map(|resized| {
            check_claim(&resized);
            assert_eq!(resized.allocated(), claim);
        }));
        let mut ledger = Ledger::default();
        if ledger.begin(&claim, &pool, &[]).is_ok() {
            for device in &pool.devices {
                let (consumed, _) = ledger.consumed(&device.host.name(), &[]);
                assert!(consumed.fits(device.capacity()), "{consumed}");
            }
        }
    }));
}

fn check_claim(claim: &NodeClaim) {
    assert_eq!(record::read(&claim.uid, &record::write(claim)).as_ref(), Ok(claim));
    for share in &claim.shares {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        assert!(share.name.bytes().all(plain), "{}", share.name);
        let Some(text) = share.limits().expect("limits") else { continue };
        let limits: Limits = text.parse().expect("valid limits");
        let granted = share.granted();
        assert!(granted.fits(share.consumed()), "{granted}");
        assert_eq!(limits.gpus.iter().map(|gpu| gpu.1.0).collect::<Vec<_>>(), [granted.memory]);
        assert_eq!((limits.weight, limits.percent.unwrap_or(0)), (granted.weight, granted.cores));
    }
}

fn check_refusal(outcome: Result<(), Refusal>) {
    if let Err(refusal) = outcome {
        assert!(!refusal.message().is_empty());
    }
}
