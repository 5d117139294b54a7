//! What the tests of several modules show.

use cgpu_client::board::{Board, PcieLink};
use cgpu_client::message::{GpuStatus, Sharing};

/// A GPU of which all figures are known.
pub(crate) fn gpu(index: u32) -> GpuStatus {
    GpuStatus {
        index: index.into(),
        uuid: format!("GPU-{index}"),
        name: "NVIDIA A10".into(),
        memory_total: 23028 << 20,
        memory_used: Some(9216 << 20),
        policy: 2,
        max_inst: 20,
        free_weight: 17,
        sharing: Sharing::Contended,
        turns: 1234,
        utilization: Some(97),
        board: Board {
            temperature_celsius: Some(61),
            power_mw: Some(120_500),
            power_limit_mw: Some(150_000),
            sm_clock_mhz: Some(1695),
            memory_clock_mhz: Some(6251),
            pcie: Some(PcieLink { generation: 4, width: 16 }),
        },
        switch_us: Some(104),
        slice_us: 6000,
        ..GpuStatus::default()
    }
}
