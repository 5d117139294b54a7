//! NVML's enumerations, as integers with named values.
#![allow(missing_docs, reason = "the vendor's own names")]

use core::ffi::c_uint;

use crate::constants::enumerations;

enumerations! {
    /// Which sensor.
    nvmlTemperatureSensors_t {
        NVML_TEMPERATURE_GPU = 0,
        NVML_TEMPERATURE_GPU_MAX = 1,
    }
    /// Which temperature threshold.
    nvmlTemperatureThresholds_t {
        NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0,
        NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1,
        NVML_TEMPERATURE_THRESHOLD_MEM_MAX = 2,
        NVML_TEMPERATURE_THRESHOLD_GPU_MAX = 3,
        NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN = 4,
        NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR = 5,
        NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MAX = 6,
        NVML_TEMPERATURE_THRESHOLD_GPS_CURR = 7,
    }
    /// Performance states; 0 is the fastest.
    nvmlPstates_t {
        NVML_PSTATE_0 = 0,
        NVML_PSTATE_1 = 1,
        NVML_PSTATE_2 = 2,
        NVML_PSTATE_3 = 3,
        NVML_PSTATE_4 = 4,
        NVML_PSTATE_5 = 5,
        NVML_PSTATE_6 = 6,
        NVML_PSTATE_7 = 7,
        NVML_PSTATE_8 = 8,
        NVML_PSTATE_9 = 9,
        NVML_PSTATE_10 = 10,
        NVML_PSTATE_11 = 11,
        NVML_PSTATE_12 = 12,
        NVML_PSTATE_13 = 13,
        NVML_PSTATE_14 = 14,
        NVML_PSTATE_15 = 15,
        NVML_PSTATE_UNKNOWN = 32,
    }
    /// Which clock.
    nvmlClockType_t {
        NVML_CLOCK_GRAPHICS = 0,
        NVML_CLOCK_SM = 1,
        NVML_CLOCK_MEM = 2,
        NVML_CLOCK_VIDEO = 3,
    }
    /// Which reading of a clock.
    nvmlClockId_t {
        NVML_CLOCK_ID_CURRENT = 0,
        NVML_CLOCK_ID_APP_CLOCK_TARGET = 1,
        NVML_CLOCK_ID_APP_CLOCK_DEFAULT = 2,
        NVML_CLOCK_ID_CUSTOMER_BOOST_MAX = 3,
    }
    /// The GPU's brand.
    nvmlBrandType_t {
        NVML_BRAND_UNKNOWN = 0,
        NVML_BRAND_QUADRO = 1,
        NVML_BRAND_TESLA = 2,
        NVML_BRAND_NVS = 3,
        NVML_BRAND_GRID = 4,
        NVML_BRAND_GEFORCE = 5,
        NVML_BRAND_TITAN = 6,
        NVML_BRAND_NVIDIA_VAPPS = 7,
        NVML_BRAND_NVIDIA_VPC = 8,
        NVML_BRAND_NVIDIA_VCS = 9,
        NVML_BRAND_NVIDIA_VWS = 10,
        NVML_BRAND_NVIDIA_CLOUD_GAMING = 11,
        NVML_BRAND_QUADRO_RTX = 12,
        NVML_BRAND_NVIDIA_RTX = 13,
        NVML_BRAND_NVIDIA = 14,
        NVML_BRAND_GEFORCE_RTX = 15,
        NVML_BRAND_TITAN_RTX = 16,
        NVML_BRAND_NVIDIA_DLA = 17,
        NVML_BRAND_NVIDIA_NPU = 19,
        NVML_BRAND_NVIDIA_VGAMEDEV = 18,
    }
    /// Off or on.
    nvmlEnableState_t {
        NVML_FEATURE_DISABLED = 0,
        NVML_FEATURE_ENABLED = 1,
    }
    /// Which processes may create contexts on the GPU.
    nvmlComputeMode_t {
        NVML_COMPUTEMODE_DEFAULT = 0,
        NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1,
        NVML_COMPUTEMODE_PROHIBITED = 2,
        NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
    }
    /// Direction of PCIe traffic.
    nvmlPcieUtilCounter_t {
        NVML_PCIE_UTIL_TX_BYTES = 0,
        NVML_PCIE_UTIL_RX_BYTES = 1,
    }
    /// How the GPU is virtualised.
    nvmlGpuVirtualizationMode_t {
        NVML_GPU_VIRTUALIZATION_MODE_NONE = 0,
        NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH = 1,
        NVML_GPU_VIRTUALIZATION_MODE_VGPU = 2,
        NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU = 3,
        NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA = 4,
    }
    /// Whether a memory error was corrected.
    nvmlMemoryErrorType_t {
        NVML_MEMORY_ERROR_TYPE_CORRECTED = 0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1,
    }
    /// Start of an error count.
    nvmlEccCounterType_t {
        NVML_VOLATILE_ECC = 0,
        NVML_AGGREGATE_ECC = 1,
    }
    /// Place of an error in the GPU.
    nvmlMemoryLocation_t {
        NVML_MEMORY_LOCATION_L1_CACHE = 0,
        NVML_MEMORY_LOCATION_L2_CACHE = 1,
        NVML_MEMORY_LOCATION_DRAM = 2,
        NVML_MEMORY_LOCATION_REGISTER_FILE = 3,
        NVML_MEMORY_LOCATION_TEXTURE_MEMORY = 4,
        NVML_MEMORY_LOCATION_TEXTURE_SHM = 5,
        NVML_MEMORY_LOCATION_CBU = 6,
        NVML_MEMORY_LOCATION_SRAM = 7,
    }
    /// What is sampled.
    nvmlSamplingType_t {
        NVML_TOTAL_POWER_SAMPLES = 0,
        NVML_GPU_UTILIZATION_SAMPLES = 1,
        NVML_MEMORY_UTILIZATION_SAMPLES = 2,
        NVML_ENC_UTILIZATION_SAMPLES = 3,
        NVML_DEC_UTILIZATION_SAMPLES = 4,
        NVML_PROCESSOR_CLK_SAMPLES = 5,
        NVML_MEMORY_CLK_SAMPLES = 6,
    }
    /// Which member of a value counts.
    nvmlValueType_t {
        NVML_VALUE_TYPE_DOUBLE = 0,
        NVML_VALUE_TYPE_UNSIGNED_INT = 1,
        NVML_VALUE_TYPE_UNSIGNED_LONG = 2,
        NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3,
        NVML_VALUE_TYPE_SIGNED_LONG_LONG = 4,
    }
    /// Which processes a detailed list has.
    nvmlProcessMode_t {
        NVML_PROCESS_MODE_COMPUTE = 0,
        NVML_PROCESS_MODE_GRAPHICS = 1,
        NVML_PROCESS_MODE_MPS = 2,
        NVML_PROCESS_MODE_ALL = 3,
    }
    /// A GPU's generation.
    nvmlDeviceArchitecture_t {
        NVML_DEVICE_ARCH_KEPLER = 2,
        NVML_DEVICE_ARCH_MAXWELL = 3,
        NVML_DEVICE_ARCH_PASCAL = 4,
        NVML_DEVICE_ARCH_VOLTA = 5,
        NVML_DEVICE_ARCH_TURING = 6,
        NVML_DEVICE_ARCH_AMPERE = 7,
        NVML_DEVICE_ARCH_ADA = 8,
        NVML_DEVICE_ARCH_HOPPER = 9,
        NVML_DEVICE_ARCH_BLACKWELL = 10,
        NVML_DEVICE_ARCH_UNKNOWN = 0xffff_ffff,
    }
}
