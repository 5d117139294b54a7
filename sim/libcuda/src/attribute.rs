//! Device attributes: those of the GPU's model, and those common to all simulated GPUs.

use cgpu_abi::types::*;
use cgpu_sim::GpuSpec;

use crate::endpoint;

/// Returns the value of an attribute; `None` for an unknown attribute.
pub(crate) fn value(attrib: CUdevice_attribute, spec: &GpuSpec, gpu: usize) -> Option<c_int> {
    if !(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        ..=CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED)
        .contains(&attrib)
    {
        return None;
    }
    let model = spec.model;
    let generation = model.generation();
    let shared_per_multiprocessor = generation.shared_per_multiprocessor.cast_signed();
    let (domain, bus, device) = spec.pci(gpu);
    let ampere = model.capability >= (8, 0);
    let hopper = model.capability >= (9, 0);
    Some(match attrib {
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => spec.multiprocessors().cast_signed(),
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => {
            model.threads_per_multiprocessor.cast_signed()
        }
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => model.capability.0.cast_signed(),
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => model.capability.1.cast_signed(),
        CU_DEVICE_ATTRIBUTE_CLOCK_RATE => (model.core_mhz * 1000).cast_signed(),
        CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => (model.memory_mhz * 1000).cast_signed(),
        CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => model.bus_bits.cast_signed(),
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => model.l2_bytes.cast_signed(),
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => domain.cast_signed(),
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => bus.cast_signed(),
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => device.cast_signed(),
        CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID => model.pci_device.cast_signed(),
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => shared_per_multiprocessor,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN if ampere => {
            shared_per_multiprocessor - 1024
        }
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => shared_per_multiprocessor,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => {
            generation.blocks_per_multiprocessor.cast_signed()
        }
        CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => c_int::from(ampere) * 1024,
        CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => match model.capability {
            (_, 0) => 2,
            _ => 32,
        },
        CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
        | CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS => c_int::from(hopper),
        CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED => {
            c_int::from(endpoint::supports(spec))
        }
        CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES if endpoint::supports(spec) => {
            CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC.cast_signed()
        }
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED => c_int::from(spec.has_switch()),
        CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED => c_int::from(spec.has_switch()),
        CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED => c_int::from(ampere),
        CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT => {
            if hopper {
                4
            } else {
                1
            }
        }

        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => 1024,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X | CU_DEVICE_ATTRIBUTE_MAX_PITCH => c_int::MAX,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y | CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => 65_535,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => 49_152,
        CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY
        | CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 65_536,
        CU_DEVICE_ATTRIBUTE_WARP_SIZE | CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT => 32,
        CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT | CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT => 512,
        CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 2,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH => 131_072,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT => 65_536,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT
        | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH => 16_384,
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES => {
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.cast_signed()
        }
        CU_DEVICE_ATTRIBUTE_NUMA_ID => -1,
        CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT => c_int::try_from(spec.domains()).unwrap_or(1),
        CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT => {
            spec.domain_multiprocessors().cast_signed()
        }

        CU_DEVICE_ATTRIBUTE_GPU_OVERLAP
        | CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | CU_DEVICE_ATTRIBUTE_ECC_ENABLED
        | CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        | CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1
        | CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1
        | CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1
        | CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        | CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR => 1,
        // What no simulated GPU has: integrated memory, a display, interoperability with other
        // interfaces or processes.
        _ => 0,
    })
}
