//! The figures of a GPU's board: temperature, power, clocks, its link to the host.

use cgpu_client::board::{Board, PcieLink};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

/// Reads the figures that this GPU and this driver have. PCIe throughput is not among them: NVML
/// measures it for 20 ms in each call.
#[must_use]
pub fn read(device: &Device<'_>) -> Board {
    let generation = device.current_pcie_link_gen().ok();
    let width = device.current_pcie_link_width().ok();
    Board {
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        power_mw: device.power_usage().ok(),
        power_limit_mw: device.enforced_power_limit().ok(),
        sm_clock_mhz: device.clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        pcie: generation.zip(width).map(|(generation, width)| PcieLink { generation, width }),
    }
}
