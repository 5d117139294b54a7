//! The table of CUDA driver functions. The crate's documentation explains the rows.

/// Passes all rows to the callback, in one invocation.
#[macro_export]
macro_rules! driver_table {
    ($($callback:ident)::+ $(, [$($through:tt)*])?) => {
        $($callback)::+! {
            $([$($through)*])?

            // Start-up and routing.
            hook cuInit { "cuInit", legacy, 2000, 1107 } Starts Tracked simulated "claims a slot for the process; fails when the limits cannot be understood"
                (flags: c_uint);
            hook cuGetProcAddress { "cuGetProcAddress", legacy, 11030, 1107 } Routes Routed simulated "replaces the driver's function with cgpu's hook for it"
                (symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t);
            hook cuGetProcAddress_ptsz { "cuGetProcAddress", none, 0, 1107 } Routes Routed simulated "replaces the driver's function with cgpu's hook for it"
                (symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t);
            hook cuGetProcAddress_v2 { "cuGetProcAddress", legacy, 12000, 1200 } Routes Routed simulated "replaces the driver's function with cgpu's hook for it"
                (symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t, symbol_status: *mut CUdriverProcAddressQueryResult);
            hook cuGetProcAddress_v2_ptsz { "cuGetProcAddress", none, 0, 1200 } Routes Routed simulated "replaces the driver's function with cgpu's hook for it"
                (symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t, symbol_status: *mut CUdriverProcAddressQueryResult);
            hook cuGetExportTable { "cuGetExportTable", legacy, 3000, 1107 } Routes Tracked simulated "hands out the vendor's private tables unchanged; counted by UUID"
                (export_table: *mut *const c_void, export_table_id: *const CUuuid);
            call cuDriverGetVersion { "cuDriverGetVersion", legacy, 2020, 1107 } Passes Passed simulated "reads the driver's version"
                (driver_version: *mut c_int);
            call cuGetErrorName { "cuGetErrorName", legacy, 6000, 1107 } Passes Passed simulated "returns the name or text of a result"
                (error: CUresult, text: *mut *const c_char);
            call cuGetErrorString { "cuGetErrorString", legacy, 6000, 1107 } Passes Passed simulated "returns the name or text of a result"
                (error: CUresult, text: *mut *const c_char);

            // Linear memory.
            hook cuMemAlloc { "cuMemAlloc", legacy, 2000, 1107 } Allocates Charged simulated "linear memory, charged before the call"
                (dptr: *mut CUdeviceptr_v1, byte_size: c_uint);
            hook cuMemAlloc_v2 { "cuMemAlloc", legacy, 3020, 1107 } Allocates Charged simulated "linear memory, charged before the call"
                (dptr: *mut CUdeviceptr, byte_size: usize);
            hook cuMemAllocPitch { "cuMemAllocPitch", legacy, 2000, 1107 } Allocates Charged simulated "pitched linear memory, charged before the call and corrected by the pitch that the driver chose"
                (dptr: *mut CUdeviceptr_v1, pitch: *mut c_uint, width_in_bytes: c_uint, height: c_uint, element_size_bytes: c_uint);
            hook cuMemAllocPitch_v2 { "cuMemAllocPitch", legacy, 3020, 1107 } Allocates Charged simulated "pitched linear memory, charged before the call and corrected by the pitch that the driver chose"
                (dptr: *mut CUdeviceptr, pitch: *mut usize, width_in_bytes: usize, height: usize, element_size_bytes: c_uint);
            hook cuMemFree { "cuMemFree", legacy, 2000, 1107 } Frees Refunded simulated "refunds the charge for the pointer"
                (dptr: CUdeviceptr_v1);
            hook cuMemFree_v2 { "cuMemFree", legacy, 3020, 1107 } Frees Refunded simulated "refunds the charge for the pointer"
                (dptr: CUdeviceptr);
            hook cuMemAllocManaged { "cuMemAllocManaged", legacy, 6000, 1107 } Managed Refused simulated "managed memory can exceed any limit by migrating: refused on every route"
                (dptr: *mut CUdeviceptr, byte_size: usize, flags: c_uint);
            hook cuMemAllocAsync { "cuMemAllocAsync", legacy, 11020, 1107 } Allocates Charged simulated "stream-ordered memory: the pool is charged for all that it reserves; in a captured stream the memory is the graph's"
                (dptr: *mut CUdeviceptr, byte_size: usize, stream: CUstream);
            hook cuMemAllocAsync_ptsz { "cuMemAllocAsync", ptsz, 11020, 1107 } Allocates Charged simulated "stream-ordered memory: the pool is charged for all that it reserves; in a captured stream the memory is the graph's"
                (dptr: *mut CUdeviceptr, byte_size: usize, stream: CUstream);
            hook cuMemAllocFromPoolAsync { "cuMemAllocFromPoolAsync", legacy, 11020, 1107 } Allocates Charged simulated "stream-ordered memory: the pool is charged for all that it reserves; in a captured stream the memory is the graph's"
                (dptr: *mut CUdeviceptr, byte_size: usize, pool: CUmemoryPool, stream: CUstream);
            hook cuMemAllocFromPoolAsync_ptsz { "cuMemAllocFromPoolAsync", ptsz, 11020, 1107 } Allocates Charged simulated "stream-ordered memory: the pool is charged for all that it reserves; in a captured stream the memory is the graph's"
                (dptr: *mut CUdeviceptr, byte_size: usize, pool: CUmemoryPool, stream: CUstream);
            hook cuMemFreeAsync { "cuMemFreeAsync", legacy, 11020, 1107 } Frees Refunded simulated "memory of a pool stays reserved by the pool; linear memory is refunded when the stream reaches the call"
                (dptr: CUdeviceptr, stream: CUstream);
            hook cuMemFreeAsync_ptsz { "cuMemFreeAsync", ptsz, 11020, 1107 } Frees Refunded simulated "memory of a pool stays reserved by the pool; linear memory is refunded when the stream reaches the call"
                (dptr: CUdeviceptr, stream: CUstream);

            // Size and use of memory.
            hook cuMemGetInfo { "cuMemGetInfo", legacy, 2000, 1107 } Reports Virtualised simulated "total is the limit, free is what remains of it"
                (free: *mut c_uint, total: *mut c_uint);
            hook cuMemGetInfo_v2 { "cuMemGetInfo", legacy, 3020, 1107 } Reports Virtualised simulated "total is the limit, free is what remains of it"
                (free: *mut usize, total: *mut usize);
            hook cuDeviceTotalMem { "cuDeviceTotalMem", legacy, 2000, 1107 } Reports Virtualised simulated "the GPU is as large as the limit"
                (bytes: *mut c_uint, device: CUdevice);
            hook cuDeviceTotalMem_v2 { "cuDeviceTotalMem", legacy, 3020, 1107 } Reports Virtualised simulated "the GPU is as large as the limit"
                (bytes: *mut usize, device: CUdevice);
            hook cuDeviceGetAttribute { "cuDeviceGetAttribute", legacy, 2000, 1107 } Reports Virtualised simulated "managed memory, which is refused, reads as not supported; other attributes are the GPU's own"
                (value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);

            // Memory pools.
            hook cuMemPoolCreate { "cuMemPoolCreate", legacy, 11020, 1107 } Passes Tracked simulated "a new pool holds no memory; a managed pool is refused"
                (pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps);
            hook cuMemPoolDestroy { "cuMemPoolDestroy", legacy, 11020, 1107 } Frees Refunded simulated "a destroyed pool stays charged until it holds no memory"
                (pool: CUmemoryPool);
            hook cuMemPoolTrimTo { "cuMemPoolTrimTo", legacy, 11020, 1107 } Frees Refunded simulated "the pool's size is read again after the call"
                (pool: CUmemoryPool, min_bytes_to_keep: usize);
            call cuMemPoolGetAttribute { "cuMemPoolGetAttribute", legacy, 11020, 1107 } Reports Passed simulated "reads the pool's own sizes"
                (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
            hook cuMemPoolSetAttribute { "cuMemPoolSetAttribute", legacy, 11020, 1107 } Passes Tracked simulated "the pool's size is read again after the call"
                (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
            call cuMemPoolGetAccess { "cuMemPoolGetAccess", legacy, 11020, 1107 } Passes Passed simulated "reads or sets which GPUs can access a pool"
                (flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool, location: *mut CUmemLocation);
            call cuMemPoolSetAccess { "cuMemPoolSetAccess", legacy, 11020, 1107 } Passes Passed simulated "reads or sets which GPUs can access a pool"
                (pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
            call cuDeviceGetDefaultMemPool { "cuDeviceGetDefaultMemPool", legacy, 11020, 1107 } Passes Passed simulated "selects a pool; each allocation reads which pool it uses"
                (pool_out: *mut CUmemoryPool, device: CUdevice);
            call cuDeviceGetMemPool { "cuDeviceGetMemPool", legacy, 11020, 1107 } Passes Passed simulated "selects a pool; each allocation reads which pool it uses"
                (pool: *mut CUmemoryPool, device: CUdevice);
            call cuDeviceSetMemPool { "cuDeviceSetMemPool", legacy, 11020, 1107 } Passes Passed simulated "selects a pool; each allocation reads which pool it uses"
                (device: CUdevice, pool: CUmemoryPool);
            hook cuMemGetDefaultMemPool { "cuMemGetDefaultMemPool", legacy, 13000, 1300 } Managed Tracked simulated "selects a pool; a managed pool is refused"
                (pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType);
            hook cuMemGetMemPool { "cuMemGetMemPool", legacy, 13000, 1300 } Managed Tracked simulated "selects a pool; a managed pool is refused"
                (pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType);
            hook cuMemSetMemPool { "cuMemSetMemPool", legacy, 13000, 1300 } Managed Tracked simulated "selects a pool; a managed pool is refused"
                (location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool);
            hook cuMemPoolExportPointer { "cuMemPoolExportPointer", legacy, 11020, 1107 } External Tracked simulated "the exporter is charged, also after the pool's end while another process has the pointer open"
                (share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr);
            hook cuMemPoolExportToShareableHandle { "cuMemPoolExportToShareableHandle", legacy, 11020, 1107 } External Tracked simulated "the exporter is charged, also after the pool's end while another process has a part of it open"
                (handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType, flags: c_ulonglong);
            hook cuMemPoolImportFromShareableHandle { "cuMemPoolImportFromShareableHandle", legacy, 11020, 1107 } External Tracked simulated "the exporter is charged, the importer is not; each call is counted"
                (pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: CUmemAllocationHandleType, flags: c_ulonglong);
            hook cuMemPoolImportPointer { "cuMemPoolImportPointer", legacy, 11020, 1107 } External Tracked simulated "the exporter is charged, the importer is not; each call is counted"
                (pointer_out: *mut CUdeviceptr, pool: CUmemoryPool, share_data: *mut CUmemPoolPtrExportData);

            // Virtual memory management.
            hook cuMemCreate { "cuMemCreate", legacy, 10020, 1107 } Allocates Charged simulated "physical memory, charged before the call to the GPU that will hold it; host memory is not charged"
                (handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong);
            hook cuMemRelease { "cuMemRelease", legacy, 10020, 1107 } Frees Refunded simulated "refunds the memory when its last handle and mapping are gone"
                (handle: CUmemGenericAllocationHandle);
            hook cuMemUnmap { "cuMemUnmap", legacy, 10020, 1107 } Frees Refunded simulated "refunds the memory when its last handle and mapping are gone"
                (pointer: CUdeviceptr, size: usize);
            call cuMemAddressFree { "cuMemAddressFree", legacy, 10020, 1107 } Passes Passed simulated "reserves or frees addresses, which take no memory"
                (pointer: CUdeviceptr, size: usize);
            call cuMemAddressReserve { "cuMemAddressReserve", legacy, 10020, 1107 } Passes Passed simulated "reserves or frees addresses, which take no memory"
                (pointer: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong);
            hook cuMemMap { "cuMemMap", legacy, 10020, 1107 } Passes Tracked simulated "a mapping keeps its memory charged"
                (pointer: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
            hook cuMemMapArrayAsync { "cuMemMapArrayAsync", legacy, 11010, 1107 } External Tracked simulated "each mapped tile keeps its physical memory charged, in stream order"
                (map_info_list: *mut CUarrayMapInfo, number: c_uint, stream: CUstream);
            hook cuMemMapArrayAsync_ptsz { "cuMemMapArrayAsync", ptsz, 11010, 1107 } External Tracked simulated "each mapped tile keeps its physical memory charged, in stream order"
                (map_info_list: *mut CUarrayMapInfo, number: c_uint, stream: CUstream);
            call cuMemGetAccess { "cuMemGetAccess", legacy, 10020, 1107 } Passes Passed simulated "reads or sets the access rights of a mapping"
                (flags: *mut c_ulonglong, location: *const CUmemLocation, pointer: CUdeviceptr);
            call cuMemSetAccess { "cuMemSetAccess", legacy, 10020, 1107 } Passes Passed simulated "reads or sets the access rights of a mapping"
                (pointer: CUdeviceptr, size: usize, descriptor: *const CUmemAccessDesc, count: usize);
            call cuMemGetAllocationGranularity { "cuMemGetAllocationGranularity", legacy, 10020, 1107 } Passes Passed simulated "reads a granularity"
                (granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
            call cuMemGetAllocationPropertiesFromHandle { "cuMemGetAllocationPropertiesFromHandle", legacy, 10020, 1107 } Reports Passed simulated "reads the properties of one handle, not the GPU's totals"
                (prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
            hook cuMemRetainAllocationHandle { "cuMemRetainAllocationHandle", legacy, 11000, 1107 } External Tracked simulated "adds a handle, which keeps the memory charged"
                (handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void);
            hook cuMemExportToShareableHandle { "cuMemExportToShareableHandle", legacy, 10020, 1107 } External Tracked simulated "the exporter is charged, also after it has released the memory, because others may hold it"
                (shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle, handle_type: CUmemAllocationHandleType, flags: c_ulonglong);
            hook cuMemGetHandleForAddressRange { "cuMemGetHandleForAddressRange", legacy, 11070, 1107 } External Tracked simulated "the exporter is charged, also after it has released the memory, because others may hold it"
                (handle: *mut c_void, dptr: CUdeviceptr, size: usize, handle_type: CUmemRangeHandleType, flags: c_ulonglong);
            hook cuMemImportFromShareableHandle { "cuMemImportFromShareableHandle", legacy, 10020, 1107 } External Tracked simulated "the exporter is charged, the importer is not; each call is counted"
                (handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void, sh_handle_type: CUmemAllocationHandleType);

            // Arrays.
            hook cuArray3DCreate { "cuArray3DCreate", legacy, 2000, 1107 } Allocates Charged simulated "charged before the call, by the size that the driver gives for such an array"
                (handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR_v1);
            hook cuArray3DCreate_v2 { "cuArray3DCreate", legacy, 3020, 1107 } Allocates Charged simulated "charged before the call, by the size that the driver gives for such an array"
                (handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR);
            hook cuArrayCreate { "cuArrayCreate", legacy, 2000, 1107 } Allocates Charged simulated "charged before the call, by the size that the driver gives for such an array"
                (handle: *mut CUarray, allocate_array: *const CUDA_ARRAY_DESCRIPTOR_v1);
            hook cuArrayCreate_v2 { "cuArrayCreate", legacy, 3020, 1107 } Allocates Charged simulated "charged before the call, by the size that the driver gives for such an array"
                (handle: *mut CUarray, allocate_array: *const CUDA_ARRAY_DESCRIPTOR);
            hook cuMipmappedArrayCreate { "cuMipmappedArrayCreate", legacy, 5000, 1107 } Allocates Charged simulated "charged before the call, by the size that the driver gives for such an array"
                (handle: *mut CUmipmappedArray, mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR, num_mipmap_levels: c_uint);
            hook cuArrayDestroy { "cuArrayDestroy", legacy, 2000, 1107 } Frees Refunded simulated "refunds the charge for the array"
                (array: CUarray);
            hook cuMipmappedArrayDestroy { "cuMipmappedArrayDestroy", legacy, 5000, 1107 } Frees Refunded simulated "refunds the charge for the array"
                (mipmapped_array: CUmipmappedArray);
            call cuArray3DGetDescriptor { "cuArray3DGetDescriptor", legacy, 2000, 1107 } Passes Passed simulated "reads a descriptor"
                (array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, array: CUarray);
            call cuArray3DGetDescriptor_v2 { "cuArray3DGetDescriptor", legacy, 3020, 1107 } Passes Passed simulated "reads a descriptor"
                (array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray);
            call cuArrayGetDescriptor { "cuArrayGetDescriptor", legacy, 2000, 1107 } Passes Passed simulated "reads a descriptor"
                (array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR_v1, array: CUarray);
            call cuArrayGetDescriptor_v2 { "cuArrayGetDescriptor", legacy, 3020, 1107 } Passes Passed simulated "reads a descriptor"
                (array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray);
            call cuArrayGetMemoryRequirements { "cuArrayGetMemoryRequirements", legacy, 11060, 1107 } Reports Passed simulated "reads one array's size, not the GPU's totals"
                (memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, device: CUdevice);
            call cuMipmappedArrayGetMemoryRequirements { "cuMipmappedArrayGetMemoryRequirements", legacy, 11060, 1107 } Reports Passed simulated "reads one array's size, not the GPU's totals"
                (memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, mipmap: CUmipmappedArray, device: CUdevice);
            call cuArrayGetPlane { "cuArrayGetPlane", legacy, 11020, 1107 } Passes Passed simulated "reads or refers to part of an array"
                (plane_array: *mut CUarray, array: CUarray, plane_idx: c_uint);
            call cuArrayGetSparseProperties { "cuArrayGetSparseProperties", legacy, 11010, 1107 } Passes Passed simulated "reads or refers to part of an array"
                (sparse_properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray);
            call cuMipmappedArrayGetLevel { "cuMipmappedArrayGetLevel", legacy, 5000, 1107 } Passes Passed simulated "reads or refers to part of an array"
                (level_array: *mut CUarray, mipmapped_array: CUmipmappedArray, level: c_uint);
            call cuMipmappedArrayGetSparseProperties { "cuMipmappedArrayGetSparseProperties", legacy, 11010, 1107 } Passes Passed simulated "reads or refers to part of an array"
                (sparse_properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, mipmap: CUmipmappedArray);

            // Host memory.
            call cuMemAllocHost { "cuMemAllocHost", legacy, 2000, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (pointer: *mut *mut c_void, byte_size: c_uint);
            call cuMemAllocHost_v2 { "cuMemAllocHost", legacy, 3020, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (pointer: *mut *mut c_void, byte_size: usize);
            call cuMemFreeHost { "cuMemFreeHost", legacy, 2000, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (pointer: *mut c_void);
            call cuMemHostAlloc { "cuMemHostAlloc", legacy, 2020, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (pointer: *mut *mut c_void, byte_size: usize, flags: c_uint);
            call cuMemHostGetDevicePointer { "cuMemHostGetDevicePointer", legacy, 2020, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (dptr: *mut CUdeviceptr_v1, pointer: *mut c_void, flags: c_uint);
            call cuMemHostGetDevicePointer_v2 { "cuMemHostGetDevicePointer", legacy, 3020, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (dptr: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint);
            call cuMemHostGetFlags { "cuMemHostGetFlags", legacy, 2030, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (flags: *mut c_uint, pointer: *mut c_void);
            call cuMemHostRegister { "cuMemHostRegister", legacy, 4000, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (pointer: *mut c_void, byte_size: usize, flags: c_uint);
            call cuMemHostRegister_v2 { "cuMemHostRegister", legacy, 6050, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (pointer: *mut c_void, byte_size: usize, flags: c_uint);
            call cuMemHostUnregister { "cuMemHostUnregister", legacy, 4000, 1107 } Passes Passed simulated "host memory, which the limit does not cover"
                (pointer: *mut c_void);

            // Pointers and ranges.
            call cuMemGetAddressRange { "cuMemGetAddressRange", legacy, 2000, 1107 } Reports Passed simulated "reads one allocation's base and size, not the GPU's totals"
                (base: *mut CUdeviceptr_v1, size: *mut c_uint, dptr: CUdeviceptr_v1);
            call cuMemGetAddressRange_v2 { "cuMemGetAddressRange", legacy, 3020, 1107 } Reports Passed simulated "reads one allocation's base and size, not the GPU's totals"
                (base: *mut CUdeviceptr, size: *mut usize, dptr: CUdeviceptr);
            call cuPointerGetAttribute { "cuPointerGetAttribute", legacy, 4000, 1107 } Reports Passed simulated "reads the properties of one pointer"
                (data: *mut c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr);
            call cuPointerGetAttributes { "cuPointerGetAttributes", legacy, 7000, 1107 } Reports Passed simulated "reads the properties of one pointer"
                (num_attributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, pointer: CUdeviceptr);
            call cuPointerSetAttribute { "cuPointerSetAttribute", legacy, 6000, 1107 } Passes Passed simulated "sets a property of one allocation"
                (value: *const c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr);
            call cuMemGetLocationInfo { "cuMemGetLocationInfo", legacy, 13040, 1304 } Reports Passed simulated "reads where one range resides, not the GPU's totals"
                (ptr: CUdeviceptr, size: usize, summary_granularity: usize, sampling_granularity: usize, location_out: *mut CUmemLocation);
            pass cuMemGetAttribute { "cuMemGetAttribute", none, 0, 0 } Reports Passed stub "exported by the driver, but in no header";
            pass cuMemGetAttribute_v2 { "cuMemGetAttribute", none, 0, 0 } Reports Passed stub "exported by the driver, but in no header";
            pass cuMemRangeGetAttribute { "cuMemRangeGetAttribute", legacy, 8000, 1107 } Managed Passed stub "reads properties of managed ranges, of which there are none";
            pass cuMemRangeGetAttributes { "cuMemRangeGetAttributes", legacy, 8000, 1107 } Managed Passed stub "reads properties of managed ranges, of which there are none";
            pass cuMemAdvise { "cuMemAdvise", legacy, 8000, 1107 } Managed Passed stub "advice about managed ranges, of which there are none";
            pass cuMemAdvise_v2 { "cuMemAdvise", legacy, 12020, 1202 } Managed Passed stub "advice about managed ranges, of which there are none";

            // Contexts.
            hook cuCtxCreate { "cuCtxCreate", legacy, 2000, 1107 } Context Charged simulated "the context's own memory is charged before the call, by the size last measured on this GPU"
                (ctx: *mut CUcontext, flags: c_uint, device: CUdevice);
            hook cuCtxCreate_v2 { "cuCtxCreate", legacy, 3020, 1107 } Context Charged simulated "the context's own memory is charged before the call, by the size last measured on this GPU"
                (ctx: *mut CUcontext, flags: c_uint, device: CUdevice);
            hook cuCtxCreate_v3 { "cuCtxCreate", legacy, 11040, 1107 } Context Charged simulated "the context's own memory is charged before the call, by the size last measured on this GPU"
                (ctx: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: c_int, flags: c_uint, device: CUdevice);
            hook cuCtxCreate_v4 { "cuCtxCreate", legacy, 12050, 1205 } Context Charged simulated "the context's own memory is charged before the call, by the size last measured on this GPU"
                (ctx: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: c_uint, device: CUdevice);
            hook cuCtxDestroy { "cuCtxDestroy", legacy, 2000, 1107 } Context Refunded simulated "refunds all memory of the context"
                (ctx: CUcontext);
            hook cuCtxDestroy_v2 { "cuCtxDestroy", legacy, 4000, 1107 } Context Refunded simulated "refunds all memory of the context"
                (ctx: CUcontext);
            hook cuCtxDetach { "cuCtxDetach", legacy, 2000, 1107 } Context Refunded simulated "refunds all memory of the context"
                (ctx: CUcontext);
            hook cuCtxAttach { "cuCtxAttach", legacy, 2000, 1107 } Context Tracked simulated "adds a reference, which cuCtxDetach releases"
                (ctx: *mut CUcontext, flags: c_uint);
            hook cuDevicePrimaryCtxRetain { "cuDevicePrimaryCtxRetain", legacy, 7000, 1107 } Context Charged simulated "the first reference creates the context, charged before the call by the size last measured on this GPU"
                (ctx: *mut CUcontext, device: CUdevice);
            hook cuDevicePrimaryCtxRelease { "cuDevicePrimaryCtxRelease", legacy, 7000, 1107 } Context Refunded simulated "the last release refunds all memory of the context"
                (device: CUdevice);
            hook cuDevicePrimaryCtxRelease_v2 { "cuDevicePrimaryCtxRelease", legacy, 11000, 1107 } Context Refunded simulated "the last release refunds all memory of the context"
                (device: CUdevice);
            hook cuDevicePrimaryCtxReset { "cuDevicePrimaryCtxReset", legacy, 7000, 1107 } Context Refunded simulated "refunds all memory of the context; its references remain"
                (device: CUdevice);
            hook cuDevicePrimaryCtxReset_v2 { "cuDevicePrimaryCtxReset", legacy, 11000, 1107 } Context Refunded simulated "refunds all memory of the context; its references remain"
                (device: CUdevice);
            call cuDevicePrimaryCtxGetState { "cuDevicePrimaryCtxGetState", legacy, 7000, 1107 } Context Passed simulated "reads or sets the primary context's flags; creates no context"
                (device: CUdevice, flags: *mut c_uint, active: *mut c_int);
            call cuDevicePrimaryCtxSetFlags { "cuDevicePrimaryCtxSetFlags", legacy, 7000, 1107 } Context Passed simulated "reads or sets the primary context's flags; creates no context"
                (device: CUdevice, flags: c_uint);
            call cuDevicePrimaryCtxSetFlags_v2 { "cuDevicePrimaryCtxSetFlags", legacy, 11000, 1107 } Context Passed simulated "reads or sets the primary context's flags; creates no context"
                (device: CUdevice, flags: c_uint);
            call cuCtxGetCurrent { "cuCtxGetCurrent", legacy, 4000, 1107 } Context Passed simulated "reads or sets the current context; the shim queries the driver where it matters"
                (ctx: *mut CUcontext);
            call cuCtxPopCurrent { "cuCtxPopCurrent", legacy, 2000, 1107 } Context Passed simulated "reads or sets the current context; the shim queries the driver where it matters"
                (ctx: *mut CUcontext);
            call cuCtxPopCurrent_v2 { "cuCtxPopCurrent", legacy, 4000, 1107 } Context Passed simulated "reads or sets the current context; the shim queries the driver where it matters"
                (ctx: *mut CUcontext);
            call cuCtxPushCurrent { "cuCtxPushCurrent", legacy, 2000, 1107 } Context Passed simulated "reads or sets the current context; the shim queries the driver where it matters"
                (ctx: CUcontext);
            call cuCtxPushCurrent_v2 { "cuCtxPushCurrent", legacy, 4000, 1107 } Context Passed simulated "reads or sets the current context; the shim queries the driver where it matters"
                (ctx: CUcontext);
            call cuCtxSetCurrent { "cuCtxSetCurrent", legacy, 4000, 1107 } Context Passed simulated "reads or sets the current context; the shim queries the driver where it matters"
                (ctx: CUcontext);
            hook cuCtxSetLimit { "cuCtxSetLimit", legacy, 3010, 1107 } Context Charged simulated "a larger heap, stack or printf buffer: the increase is charged"
                (limit: CUlimit, value: usize);
            call cuCtxGetApiVersion { "cuCtxGetApiVersion", legacy, 3020, 1107 } Context Passed simulated "reads a property of a context"
                (ctx: CUcontext, version: *mut c_uint);
            call cuCtxGetCacheConfig { "cuCtxGetCacheConfig", legacy, 3020, 1107 } Context Passed simulated "reads a property of a context"
                (config: *mut CUfunc_cache);
            call cuCtxGetDevice { "cuCtxGetDevice", legacy, 2000, 1107 } Context Passed simulated "reads a property of a context"
                (device: *mut CUdevice);
            call cuCtxGetDevice_v2 { "cuCtxGetDevice", legacy, 13000, 1300 } Context Passed simulated "reads a property of a context"
                (device: *mut CUdevice, ctx: CUcontext);
            call cuCtxGetExecAffinity { "cuCtxGetExecAffinity", legacy, 11040, 1107 } Context Passed simulated "reads a property of a context"
                (exec_affinity: *mut CUexecAffinityParam, kind: CUexecAffinityType);
            call cuCtxGetFlags { "cuCtxGetFlags", legacy, 7000, 1107 } Context Passed simulated "reads a property of a context"
                (flags: *mut c_uint);
            call cuCtxGetId { "cuCtxGetId", legacy, 12000, 1200 } Context Passed simulated "reads a property of a context"
                (ctx: CUcontext, ctx_id: *mut c_ulonglong);
            call cuCtxGetLimit { "cuCtxGetLimit", legacy, 3010, 1107 } Context Passed simulated "reads a property of a context"
                (value: *mut usize, limit: CUlimit);
            call cuCtxGetSharedMemConfig { "cuCtxGetSharedMemConfig", legacy, 4020, 1107 } Context Passed simulated "reads a property of a context"
                (config: *mut CUsharedconfig);
            call cuCtxGetStreamPriorityRange { "cuCtxGetStreamPriorityRange", legacy, 5050, 1107 } Context Passed simulated "reads a property of a context"
                (least_priority: *mut c_int, greatest_priority: *mut c_int);
            call cuCtxResetPersistingL2Cache { "cuCtxResetPersistingL2Cache", legacy, 11000, 1107 } Context Passed simulated "sets a property of a context; takes no memory"
                ();
            call cuCtxSetCacheConfig { "cuCtxSetCacheConfig", legacy, 3020, 1107 } Context Passed simulated "sets a property of a context; takes no memory"
                (config: CUfunc_cache);
            call cuCtxSetFlags { "cuCtxSetFlags", legacy, 12010, 1201 } Context Passed simulated "sets a property of a context; takes no memory"
                (flags: c_uint);
            call cuCtxSetSharedMemConfig { "cuCtxSetSharedMemConfig", legacy, 4020, 1107 } Context Passed simulated "sets a property of a context; takes no memory"
                (config: CUsharedconfig);
            hook cuCtxSynchronize { "cuCtxSynchronize", legacy, 2000, 1107 } Context Tracked simulated "waits for work that has already been admitted; the driver may trim pools, so their sizes are read again"
                ();
            hook cuCtxSynchronize_v2 { "cuCtxSynchronize", legacy, 13000, 1300 } Context Tracked simulated "waits for work that has already been admitted; the driver may trim pools, so their sizes are read again"
                (ctx: CUcontext);
            call cuCtxDisablePeerAccess { "cuCtxDisablePeerAccess", legacy, 4000, 1107 } Context Passed simulated "page tables for a peer's memory are implicit memory"
                (peer_context: CUcontext);
            call cuCtxEnablePeerAccess { "cuCtxEnablePeerAccess", legacy, 4000, 1107 } Context Passed simulated "page tables for a peer's memory are implicit memory"
                (peer_context: CUcontext, flags: c_uint);
            call cuCtxRecordEvent { "cuCtxRecordEvent", legacy, 12050, 1205 } Context Passed simulated "orders work that has already been admitted"
                (context: CUcontext, event: CUevent);
            call cuCtxWaitEvent { "cuCtxWaitEvent", legacy, 12050, 1205 } Context Passed simulated "orders work that has already been admitted"
                (context: CUcontext, event: CUevent);
            call cuCtxGetDevResource { "cuCtxGetDevResource", legacy, 12040, 1204 } Reports Passed simulated "reads or divides the GPU's multiprocessors; cgpu shares the GPU's time, not its multiprocessors"
                (context: CUcontext, resource: *mut CUdevResource, kind: CUdevResourceType);
            call cuDevResourceGenerateDesc { "cuDevResourceGenerateDesc", legacy, 12040, 1204 } Reports Passed simulated "reads or divides the GPU's multiprocessors; cgpu shares the GPU's time, not its multiprocessors"
                (ph_desc: *mut CUdevResourceDesc, resources: *mut CUdevResource, nb_resources: c_uint);
            call cuDevSmResourceSplit { "cuDevSmResourceSplit", legacy, 13010, 1301 } Reports Passed simulated "reads or divides the GPU's multiprocessors; cgpu shares the GPU's time, not its multiprocessors"
                (result: *mut CUdevResource, nb_groups: c_uint, input: *const CUdevResource, remainder: *mut CUdevResource, flags: c_uint, group_params: *mut CU_DEV_SM_RESOURCE_GROUP_PARAMS);
            call cuDevSmResourceSplitByCount { "cuDevSmResourceSplitByCount", legacy, 12040, 1204 } Reports Passed simulated "reads or divides the GPU's multiprocessors; cgpu shares the GPU's time, not its multiprocessors"
                (result: *mut CUdevResource, nb_groups: *mut c_uint, input: *const CUdevResource, remaining: *mut CUdevResource, flags: c_uint, min_count: c_uint);
            call cuDeviceGetDevResource { "cuDeviceGetDevResource", legacy, 12040, 1204 } Reports Passed simulated "reads or divides the GPU's multiprocessors; cgpu shares the GPU's time, not its multiprocessors"
                (device: CUdevice, resource: *mut CUdevResource, kind: CUdevResourceType);
            hook cuGreenCtxCreate { "cuGreenCtxCreate", legacy, 12040, 1204 } Context Charged simulated "a view of the primary context, which the first green context creates; its own memory is implicit"
                (ph_ctx: *mut CUgreenCtx, desc: CUdevResourceDesc, device: CUdevice, flags: c_uint);
            hook cuGreenCtxDestroy { "cuGreenCtxDestroy", legacy, 12040, 1204 } Context Refunded simulated "when it releases the primary context for the last time, all memory of that is refunded"
                (green: CUgreenCtx);
            hook cuCtxFromGreenCtx { "cuCtxFromGreenCtx", legacy, 12040, 1204 } Context Tracked simulated "allocations in a green context belong to the primary context"
                (context: *mut CUcontext, green: CUgreenCtx);
            call cuGreenCtxGetDevResource { "cuGreenCtxGetDevResource", legacy, 12040, 1204 } Context Passed simulated "a green context is a view of the primary context"
                (green: CUgreenCtx, resource: *mut CUdevResource, kind: CUdevResourceType);
            call cuGreenCtxGetId { "cuGreenCtxGetId", legacy, 12090, 1300 } Context Passed simulated "a green context is a view of the primary context"
                (green: CUgreenCtx, id: *mut c_ulonglong);
            call cuGreenCtxRecordEvent { "cuGreenCtxRecordEvent", legacy, 12040, 1204 } Context Passed simulated "a green context is a view of the primary context"
                (green: CUgreenCtx, event: CUevent);
            call cuGreenCtxStreamCreate { "cuGreenCtxStreamCreate", legacy, 12050, 1205 } Context Passed simulated "a green context is a view of the primary context"
                (ph_stream: *mut CUstream, green: CUgreenCtx, flags: c_uint, priority: c_int);
            call cuGreenCtxWaitEvent { "cuGreenCtxWaitEvent", legacy, 12040, 1204 } Context Passed simulated "a green context is a view of the primary context"
                (green: CUgreenCtx, event: CUevent);
            call cuStreamGetGreenCtx { "cuStreamGetGreenCtx", legacy, 12040, 1204 } Context Passed simulated "a green context is a view of the primary context"
                (stream: CUstream, green: *mut CUgreenCtx);

            // Devices.
            call cuDeviceCanAccessPeer { "cuDeviceCanAccessPeer", legacy, 4000, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (can_access_peer: *mut c_int, device: CUdevice, peer_dev: CUdevice);
            call cuDeviceComputeCapability { "cuDeviceComputeCapability", legacy, 2000, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (major: *mut c_int, minor: *mut c_int, device: CUdevice);
            call cuDeviceGet { "cuDeviceGet", legacy, 2000, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (device: *mut CUdevice, ordinal: c_int);
            call cuDeviceGetByPCIBusId { "cuDeviceGetByPCIBusId", legacy, 4010, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (device: *mut CUdevice, pci_bus_id: *const c_char);
            call cuDeviceGetCount { "cuDeviceGetCount", legacy, 2000, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (count: *mut c_int);
            call cuDeviceGetExecAffinitySupport { "cuDeviceGetExecAffinitySupport", legacy, 11040, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (value: *mut c_int, kind: CUexecAffinityType, device: CUdevice);
            call cuDeviceGetLuid { "cuDeviceGetLuid", legacy, 10000, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (luid: *mut c_char, device_node_mask: *mut c_uint, device: CUdevice);
            call cuDeviceGetName { "cuDeviceGetName", legacy, 2000, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (name: *mut c_char, length: c_int, device: CUdevice);
            call cuDeviceGetP2PAttribute { "cuDeviceGetP2PAttribute", legacy, 8000, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (value: *mut c_int, attribute: CUdevice_P2PAttribute, src_device: CUdevice, dst_device: CUdevice);
            call cuDeviceGetPCIBusId { "cuDeviceGetPCIBusId", legacy, 4010, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (pci_bus_id: *mut c_char, length: c_int, device: CUdevice);
            call cuDeviceGetProperties { "cuDeviceGetProperties", legacy, 2000, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (prop: *mut CUdevprop, device: CUdevice);
            call cuDeviceGetTexture1DLinearMaxWidth { "cuDeviceGetTexture1DLinearMaxWidth", legacy, 11010, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (max_width_in_elements: *mut usize, format: CUarray_format, num_channels: c_uint, device: CUdevice);
            call cuDeviceGetUuid { "cuDeviceGetUuid", legacy, 9020, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (uuid: *mut CUuuid, device: CUdevice);
            call cuDeviceGetUuid_v2 { "cuDeviceGetUuid", legacy, 11040, 1107 } Passes Passed simulated "reads a property that the limit does not change"
                (uuid: *mut CUuuid, device: CUdevice);
            pass cuDeviceGetCliqueCount { "cuDeviceGetCliqueCount", legacy, 13040, 1304 } Passes Passed stub "reads a property that the limit does not change";
            pass cuDeviceGetCliqueInfo { "cuDeviceGetCliqueInfo", legacy, 13040, 1304 } Passes Passed stub "reads a property that the limit does not change";
            pass cuDeviceGetFabricClusterUuid { "cuDeviceGetFabricClusterUuid", legacy, 13040, 1304 } Passes Passed stub "reads a property that the limit does not change";
            pass cuDeviceGetHostAtomicCapabilities { "cuDeviceGetHostAtomicCapabilities", legacy, 13000, 1300 } Passes Passed stub "reads a property that the limit does not change";
            pass cuDeviceGetNvSciSyncAttributes { "cuDeviceGetNvSciSyncAttributes", legacy, 10020, 1107 } Passes Passed stub "reads a property that the limit does not change";
            pass cuDeviceGetP2PAtomicCapabilities { "cuDeviceGetP2PAtomicCapabilities", legacy, 13000, 1300 } Passes Passed stub "reads a property that the limit does not change";
            hook cuDeviceGetGraphMemAttribute { "cuDeviceGetGraphMemAttribute", legacy, 11040, 1107 } Reports Virtualised simulated "the memory reserved for graphs also corrects the accounting; it is never shown as more than the limit"
                (device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void);
            call cuDeviceSetGraphMemAttribute { "cuDeviceSetGraphMemAttribute", legacy, 11040, 1107 } Reports Passed simulated "resets a high-water mark"
                (device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void);
            hook cuDeviceGraphMemTrim { "cuDeviceGraphMemTrim", legacy, 11040, 1107 } Frees Refunded simulated "the memory reserved for graphs is read again after the call"
                (device: CUdevice);
            pass cuDeviceRegisterAsyncNotification { "cuDeviceRegisterAsyncNotification", legacy, 12040, 1204 } Passes Passed stub "calls the program back when the GPU runs short";
            pass cuDeviceUnregisterAsyncNotification { "cuDeviceUnregisterAsyncNotification", legacy, 12040, 1204 } Passes Passed stub "calls the program back when the GPU runs short";

            // Modules and libraries.
            hook cuLibraryLoadData { "cuLibraryLoadData", legacy, 12000, 1200 } Module Charged simulated "code and variables that are loaded with the library: charged by the sizes in the image, then measured"
                (library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option, jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void, num_library_options: c_uint);
            hook cuLibraryLoadFromFile { "cuLibraryLoadFromFile", legacy, 12000, 1200 } Module Charged simulated "code and variables that are loaded with the library: charged by the sizes in the image, then measured"
                (library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut CUjit_option, jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void, num_library_options: c_uint);
            hook cuModuleLoad { "cuModuleLoad", legacy, 2000, 1107 } Module Charged simulated "code and variables that are loaded with the module: charged by the sizes in the image, then measured; unloaded and refused beyond the limit"
                (module: *mut CUmodule, file_name: *const c_char);
            hook cuModuleLoadData { "cuModuleLoadData", legacy, 2000, 1107 } Module Charged simulated "code and variables that are loaded with the module: charged by the sizes in the image, then measured; unloaded and refused beyond the limit"
                (module: *mut CUmodule, image: *const c_void);
            hook cuModuleLoadDataEx { "cuModuleLoadDataEx", legacy, 2010, 1107 } Module Charged simulated "code and variables that are loaded with the module: charged by the sizes in the image, then measured; unloaded and refused beyond the limit"
                (module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void);
            hook cuModuleLoadFatBinary { "cuModuleLoadFatBinary", legacy, 2000, 1107 } Module Charged simulated "code and variables that are loaded with the module: charged by the sizes in the image, then measured; unloaded and refused beyond the limit"
                (module: *mut CUmodule, fat_cubin: *const c_void);
            hook cuLibraryUnload { "cuLibraryUnload", legacy, 12000, 1200 } Module Refunded simulated "refunds what was loaded with it"
                (library: CUlibrary);
            hook cuModuleUnload { "cuModuleUnload", legacy, 2000, 1107 } Module Refunded simulated "refunds what was loaded with it"
                (module: CUmodule);
            call cuModuleEnumerateFunctions { "cuModuleEnumerateFunctions", legacy, 12040, 1204 } Module Passed simulated "reads what a loaded module contains"
                (functions: *mut CUfunction, num_functions: c_uint, module: CUmodule);
            call cuModuleGetFunction { "cuModuleGetFunction", legacy, 2000, 1107 } Module Passed simulated "reads what a loaded module contains"
                (function: *mut CUfunction, module: CUmodule, name: *const c_char);
            call cuModuleGetFunctionCount { "cuModuleGetFunctionCount", legacy, 12040, 1204 } Module Passed simulated "reads what a loaded module contains"
                (count: *mut c_uint, module: CUmodule);
            hook cuModuleGetGlobal { "cuModuleGetGlobal", legacy, 2000, 1107 } Module Tracked simulated "looks up a variable; a managed variable is refused"
                (dptr: *mut CUdeviceptr_v1, bytes: *mut c_uint, module: CUmodule, name: *const c_char);
            hook cuModuleGetGlobal_v2 { "cuModuleGetGlobal", legacy, 3020, 1107 } Module Tracked simulated "looks up a variable; a managed variable is refused"
                (dptr: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
            call cuModuleGetLoadingMode { "cuModuleGetLoadingMode", legacy, 11070, 1107 } Module Passed simulated "reads what a loaded module contains"
                (mode: *mut CUmoduleLoadingMode);
            pass cuModuleGetSurfRef { "cuModuleGetSurfRef", legacy, 3000, 1107 } Module Passed stub "reads what a loaded module contains";
            pass cuModuleGetTexRef { "cuModuleGetTexRef", legacy, 2000, 1107 } Module Passed stub "reads what a loaded module contains";
            hook cuLibraryGetManaged { "cuLibraryGetManaged", legacy, 12000, 1200 } Managed Refused simulated "looks up a managed variable: refused, as managed memory is on every route"
                (dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
            call cuLibraryEnumerateKernels { "cuLibraryEnumerateKernels", legacy, 12040, 1204 } Module Passed simulated "reads what a loaded library contains"
                (kernels: *mut CUkernel, num_kernels: c_uint, library: CUlibrary);
            hook cuLibraryGetGlobal { "cuLibraryGetGlobal", legacy, 12000, 1200 } Module Charged simulated "may load the library into the context: its variables are charged by the sizes in the image, then measured; a managed variable is refused"
                (dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
            call cuLibraryGetKernel { "cuLibraryGetKernel", legacy, 12000, 1200 } Module Passed simulated "reads what a loaded library contains"
                (kernel: *mut CUkernel, library: CUlibrary, name: *const c_char);
            call cuLibraryGetKernelCount { "cuLibraryGetKernelCount", legacy, 12040, 1204 } Module Passed simulated "reads what a loaded library contains"
                (count: *mut c_uint, library: CUlibrary);
            hook cuLibraryGetModule { "cuLibraryGetModule", legacy, 12000, 1200 } Module Charged simulated "may load the library into the context: its variables are charged by the sizes in the image, then measured"
                (module: *mut CUmodule, library: CUlibrary);
            call cuLibraryGetUnifiedFunction { "cuLibraryGetUnifiedFunction", legacy, 12000, 1200 } Module Passed simulated "reads what a loaded library contains"
                (function: *mut *mut c_void, library: CUlibrary, symbol: *const c_char);
            hook cuKernelGetFunction { "cuKernelGetFunction", legacy, 12000, 1200 } Module Charged simulated "may load the kernel's library into the context: its variables are charged by the sizes in the image; its code is measured"
                (function: *mut CUfunction, kernel: CUkernel);
            call cuKernelGetAttribute { "cuKernelGetAttribute", legacy, 12000, 1200 } Module Passed simulated "reads or sets properties of a kernel"
                (value: *mut c_int, attribute: CUfunction_attribute, kernel: CUkernel, device: CUdevice);
            call cuKernelGetLibrary { "cuKernelGetLibrary", legacy, 12050, 1205 } Module Passed simulated "reads or sets properties of a kernel"
                (library: *mut CUlibrary, kernel: CUkernel);
            call cuKernelGetName { "cuKernelGetName", legacy, 12030, 1203 } Module Passed simulated "reads or sets properties of a kernel"
                (name: *mut *const c_char, function: CUkernel);
            call cuKernelGetParamCount { "cuKernelGetParamCount", legacy, 13020, 1302 } Module Passed simulated "reads or sets properties of a kernel"
                (kernel: CUkernel, param_count: *mut usize);
            call cuKernelGetParamInfo { "cuKernelGetParamInfo", legacy, 12040, 1204 } Module Passed simulated "reads or sets properties of a kernel"
                (kernel: CUkernel, param_index: usize, param_offset: *mut usize, param_size: *mut usize);
            call cuKernelSetAttribute { "cuKernelSetAttribute", legacy, 12000, 1200 } Module Passed simulated "reads or sets properties of a kernel"
                (attribute: CUfunction_attribute, value: c_int, kernel: CUkernel, device: CUdevice);
            call cuKernelSetCacheConfig { "cuKernelSetCacheConfig", legacy, 12000, 1200 } Module Passed simulated "reads or sets properties of a kernel"
                (kernel: CUkernel, config: CUfunc_cache, device: CUdevice);
            hook cuFuncLoad { "cuFuncLoad", legacy, 12040, 1204 } Module Tracked simulated "may load code, which is measured"
                (function: CUfunction);
            call cuFuncSetBlockShape { "cuFuncSetBlockShape", legacy, 2000, 1107 } Passes Passed simulated "sets arguments for the launch calls before CUDA 4"
                (hfunc: CUfunction, x: c_int, y: c_int, z: c_int);
            call cuFuncSetSharedSize { "cuFuncSetSharedSize", legacy, 2000, 1107 } Passes Passed simulated "sets arguments for the launch calls before CUDA 4"
                (hfunc: CUfunction, bytes: c_uint);
            call cuParamSetSize { "cuParamSetSize", legacy, 2000, 1107 } Passes Passed simulated "sets arguments for the launch calls before CUDA 4"
                (hfunc: CUfunction, numbytes: c_uint);
            pass cuParamSetTexRef { "cuParamSetTexRef", legacy, 2000, 1107 } Passes Passed stub "sets arguments for the launch calls before CUDA 4";
            call cuParamSetf { "cuParamSetf", legacy, 2000, 1107 } Passes Passed simulated "sets arguments for the launch calls before CUDA 4"
                (hfunc: CUfunction, offset: c_int, value: f32);
            call cuParamSeti { "cuParamSeti", legacy, 2000, 1107 } Passes Passed simulated "sets arguments for the launch calls before CUDA 4"
                (hfunc: CUfunction, offset: c_int, value: c_uint);
            call cuParamSetv { "cuParamSetv", legacy, 2000, 1107 } Passes Passed simulated "sets arguments for the launch calls before CUDA 4"
                (hfunc: CUfunction, offset: c_int, ptr: *mut c_void, numbytes: c_uint);
            call cuFuncGetAttribute { "cuFuncGetAttribute", legacy, 2020, 1107 } Module Passed simulated "reads or sets properties of a function"
                (value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
            call cuFuncGetModule { "cuFuncGetModule", legacy, 11000, 1107 } Module Passed simulated "reads or sets properties of a function"
                (module: *mut CUmodule, function: CUfunction);
            call cuFuncGetName { "cuFuncGetName", legacy, 12030, 1203 } Module Passed simulated "reads or sets properties of a function"
                (name: *mut *const c_char, function: CUfunction);
            call cuFuncGetParamCount { "cuFuncGetParamCount", legacy, 13020, 1302 } Module Passed simulated "reads or sets properties of a function"
                (function: CUfunction, param_count: *mut usize);
            call cuFuncGetParamInfo { "cuFuncGetParamInfo", legacy, 12040, 1204 } Module Passed simulated "reads or sets properties of a function"
                (function: CUfunction, param_index: usize, param_offset: *mut usize, param_size: *mut usize);
            call cuFuncIsLoaded { "cuFuncIsLoaded", legacy, 12040, 1204 } Module Passed simulated "reads or sets properties of a function"
                (state: *mut CUfunctionLoadingState, function: CUfunction);
            call cuFuncSetAttribute { "cuFuncSetAttribute", legacy, 9000, 1107 } Module Passed simulated "reads or sets properties of a function"
                (function: CUfunction, attribute: CUfunction_attribute, value: c_int);
            call cuFuncSetCacheConfig { "cuFuncSetCacheConfig", legacy, 3000, 1107 } Module Passed simulated "reads or sets properties of a function"
                (function: CUfunction, config: CUfunc_cache);
            call cuFuncSetSharedMemConfig { "cuFuncSetSharedMemConfig", legacy, 4020, 1107 } Module Passed simulated "reads or sets properties of a function"
                (function: CUfunction, config: CUsharedconfig);
            call cuLinkAddData { "cuLinkAddData", legacy, 5050, 1107 } Module Passed simulated "links on the host"
                (state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void);
            call cuLinkAddData_v2 { "cuLinkAddData", legacy, 6050, 1107 } Module Passed simulated "links on the host"
                (state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void);
            call cuLinkAddFile { "cuLinkAddFile", legacy, 5050, 1107 } Module Passed simulated "links on the host"
                (state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void);
            call cuLinkAddFile_v2 { "cuLinkAddFile", legacy, 6050, 1107 } Module Passed simulated "links on the host"
                (state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void);
            call cuLinkComplete { "cuLinkComplete", legacy, 5050, 1107 } Module Passed simulated "links on the host"
                (state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize);
            call cuLinkCreate { "cuLinkCreate", legacy, 5050, 1107 } Module Passed simulated "links on the host"
                (num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void, state_out: *mut CUlinkState);
            call cuLinkCreate_v2 { "cuLinkCreate", legacy, 6050, 1107 } Module Passed simulated "links on the host"
                (num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void, state_out: *mut CUlinkState);
            call cuLinkDestroy { "cuLinkDestroy", legacy, 5050, 1107 } Module Passed simulated "links on the host"
                (state: CUlinkState);
            call cuOccupancyAvailableDynamicSMemPerBlock { "cuOccupancyAvailableDynamicSMemPerBlock", legacy, 10020, 1107 } Passes Passed simulated "computes on the host"
                (dynamic_smem_size: *mut usize, function: CUfunction, num_blocks: c_int, block_size: c_int);
            call cuOccupancyMaxActiveBlocksPerMultiprocessor { "cuOccupancyMaxActiveBlocksPerMultiprocessor", legacy, 6050, 1107 } Passes Passed simulated "computes on the host"
                (num_blocks: *mut c_int, function: CUfunction, block_size: c_int, dynamic_smem_size: usize);
            call cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags { "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", legacy, 7000, 1107 } Passes Passed simulated "computes on the host"
                (num_blocks: *mut c_int, function: CUfunction, block_size: c_int, dynamic_smem_size: usize, flags: c_uint);
            call cuOccupancyMaxActiveClusters { "cuOccupancyMaxActiveClusters", legacy, 11070, 1108 } Passes Passed simulated "computes on the host"
                (num_clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);
            call cuOccupancyMaxPotentialBlockSize { "cuOccupancyMaxPotentialBlockSize", legacy, 6050, 1107 } Passes Passed simulated "computes on the host"
                (min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction, block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int);
            call cuOccupancyMaxPotentialBlockSizeWithFlags { "cuOccupancyMaxPotentialBlockSizeWithFlags", legacy, 7000, 1107 } Passes Passed simulated "computes on the host"
                (min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction, block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int, flags: c_uint);
            call cuOccupancyMaxPotentialClusterSize { "cuOccupancyMaxPotentialClusterSize", legacy, 11070, 1108 } Passes Passed simulated "computes on the host"
                (cluster_size: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);

            // Launches.
            hook cuLaunchCooperativeKernel { "cuLaunchCooperativeKernel", legacy, 9000, 1107 } Launches Gated simulated "waits for the container's turn"
                (function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream, kernel_params: *mut *mut c_void);
            hook cuLaunchCooperativeKernel_ptsz { "cuLaunchCooperativeKernel", ptsz, 9000, 1107 } Launches Gated simulated "waits for the container's turn"
                (function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream, kernel_params: *mut *mut c_void);
            hook cuLaunchKernel { "cuLaunchKernel", legacy, 4000, 1107 } Launches Gated simulated "waits for the container's turn"
                (function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void);
            hook cuLaunchKernel_ptsz { "cuLaunchKernel", ptsz, 7000, 1107 } Launches Gated simulated "waits for the container's turn"
                (function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void);
            hook cuLaunchKernelEx { "cuLaunchKernelEx", legacy, 11060, 1108 } Launches Gated simulated "waits for the container's turn"
                (config: *const CUlaunchConfig, function: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void);
            hook cuLaunchKernelEx_ptsz { "cuLaunchKernelEx", ptsz, 11060, 1108 } Launches Gated simulated "waits for the container's turn"
                (config: *const CUlaunchConfig, function: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void);
            hook cuLaunch { "cuLaunch", legacy, 2000, 1107 } Launches Gated simulated "waits for the container's turn"
                (f: CUfunction);
            hook cuLaunchGrid { "cuLaunchGrid", legacy, 2000, 1107 } Launches Gated simulated "waits for the container's turn"
                (f: CUfunction, grid_width: c_int, grid_height: c_int);
            hook cuLaunchGridAsync { "cuLaunchGridAsync", legacy, 2000, 1107 } Launches Gated simulated "waits for the container's turn"
                (f: CUfunction, grid_width: c_int, grid_height: c_int, stream: CUstream);
            hook cuLaunchCooperativeKernelMultiDevice { "cuLaunchCooperativeKernelMultiDevice", legacy, 9000, 1107 } Launches Gated simulated "one launch on each of its GPUs; waits for the container's turn on the first"
                (launch_params_list: *mut CUDA_LAUNCH_PARAMS, num_devices: c_uint, flags: c_uint);
            hook cuGraphLaunch { "cuGraphLaunch", legacy, 10000, 1107 } Launches Gated simulated "one launch with the cost of the whole graph: waits for the container's turn; the most memory that the graph can take is charged, unless it has it already"
                (graph: CUgraphExec, stream: CUstream);
            hook cuGraphLaunch_ptsz { "cuGraphLaunch", ptsz, 10000, 1107 } Launches Gated simulated "one launch with the cost of the whole graph: waits for the container's turn; the most memory that the graph can take is charged, unless it has it already"
                (graph_exec: CUgraphExec, stream: CUstream);
            hook cuGraphUpload { "cuGraphUpload", legacy, 11010, 1107 } Launches Charged simulated "the most memory that the graph can take is charged, unless it has it already"
                (graph: CUgraphExec, stream: CUstream);
            hook cuGraphUpload_ptsz { "cuGraphUpload", ptsz, 11010, 1107 } Launches Charged simulated "the most memory that the graph can take is charged, unless it has it already"
                (graph_exec: CUgraphExec, stream: CUstream);
            call cuLaunchHostFunc { "cuLaunchHostFunc", legacy, 10000, 1107 } Launches Passed simulated "runs on the host in stream order"
                (stream: CUstream, function: CUhostFn, user_data: *mut c_void);
            call cuLaunchHostFunc_ptsz { "cuLaunchHostFunc", ptsz, 10000, 1107 } Launches Passed simulated "runs on the host in stream order"
                (stream: CUstream, function: CUhostFn, user_data: *mut c_void);
            call cuLaunchHostFunc_v2 { "cuLaunchHostFunc", legacy, 13010, 1302 } Launches Passed simulated "runs on the host in stream order"
                (stream: CUstream, function: CUhostFn, user_data: *mut c_void, sync_mode: c_uint);
            call cuLaunchHostFunc_v2_ptsz { "cuLaunchHostFunc", ptsz, 13010, 1302 } Launches Passed simulated "runs on the host in stream order"
                (stream: CUstream, function: CUhostFn, user_data: *mut c_void, sync_mode: c_uint);

            // Copies.
            hook cuMemcpy { "cuMemcpy", legacy, 4000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize);
            hook cuMemcpy_ptds { "cuMemcpy", ptds, 7000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize);
            hook cuMemcpy2D_v2 { "cuMemcpy2D", legacy, 3020, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY2D);
            hook cuMemcpy2D_v2_ptds { "cuMemcpy2D", ptds, 7000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY2D);
            hook cuMemcpy2DAsync_v2 { "cuMemcpy2DAsync", legacy, 3020, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY2D, stream: CUstream);
            hook cuMemcpy2DAsync_v2_ptsz { "cuMemcpy2DAsync", ptsz, 7000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY2D, stream: CUstream);
            hook cuMemcpy2DUnaligned_v2 { "cuMemcpy2DUnaligned", legacy, 3020, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY2D);
            hook cuMemcpy2DUnaligned_v2_ptds { "cuMemcpy2DUnaligned", ptds, 7000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY2D);
            hook cuMemcpyAsync { "cuMemcpyAsync", legacy, 4000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, stream: CUstream);
            hook cuMemcpyAsync_ptsz { "cuMemcpyAsync", ptsz, 7000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, stream: CUstream);
            hook cuMemcpyDtoD_v2 { "cuMemcpyDtoD", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize);
            hook cuMemcpyDtoD_v2_ptds { "cuMemcpyDtoD", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize);
            hook cuMemcpyDtoDAsync_v2 { "cuMemcpyDtoDAsync", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
            hook cuMemcpyDtoDAsync_v2_ptsz { "cuMemcpyDtoDAsync", ptsz, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
            call cuMemcpyDtoH_v2 { "cuMemcpyDtoH", legacy, 3020, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize);
            call cuMemcpyDtoH_v2_ptds { "cuMemcpyDtoH", ptds, 7000, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize);
            call cuMemcpyDtoHAsync_v2 { "cuMemcpyDtoHAsync", legacy, 3020, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
            call cuMemcpyDtoHAsync_v2_ptsz { "cuMemcpyDtoHAsync", ptsz, 7000, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
            call cuMemcpyHtoD_v2 { "cuMemcpyHtoD", legacy, 3020, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize);
            call cuMemcpyHtoD_v2_ptds { "cuMemcpyHtoD", ptds, 7000, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize);
            call cuMemcpyHtoDAsync_v2 { "cuMemcpyHtoDAsync", legacy, 3020, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, stream: CUstream);
            call cuMemcpyHtoDAsync_v2_ptsz { "cuMemcpyHtoDAsync", ptsz, 7000, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, stream: CUstream);
            pass cuMemcpy2D { "cuMemcpy2D", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemcpy2DAsync { "cuMemcpy2DAsync", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemcpy2DUnaligned { "cuMemcpy2DUnaligned", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemcpy3D { "cuMemcpy3D", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            hook cuMemcpy3D_v2 { "cuMemcpy3D", legacy, 3020, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY3D);
            hook cuMemcpy3D_v2_ptds { "cuMemcpy3D", ptds, 7000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY3D);
            pass cuMemcpy3DAsync { "cuMemcpy3DAsync", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            hook cuMemcpy3DAsync_v2 { "cuMemcpy3DAsync", legacy, 3020, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY3D, stream: CUstream);
            hook cuMemcpy3DAsync_v2_ptsz { "cuMemcpy3DAsync", ptsz, 7000, 1107 } Copies Gated simulated "a copy within the GPU waits for the container's turn; a copy between host and GPU does not"
                (copy: *const CUDA_MEMCPY3D, stream: CUstream);
            hook cuMemcpy3DBatchAsync { "cuMemcpy3DBatchAsync", legacy, 12080, 1208 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong, stream: CUstream);
            hook cuMemcpy3DBatchAsync_ptsz { "cuMemcpy3DBatchAsync", ptsz, 12080, 1208 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong, stream: CUstream);
            hook cuMemcpy3DBatchAsync_v2 { "cuMemcpy3DBatchAsync", legacy, 13000, 1300 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream);
            hook cuMemcpy3DBatchAsync_v2_ptsz { "cuMemcpy3DBatchAsync", ptsz, 13000, 1300 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream);
            pass cuMemcpy3DPeer { "cuMemcpy3DPeer", legacy, 4000, 1107 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            pass cuMemcpy3DPeer_ptds { "cuMemcpy3DPeer", ptds, 7000, 1107 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            pass cuMemcpy3DPeerAsync { "cuMemcpy3DPeerAsync", legacy, 4000, 1107 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            pass cuMemcpy3DPeerAsync_ptsz { "cuMemcpy3DPeerAsync", ptsz, 7000, 1107 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            hook cuMemcpy3DWithAttributesAsync { "cuMemcpy3DWithAttributesAsync", legacy, 13020, 1302 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream);
            hook cuMemcpy3DWithAttributesAsync_ptsz { "cuMemcpy3DWithAttributesAsync", ptsz, 13020, 1302 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream);
            pass cuMemcpyAtoA { "cuMemcpyAtoA", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            hook cuMemcpyAtoA_v2 { "cuMemcpyAtoA", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize, byte_count: usize);
            hook cuMemcpyAtoA_v2_ptds { "cuMemcpyAtoA", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize, byte_count: usize);
            pass cuMemcpyAtoD { "cuMemcpyAtoD", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            hook cuMemcpyAtoD_v2 { "cuMemcpyAtoD", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize);
            hook cuMemcpyAtoD_v2_ptds { "cuMemcpyAtoD", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize);
            pass cuMemcpyAtoH { "cuMemcpyAtoH", legacy, 2000, 1107 } Copies Passed stub "between host and GPU: work of the copy engines is not gated";
            call cuMemcpyAtoH_v2 { "cuMemcpyAtoH", legacy, 3020, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize);
            call cuMemcpyAtoH_v2_ptds { "cuMemcpyAtoH", ptds, 7000, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize);
            pass cuMemcpyAtoHAsync { "cuMemcpyAtoHAsync", legacy, 2000, 1107 } Copies Passed stub "between host and GPU: work of the copy engines is not gated";
            call cuMemcpyAtoHAsync_v2 { "cuMemcpyAtoHAsync", legacy, 3020, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, stream: CUstream);
            call cuMemcpyAtoHAsync_v2_ptsz { "cuMemcpyAtoHAsync", ptsz, 7000, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, stream: CUstream);
            hook cuMemcpyBatchAsync { "cuMemcpyBatchAsync", legacy, 12080, 1208 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize, stream: CUstream);
            hook cuMemcpyBatchAsync_ptsz { "cuMemcpyBatchAsync", ptsz, 12080, 1208 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize, stream: CUstream);
            hook cuMemcpyBatchAsync_v2 { "cuMemcpyBatchAsync", legacy, 13000, 1300 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, stream: CUstream);
            hook cuMemcpyBatchAsync_v2_ptsz { "cuMemcpyBatchAsync", ptsz, 13000, 1300 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, stream: CUstream);
            pass cuMemcpyDtoA { "cuMemcpyDtoA", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            hook cuMemcpyDtoA_v2 { "cuMemcpyDtoA", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize);
            hook cuMemcpyDtoA_v2_ptds { "cuMemcpyDtoA", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize);
            pass cuMemcpyDtoD { "cuMemcpyDtoD", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemcpyDtoDAsync { "cuMemcpyDtoDAsync", legacy, 3000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemcpyDtoH { "cuMemcpyDtoH", legacy, 2000, 1107 } Copies Passed stub "between host and GPU: work of the copy engines is not gated";
            pass cuMemcpyDtoHAsync { "cuMemcpyDtoHAsync", legacy, 2000, 1107 } Copies Passed stub "between host and GPU: work of the copy engines is not gated";
            pass cuMemcpyHtoA { "cuMemcpyHtoA", legacy, 2000, 1107 } Copies Passed stub "between host and GPU: work of the copy engines is not gated";
            call cuMemcpyHtoA_v2 { "cuMemcpyHtoA", legacy, 3020, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize);
            call cuMemcpyHtoA_v2_ptds { "cuMemcpyHtoA", ptds, 7000, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize);
            pass cuMemcpyHtoAAsync { "cuMemcpyHtoAAsync", legacy, 2000, 1107 } Copies Passed stub "between host and GPU: work of the copy engines is not gated";
            call cuMemcpyHtoAAsync_v2 { "cuMemcpyHtoAAsync", legacy, 3020, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, stream: CUstream);
            call cuMemcpyHtoAAsync_v2_ptsz { "cuMemcpyHtoAAsync", ptsz, 7000, 1107 } Copies Passed simulated "between host and GPU: work of the copy engines is not gated"
                (dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, stream: CUstream);
            pass cuMemcpyHtoD { "cuMemcpyHtoD", legacy, 2000, 1107 } Copies Passed stub "between host and GPU: work of the copy engines is not gated";
            pass cuMemcpyHtoDAsync { "cuMemcpyHtoDAsync", legacy, 2000, 1107 } Copies Passed stub "between host and GPU: work of the copy engines is not gated";
            pass cuMemcpyPeer { "cuMemcpyPeer", legacy, 4000, 1107 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            pass cuMemcpyPeer_ptds { "cuMemcpyPeer", ptds, 7000, 1107 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            pass cuMemcpyPeerAsync { "cuMemcpyPeerAsync", legacy, 4000, 1107 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            pass cuMemcpyPeerAsync_ptsz { "cuMemcpyPeerAsync", ptsz, 7000, 1107 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            hook cuMemcpyWithAttributesAsync { "cuMemcpyWithAttributesAsync", legacy, 13020, 1302 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, stream: CUstream);
            hook cuMemcpyWithAttributesAsync_ptsz { "cuMemcpyWithAttributesAsync", ptsz, 13020, 1302 } Copies Gated simulated "waits for the container's turn, unless all its copies are between host and GPU"
                (dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, stream: CUstream);
            hook cuMemsetD2D8_v2 { "cuMemsetD2D8", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: u8, width: usize, height: usize);
            hook cuMemsetD2D8_v2_ptds { "cuMemsetD2D8", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: u8, width: usize, height: usize);
            hook cuMemsetD2D8Async { "cuMemsetD2D8Async", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
            hook cuMemsetD2D8Async_ptsz { "cuMemsetD2D8Async", ptsz, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
            hook cuMemsetD2D16_v2 { "cuMemsetD2D16", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: u16, width: usize, height: usize);
            hook cuMemsetD2D16_v2_ptds { "cuMemsetD2D16", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: u16, width: usize, height: usize);
            hook cuMemsetD2D16Async { "cuMemsetD2D16Async", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: u16, width: usize, height: usize, stream: CUstream);
            hook cuMemsetD2D16Async_ptsz { "cuMemsetD2D16Async", ptsz, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: u16, width: usize, height: usize, stream: CUstream);
            hook cuMemsetD2D32_v2 { "cuMemsetD2D32", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: c_uint, width: usize, height: usize);
            hook cuMemsetD2D32_v2_ptds { "cuMemsetD2D32", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: c_uint, width: usize, height: usize);
            hook cuMemsetD2D32Async { "cuMemsetD2D32Async", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream);
            hook cuMemsetD2D32Async_ptsz { "cuMemsetD2D32Async", ptsz, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, dst_pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream);
            hook cuMemsetD8_v2 { "cuMemsetD8", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: u8, count: usize);
            hook cuMemsetD8_v2_ptds { "cuMemsetD8", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: u8, count: usize);
            hook cuMemsetD8Async { "cuMemsetD8Async", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: u8, count: usize, stream: CUstream);
            hook cuMemsetD8Async_ptsz { "cuMemsetD8Async", ptsz, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: u8, count: usize, stream: CUstream);
            hook cuMemsetD16_v2 { "cuMemsetD16", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: u16, count: usize);
            hook cuMemsetD16_v2_ptds { "cuMemsetD16", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: u16, count: usize);
            hook cuMemsetD16Async { "cuMemsetD16Async", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: u16, count: usize, stream: CUstream);
            hook cuMemsetD16Async_ptsz { "cuMemsetD16Async", ptsz, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: u16, count: usize, stream: CUstream);
            hook cuMemsetD32_v2 { "cuMemsetD32", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: c_uint, count: usize);
            hook cuMemsetD32_v2_ptds { "cuMemsetD32", ptds, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: c_uint, count: usize);
            hook cuMemsetD32Async { "cuMemsetD32Async", legacy, 3020, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
            hook cuMemsetD32Async_ptsz { "cuMemsetD32Async", ptsz, 7000, 1107 } Copies Gated simulated "computes on the GPU: waits for the container's turn"
                (dst_device: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
            pass cuMemsetD2D8 { "cuMemsetD2D8", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemsetD2D16 { "cuMemsetD2D16", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemsetD2D32 { "cuMemsetD2D32", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemsetD8 { "cuMemsetD8", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemsetD16 { "cuMemsetD16", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemsetD32 { "cuMemsetD32", legacy, 2000, 1107 } Copies Passed stub "32-bit addresses, from before CUDA 3.2: not gated";
            pass cuMemDiscardAndPrefetchBatchAsync { "cuMemDiscardAndPrefetchBatchAsync", legacy, 13000, 1300 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemDiscardAndPrefetchBatchAsync_ptsz { "cuMemDiscardAndPrefetchBatchAsync", ptsz, 13000, 1300 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemDiscardBatchAsync { "cuMemDiscardBatchAsync", legacy, 13000, 1300 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemDiscardBatchAsync_ptsz { "cuMemDiscardBatchAsync", ptsz, 13000, 1300 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemPrefetchAsync { "cuMemPrefetchAsync", legacy, 8000, 1107 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemPrefetchAsync_ptsz { "cuMemPrefetchAsync", ptsz, 8000, 1107 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemPrefetchAsync_v2 { "cuMemPrefetchAsync", legacy, 12020, 1202 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemPrefetchAsync_v2_ptsz { "cuMemPrefetchAsync", ptsz, 12020, 1202 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemPrefetchBatchAsync { "cuMemPrefetchBatchAsync", legacy, 13000, 1300 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuMemPrefetchBatchAsync_ptsz { "cuMemPrefetchBatchAsync", ptsz, 13000, 1300 } Copies Passed stub "there are no managed ranges; system memory moves as without cgpu, a documented limit";
            pass cuFabricCpyBatchAsync { "cuFabricCpyBatchAsync", legacy, 13050, 1305 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            pass cuFabricCpyBatchAsync_ptsz { "cuFabricCpyBatchAsync", ptsz, 13050, 1305 } Copies Passed stub "between GPUs: work of the copy engines is not gated";
            pass cuMemBatchDecompressAsync { "cuMemBatchDecompressAsync", legacy, 12060, 1208 } Copies Passed stub "decompression is not gated";
            pass cuMemBatchDecompressAsync_ptsz { "cuMemBatchDecompressAsync", ptsz, 12060, 1208 } Copies Passed stub "decompression is not gated";

            // Streams.
            call cuStreamCreate { "cuStreamCreate", legacy, 2000, 1107 } Stream Passed simulated "a stream's own memory is implicit"
                (stream: *mut CUstream, flags: c_uint);
            call cuStreamCreateWithPriority { "cuStreamCreateWithPriority", legacy, 5050, 1107 } Stream Passed simulated "a stream's own memory is implicit"
                (stream: *mut CUstream, flags: c_uint, priority: c_int);
            hook cuStreamDestroy { "cuStreamDestroy", legacy, 2000, 1107 } Stream Tracked simulated "ends a capture in the stream; the stream's own memory is implicit"
                (stream: CUstream);
            hook cuStreamDestroy_v2 { "cuStreamDestroy", legacy, 4000, 1107 } Stream Tracked simulated "ends a capture in the stream; the stream's own memory is implicit"
                (stream: CUstream);
            call cuStreamQuery { "cuStreamQuery", legacy, 2000, 1107 } Stream Passed simulated "waits for work that has already been admitted"
                (stream: CUstream);
            call cuStreamQuery_ptsz { "cuStreamQuery", ptsz, 7000, 1107 } Stream Passed simulated "waits for work that has already been admitted"
                (stream: CUstream);
            hook cuStreamSynchronize { "cuStreamSynchronize", legacy, 2000, 1107 } Stream Tracked simulated "waits for work that has already been admitted; the driver may trim pools, so their sizes are read again"
                (stream: CUstream);
            hook cuStreamSynchronize_ptsz { "cuStreamSynchronize", ptsz, 7000, 1107 } Stream Tracked simulated "waits for work that has already been admitted; the driver may trim pools, so their sizes are read again"
                (stream: CUstream);
            call cuStreamWaitEvent { "cuStreamWaitEvent", legacy, 3020, 1107 } Stream Passed simulated "orders work that has already been admitted"
                (stream: CUstream, event: CUevent, flags: c_uint);
            call cuStreamWaitEvent_ptsz { "cuStreamWaitEvent", ptsz, 7000, 1107 } Stream Passed simulated "orders work that has already been admitted"
                (stream: CUstream, event: CUevent, flags: c_uint);
            call cuStreamGetCtx { "cuStreamGetCtx", legacy, 9020, 1107 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, ctx: *mut CUcontext);
            call cuStreamGetCtx_ptsz { "cuStreamGetCtx", ptsz, 9020, 1107 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, ctx: *mut CUcontext);
            call cuStreamGetCtx_v2 { "cuStreamGetCtx", legacy, 12050, 1205 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, ctx: *mut CUcontext, green_ctx: *mut CUgreenCtx);
            call cuStreamGetCtx_v2_ptsz { "cuStreamGetCtx", ptsz, 12050, 1205 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, ctx: *mut CUcontext, green_ctx: *mut CUgreenCtx);
            call cuStreamGetDevice { "cuStreamGetDevice", legacy, 12080, 1208 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, device: *mut CUdevice);
            call cuStreamGetDevice_ptsz { "cuStreamGetDevice", ptsz, 12080, 1208 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, device: *mut CUdevice);
            call cuStreamGetFlags { "cuStreamGetFlags", legacy, 5050, 1107 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, flags: *mut c_uint);
            call cuStreamGetFlags_ptsz { "cuStreamGetFlags", ptsz, 7000, 1107 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, flags: *mut c_uint);
            call cuStreamGetId { "cuStreamGetId", legacy, 12000, 1200 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, stream_id: *mut c_ulonglong);
            call cuStreamGetId_ptsz { "cuStreamGetId", ptsz, 12000, 1200 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, stream_id: *mut c_ulonglong);
            call cuStreamGetPriority { "cuStreamGetPriority", legacy, 5050, 1107 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, priority: *mut c_int);
            call cuStreamGetPriority_ptsz { "cuStreamGetPriority", ptsz, 7000, 1107 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, priority: *mut c_int);
            call cuStreamGetDevResource { "cuStreamGetDevResource", legacy, 13010, 1301 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, resource: *mut CUdevResource, kind: CUdevResourceType);
            call cuStreamGetDevResource_ptsz { "cuStreamGetDevResource", ptsz, 13010, 1301 } Stream Passed simulated "reads a property of a stream"
                (stream: CUstream, resource: *mut CUdevResource, kind: CUdevResourceType);
            call cuStreamAddCallback { "cuStreamAddCallback", legacy, 5000, 1107 } Stream Passed simulated "runs on the host in stream order"
                (stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint);
            call cuStreamAddCallback_ptsz { "cuStreamAddCallback", ptsz, 7000, 1107 } Stream Passed simulated "runs on the host in stream order"
                (stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint);
            call cuStreamWaitValue32 { "cuStreamWaitValue32", legacy, 8000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
            call cuStreamWaitValue32_ptsz { "cuStreamWaitValue32", ptsz, 8000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
            call cuStreamWaitValue32_v2 { "cuStreamWaitValue32", legacy, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
            call cuStreamWaitValue32_v2_ptsz { "cuStreamWaitValue32", ptsz, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
            call cuStreamWaitValue64 { "cuStreamWaitValue64", legacy, 9000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
            call cuStreamWaitValue64_ptsz { "cuStreamWaitValue64", ptsz, 9000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
            call cuStreamWaitValue64_v2 { "cuStreamWaitValue64", legacy, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
            call cuStreamWaitValue64_v2_ptsz { "cuStreamWaitValue64", ptsz, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
            call cuStreamWriteValue32 { "cuStreamWriteValue32", legacy, 8000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
            call cuStreamWriteValue32_ptsz { "cuStreamWriteValue32", ptsz, 8000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
            call cuStreamWriteValue32_v2 { "cuStreamWriteValue32", legacy, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
            call cuStreamWriteValue32_v2_ptsz { "cuStreamWriteValue32", ptsz, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
            call cuStreamWriteValue64 { "cuStreamWriteValue64", legacy, 9000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
            call cuStreamWriteValue64_ptsz { "cuStreamWriteValue64", ptsz, 9000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
            call cuStreamWriteValue64_v2 { "cuStreamWriteValue64", legacy, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
            call cuStreamWriteValue64_v2_ptsz { "cuStreamWriteValue64", ptsz, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order; the shim uses the same call for its own writes"
                (stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
            call cuStreamBatchMemOp { "cuStreamBatchMemOp", legacy, 8000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order"
                (stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint);
            call cuStreamBatchMemOp_ptsz { "cuStreamBatchMemOp", ptsz, 8000, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order"
                (stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint);
            call cuStreamBatchMemOp_v2 { "cuStreamBatchMemOp", legacy, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order"
                (stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint);
            call cuStreamBatchMemOp_v2_ptsz { "cuStreamBatchMemOp", ptsz, 11070, 1107 } Stream Passed simulated "waits for or writes values in memory, in stream order"
                (stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint);
            pass cuStreamAttachMemAsync { "cuStreamAttachMemAsync", legacy, 6000, 1107 } Managed Passed stub "attaches managed memory, of which there is none";
            pass cuStreamAttachMemAsync_ptsz { "cuStreamAttachMemAsync", ptsz, 7000, 1107 } Managed Passed stub "attaches managed memory, of which there is none";
            pass cuStreamCopyAttributes { "cuStreamCopyAttributes", legacy, 11000, 1107 } Stream Passed stub "reads or sets attributes of a stream";
            pass cuStreamCopyAttributes_ptsz { "cuStreamCopyAttributes", ptsz, 11000, 1107 } Stream Passed stub "reads or sets attributes of a stream";
            pass cuStreamGetAttribute { "cuStreamGetAttribute", legacy, 11000, 1107 } Stream Passed stub "reads or sets attributes of a stream";
            pass cuStreamGetAttribute_ptsz { "cuStreamGetAttribute", ptsz, 11000, 1107 } Stream Passed stub "reads or sets attributes of a stream";
            pass cuStreamSetAttribute { "cuStreamSetAttribute", legacy, 11000, 1107 } Stream Passed stub "reads or sets attributes of a stream";
            pass cuStreamSetAttribute_ptsz { "cuStreamSetAttribute", ptsz, 11000, 1107 } Stream Passed stub "reads or sets attributes of a stream";

            // Stream capture.
            call cuStreamGetCaptureInfo { "cuStreamGetCaptureInfo", legacy, 10010, 1107 } Stream Passed simulated "reads whether a stream is capturing; the shim calls it before it adds its own work to the stream"
                (stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t);
            call cuStreamGetCaptureInfo_ptsz { "cuStreamGetCaptureInfo", ptsz, 10010, 1107 } Stream Passed simulated "reads whether a stream is capturing; the shim calls it before it adds its own work to the stream"
                (stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t);
            call cuStreamGetCaptureInfo_v2 { "cuStreamGetCaptureInfo", legacy, 11030, 1107 } Stream Passed simulated "reads whether a stream is capturing; the shim calls it before it adds its own work to the stream"
                (stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize);
            call cuStreamGetCaptureInfo_v2_ptsz { "cuStreamGetCaptureInfo", ptsz, 11030, 1107 } Stream Passed simulated "reads whether a stream is capturing; the shim calls it before it adds its own work to the stream"
                (stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize);
            call cuStreamGetCaptureInfo_v3 { "cuStreamGetCaptureInfo", legacy, 12030, 1203 } Stream Passed simulated "reads whether a stream is capturing; the shim calls it before it adds its own work to the stream"
                (stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize);
            call cuStreamGetCaptureInfo_v3_ptsz { "cuStreamGetCaptureInfo", ptsz, 12030, 1203 } Stream Passed simulated "reads whether a stream is capturing; the shim calls it before it adds its own work to the stream"
                (stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize);
            call cuStreamIsCapturing { "cuStreamIsCapturing", legacy, 10000, 1107 } Stream Passed simulated "reads whether a stream is capturing; the shim calls it before it adds its own work to the stream"
                (stream: CUstream, capture_status: *mut CUstreamCaptureStatus);
            call cuStreamIsCapturing_ptsz { "cuStreamIsCapturing", ptsz, 10000, 1107 } Stream Passed simulated "reads whether a stream is capturing; the shim calls it before it adds its own work to the stream"
                (stream: CUstream, capture_status: *mut CUstreamCaptureStatus);
            call cuThreadExchangeStreamCaptureMode { "cuThreadExchangeStreamCaptureMode", legacy, 10010, 1107 } Stream Passed simulated "exchanges the thread's capture mode"
                (mode: *mut CUstreamCaptureMode);
            hook cuStreamBeginCapture { "cuStreamBeginCapture", legacy, 10000, 1107 } Stream Tracked simulated "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream);
            hook cuStreamBeginCapture_ptsz { "cuStreamBeginCapture", ptsz, 10000, 1107 } Stream Tracked simulated "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream);
            hook cuStreamBeginCapture_v2 { "cuStreamBeginCapture", legacy, 10010, 1107 } Stream Tracked simulated "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream, mode: CUstreamCaptureMode);
            hook cuStreamBeginCapture_v2_ptsz { "cuStreamBeginCapture", ptsz, 10010, 1107 } Stream Tracked simulated "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream, mode: CUstreamCaptureMode);
            call cuStreamBeginCaptureToCig { "cuStreamBeginCaptureToCig", legacy, 13010, 1302 } Stream Passed stub "records a graph; the shim adds nothing to a capturing stream"
                (stream: CUstream, stream_cig_capture_params: *mut CUstreamCigCaptureParams);
            call cuStreamBeginCaptureToCig_ptsz { "cuStreamBeginCaptureToCig", ptsz, 13010, 1302 } Stream Passed stub "records a graph; the shim adds nothing to a capturing stream"
                (stream: CUstream, stream_cig_capture_params: *mut CUstreamCigCaptureParams);
            hook cuStreamBeginCaptureToGraph { "cuStreamBeginCaptureToGraph", legacy, 12030, 1203 } Stream Tracked simulated "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode);
            hook cuStreamBeginCaptureToGraph_ptsz { "cuStreamBeginCaptureToGraph", ptsz, 12030, 1203 } Stream Tracked simulated "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode);
            hook cuStreamBeginRecaptureToGraph { "cuStreamBeginRecaptureToGraph", legacy, 13030, 1303 } Stream Tracked stub "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream, mode: CUstreamCaptureMode, graph: CUgraph, callback_func: CUgraphRecaptureCallback, user_data: *mut c_void);
            hook cuStreamBeginRecaptureToGraph_ptsz { "cuStreamBeginRecaptureToGraph", ptsz, 13030, 1303 } Stream Tracked stub "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream, mode: CUstreamCaptureMode, graph: CUgraph, callback_func: CUgraphRecaptureCallback, user_data: *mut c_void);
            hook cuStreamEndCapture { "cuStreamEndCapture", legacy, 10000, 1107 } Stream Tracked simulated "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream, graph: *mut CUgraph);
            hook cuStreamEndCapture_ptsz { "cuStreamEndCapture", ptsz, 10000, 1107 } Stream Tracked simulated "records a graph; during a global capture the shim makes no driver call that would break it"
                (stream: CUstream, graph: *mut CUgraph);
            call cuStreamEndCaptureToCig { "cuStreamEndCaptureToCig", legacy, 13010, 1302 } Stream Passed stub "records a graph; the shim adds nothing to a capturing stream"
                (stream: CUstream);
            call cuStreamEndCaptureToCig_ptsz { "cuStreamEndCaptureToCig", ptsz, 13010, 1302 } Stream Passed stub "records a graph; the shim adds nothing to a capturing stream"
                (stream: CUstream);
            call cuStreamUpdateCaptureDependencies { "cuStreamUpdateCaptureDependencies", legacy, 11030, 1107 } Stream Passed simulated "records a graph"
                (stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize, flags: c_uint);
            call cuStreamUpdateCaptureDependencies_ptsz { "cuStreamUpdateCaptureDependencies", ptsz, 11030, 1107 } Stream Passed simulated "records a graph"
                (stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize, flags: c_uint);
            call cuStreamUpdateCaptureDependencies_v2 { "cuStreamUpdateCaptureDependencies", legacy, 12030, 1203 } Stream Passed simulated "records a graph"
                (stream: CUstream, dependencies: *mut CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, flags: c_uint);
            call cuStreamUpdateCaptureDependencies_v2_ptsz { "cuStreamUpdateCaptureDependencies", ptsz, 12030, 1203 } Stream Passed simulated "records a graph"
                (stream: CUstream, dependencies: *mut CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, flags: c_uint);

            // Events.
            call cuEventCreate { "cuEventCreate", legacy, 2000, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (event: *mut CUevent, flags: c_uint);
            call cuEventDestroy { "cuEventDestroy", legacy, 2000, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (event: CUevent);
            call cuEventDestroy_v2 { "cuEventDestroy", legacy, 4000, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (event: CUevent);
            call cuEventElapsedTime { "cuEventElapsedTime", legacy, 2000, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (milliseconds: *mut f32, start: CUevent, end: CUevent);
            call cuEventElapsedTime_v2 { "cuEventElapsedTime", legacy, 12080, 1208 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (milliseconds: *mut f32, start: CUevent, end: CUevent);
            call cuEventQuery { "cuEventQuery", legacy, 2000, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (event: CUevent);
            call cuEventRecord { "cuEventRecord", legacy, 2000, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (event: CUevent, stream: CUstream);
            call cuEventRecord_ptsz { "cuEventRecord", ptsz, 7000, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (event: CUevent, stream: CUstream);
            call cuEventRecordWithFlags { "cuEventRecordWithFlags", legacy, 11010, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (event: CUevent, stream: CUstream, flags: c_uint);
            call cuEventRecordWithFlags_ptsz { "cuEventRecordWithFlags", ptsz, 11010, 1107 } Stream Passed simulated "events in stream order; the shim measures GPU time with events of its own"
                (event: CUevent, stream: CUstream, flags: c_uint);
            hook cuEventSynchronize { "cuEventSynchronize", legacy, 2000, 1107 } Stream Tracked simulated "waits for work that has already been admitted; the driver may trim pools, so their sizes are read again"
                (event: CUevent);

            // Graphs.
            hook cuGraphAddMemAllocNode { "cuGraphAddMemAllocNode", legacy, 11040, 1107 } Allocates Tracked simulated "takes no memory before the graph is launched; managed memory is refused"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
            hook cuGraphAddNode { "cuGraphAddNode", legacy, 12020, 1202 } Allocates Tracked simulated "takes no memory before the graph is launched; bodies of a conditional node are recorded; managed memory is refused"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *mut CUgraphNodeParams);
            hook cuGraphAddNode_v2 { "cuGraphAddNode", legacy, 12030, 1203 } Allocates Tracked simulated "takes no memory before the graph is launched; bodies of a conditional node are recorded; managed memory is refused"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, node_params: *mut CUgraphNodeParams);
            hook cuGraphAddNode_v3 { "cuGraphAddNode", legacy, 13040, 1304 } Allocates Tracked simulated "takes no memory before the graph is launched; bodies of a conditional node are recorded; managed memory is refused"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, node_params: *mut CUgraphNodeParams);
            call cuGraphAddMemFreeNode { "cuGraphAddMemFreeNode", legacy, 11040, 1107 } Frees Passed simulated "memory freed in a graph stays reserved for graphs"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, dptr: CUdeviceptr);
            call cuGraphDestroy { "cuGraphDestroy", legacy, 10000, 1107 } Frees Passed simulated "memory of the executable graph stays reserved for graphs"
                (graph: CUgraph);
            hook cuGraphExecDestroy { "cuGraphExecDestroy", legacy, 10000, 1107 } Frees Tracked simulated "forgets the executable graph; its memory stays reserved for graphs"
                (graph_exec: CUgraphExec);
            hook cuGraphInstantiate { "cuGraphInstantiate", legacy, 10000, 1107 } Passes Charged simulated "records the most memory that the graph and its parts can take, and charges what is taken at once; its other memory is implicit"
                (graph_exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log_buffer: *mut c_char, buffer_size: usize);
            hook cuGraphInstantiate_v2 { "cuGraphInstantiate", legacy, 11000, 1107 } Passes Charged simulated "records the most memory that the graph and its parts can take, and charges what is taken at once; its other memory is implicit"
                (graph_exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log_buffer: *mut c_char, buffer_size: usize);
            hook cuGraphInstantiateWithFlags { "cuGraphInstantiateWithFlags", legacy, 11040, 1107 } Passes Charged simulated "records the most memory that the graph and its parts can take, and charges what is taken at once; its other memory is implicit"
                (graph_exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
            hook cuGraphInstantiateWithParams { "cuGraphInstantiateWithParams", legacy, 12000, 1200 } Passes Charged simulated "records the most memory that the graph and its parts can take, and charges what is taken at once; its other memory is implicit"
                (graph_exec: *mut CUgraphExec, graph: CUgraph, instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
            hook cuGraphInstantiateWithParams_ptsz { "cuGraphInstantiateWithParams", ptsz, 12000, 1200 } Passes Charged simulated "records the most memory that the graph and its parts can take, and charges what is taken at once; its other memory is implicit"
                (graph_exec: *mut CUgraphExec, graph: CUgraph, instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
            call cuGraphAddBatchMemOpNode { "cuGraphAddBatchMemOpNode", legacy, 11070, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS);
            call cuGraphAddChildGraphNode { "cuGraphAddChildGraphNode", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, child_graph: CUgraph);
            call cuGraphAddDependencies { "cuGraphAddDependencies", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize);
            call cuGraphAddDependencies_v2 { "cuGraphAddDependencies", legacy, 12030, 1203 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData, num_dependencies: usize);
            call cuGraphAddEmptyNode { "cuGraphAddEmptyNode", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize);
            call cuGraphAddEventRecordNode { "cuGraphAddEventRecordNode", legacy, 11010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, event: CUevent);
            call cuGraphAddEventWaitNode { "cuGraphAddEventWaitNode", legacy, 11010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, event: CUevent);
            call cuGraphAddExternalSemaphoresSignalNode { "cuGraphAddExternalSemaphoresSignalNode", legacy, 11020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS);
            call cuGraphAddExternalSemaphoresWaitNode { "cuGraphAddExternalSemaphoresWaitNode", legacy, 11020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_EXT_SEM_WAIT_NODE_PARAMS);
            call cuGraphAddHostNode { "cuGraphAddHostNode", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_HOST_NODE_PARAMS);
            call cuGraphAddKernelNode { "cuGraphAddKernelNode", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1);
            call cuGraphAddKernelNode_v2 { "cuGraphAddKernelNode", legacy, 12000, 1200 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS_v2);
            call cuGraphAddMemcpyNode { "cuGraphAddMemcpyNode", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext);
            call cuGraphAddMemsetNode { "cuGraphAddMemsetNode", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext);
            call cuGraphBatchMemOpNodeGetParams { "cuGraphBatchMemOpNodeGetParams", legacy, 11070, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params_out: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS);
            call cuGraphBatchMemOpNodeSetParams { "cuGraphBatchMemOpNodeSetParams", legacy, 11070, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS);
            call cuGraphChildGraphNodeGetGraph { "cuGraphChildGraphNodeGetGraph", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, graph: *mut CUgraph);
            call cuGraphClone { "cuGraphClone", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_clone: *mut CUgraph, original_graph: CUgraph);
            call cuGraphConditionalHandleCreate { "cuGraphConditionalHandleCreate", legacy, 12030, 1203 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (handle_out: *mut CUgraphConditionalHandle, graph: CUgraph, ctx: CUcontext, default_launch_value: c_uint, flags: c_uint);
            call cuGraphCreate { "cuGraphCreate", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: *mut CUgraph, flags: c_uint);
            call cuGraphDebugDotPrint { "cuGraphDebugDotPrint", legacy, 11030, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, path: *const c_char, flags: c_uint);
            call cuGraphDestroyNode { "cuGraphDestroyNode", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode);
            call cuGraphEventRecordNodeGetEvent { "cuGraphEventRecordNodeGetEvent", legacy, 11010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, event_out: *mut CUevent);
            call cuGraphEventRecordNodeSetEvent { "cuGraphEventRecordNodeSetEvent", legacy, 11010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, event: CUevent);
            call cuGraphEventWaitNodeGetEvent { "cuGraphEventWaitNodeGetEvent", legacy, 11010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, event_out: *mut CUevent);
            call cuGraphEventWaitNodeSetEvent { "cuGraphEventWaitNodeSetEvent", legacy, 11010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, event: CUevent);
            call cuGraphExecBatchMemOpNodeSetParams { "cuGraphExecBatchMemOpNodeSetParams", legacy, 11070, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS);
            hook cuGraphExecChildGraphNodeSetParams { "cuGraphExecChildGraphNodeSetParams", legacy, 11010, 1107 } Passes Tracked simulated "records anew the most memory that the graph can take"
                (graph_exec: CUgraphExec, node: CUgraphNode, child_graph: CUgraph);
            call cuGraphExecEventRecordNodeSetEvent { "cuGraphExecEventRecordNodeSetEvent", legacy, 11010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, event: CUevent);
            call cuGraphExecEventWaitNodeSetEvent { "cuGraphExecEventWaitNodeSetEvent", legacy, 11010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, event: CUevent);
            call cuGraphExecExternalSemaphoresSignalNodeSetParams { "cuGraphExecExternalSemaphoresSignalNodeSetParams", legacy, 11020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS);
            call cuGraphExecExternalSemaphoresWaitNodeSetParams { "cuGraphExecExternalSemaphoresWaitNodeSetParams", legacy, 11020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_EXT_SEM_WAIT_NODE_PARAMS);
            call cuGraphExecGetFlags { "cuGraphExecGetFlags", legacy, 12000, 1200 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, flags: *mut cuuint64_t);
            call cuGraphExecGetId { "cuGraphExecGetId", legacy, 13010, 1301 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, graph_id: *mut c_uint);
            call cuGraphExecHostNodeSetParams { "cuGraphExecHostNodeSetParams", legacy, 10020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS);
            call cuGraphExecKernelNodeSetParams { "cuGraphExecKernelNodeSetParams", legacy, 10010, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1);
            call cuGraphExecKernelNodeSetParams_v2 { "cuGraphExecKernelNodeSetParams", legacy, 12000, 1200 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v2);
            call cuGraphExecMemcpyNodeSetParams { "cuGraphExecMemcpyNodeSetParams", legacy, 10020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext);
            call cuGraphExecMemsetNodeSetParams { "cuGraphExecMemsetNodeSetParams", legacy, 10020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext);
            hook cuGraphExecNodeSetParams { "cuGraphExecNodeSetParams", legacy, 12020, 1202 } Passes Tracked simulated "records anew the most memory that the graph can take"
                (graph_exec: CUgraphExec, node: CUgraphNode, node_params: *mut CUgraphNodeParams);
            hook cuGraphExecUpdate { "cuGraphExecUpdate", legacy, 10020, 1107 } Passes Tracked simulated "records anew the most memory that the graph can take"
                (graph_exec: CUgraphExec, graph: CUgraph, error_node_out: *mut CUgraphNode, update_result_out: *mut CUgraphExecUpdateResult);
            hook cuGraphExecUpdate_v2 { "cuGraphExecUpdate", legacy, 12000, 1200 } Passes Tracked simulated "records anew the most memory that the graph can take"
                (graph_exec: CUgraphExec, graph: CUgraph, result_info: *mut CUgraphExecUpdateResultInfo);
            call cuGraphExternalSemaphoresSignalNodeGetParams { "cuGraphExternalSemaphoresSignalNodeGetParams", legacy, 11020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, params_out: *mut CUDA_EXT_SEM_SIGNAL_NODE_PARAMS);
            call cuGraphExternalSemaphoresSignalNodeSetParams { "cuGraphExternalSemaphoresSignalNodeSetParams", legacy, 11020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS);
            call cuGraphExternalSemaphoresWaitNodeGetParams { "cuGraphExternalSemaphoresWaitNodeGetParams", legacy, 11020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, params_out: *mut CUDA_EXT_SEM_WAIT_NODE_PARAMS);
            call cuGraphExternalSemaphoresWaitNodeSetParams { "cuGraphExternalSemaphoresWaitNodeSetParams", legacy, 11020, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *const CUDA_EXT_SEM_WAIT_NODE_PARAMS);
            call cuGraphGetEdges { "cuGraphGetEdges", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize);
            call cuGraphGetEdges_v2 { "cuGraphGetEdges", legacy, 12030, 1203 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData, num_edges: *mut usize);
            call cuGraphGetId { "cuGraphGetId", legacy, 13010, 1301 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, graph_id: *mut c_uint);
            call cuGraphGetNodes { "cuGraphGetNodes", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
            call cuGraphGetRootNodes { "cuGraphGetRootNodes", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, root_nodes: *mut CUgraphNode, num_root_nodes: *mut usize);
            call cuGraphHostNodeGetParams { "cuGraphHostNodeGetParams", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *mut CUDA_HOST_NODE_PARAMS);
            call cuGraphHostNodeSetParams { "cuGraphHostNodeSetParams", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS);
            call cuGraphKernelNodeCopyAttributes { "cuGraphKernelNodeCopyAttributes", legacy, 11000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (dst: CUgraphNode, src: CUgraphNode);
            call cuGraphKernelNodeGetAttribute { "cuGraphKernelNodeGetAttribute", legacy, 11000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, attr: CUkernelNodeAttrID, value_out: *mut CUkernelNodeAttrValue);
            call cuGraphKernelNodeGetParams { "cuGraphKernelNodeGetParams", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_v1);
            call cuGraphKernelNodeGetParams_v2 { "cuGraphKernelNodeGetParams", legacy, 12000, 1200 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_v2);
            call cuGraphKernelNodeSetAttribute { "cuGraphKernelNodeSetAttribute", legacy, 11000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, attr: CUkernelNodeAttrID, value: *const CUkernelNodeAttrValue);
            call cuGraphKernelNodeSetParams { "cuGraphKernelNodeSetParams", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1);
            call cuGraphKernelNodeSetParams_v2 { "cuGraphKernelNodeSetParams", legacy, 12000, 1200 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v2);
            call cuGraphMemAllocNodeGetParams { "cuGraphMemAllocNodeGetParams", legacy, 11040, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
            call cuGraphMemFreeNodeGetParams { "cuGraphMemFreeNodeGetParams", legacy, 11040, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, dptr_out: *mut CUdeviceptr);
            call cuGraphMemcpyNodeGetParams { "cuGraphMemcpyNodeGetParams", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *mut CUDA_MEMCPY3D);
            call cuGraphMemcpyNodeSetParams { "cuGraphMemcpyNodeSetParams", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *const CUDA_MEMCPY3D);
            call cuGraphMemsetNodeGetParams { "cuGraphMemsetNodeGetParams", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *mut CUDA_MEMSET_NODE_PARAMS);
            call cuGraphMemsetNodeSetParams { "cuGraphMemsetNodeSetParams", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *const CUDA_MEMSET_NODE_PARAMS);
            call cuGraphNodeFindInClone { "cuGraphNodeFindInClone", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: *mut CUgraphNode, original_node: CUgraphNode, cloned_graph: CUgraph);
            call cuGraphNodeGetContainingGraph { "cuGraphNodeGetContainingGraph", legacy, 13010, 1301 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, graph: *mut CUgraph);
            call cuGraphNodeGetDependencies { "cuGraphNodeGetDependencies", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize);
            call cuGraphNodeGetDependencies_v2 { "cuGraphNodeGetDependencies", legacy, 12030, 1203 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, dependencies: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData, num_dependencies: *mut usize);
            call cuGraphNodeGetDependentNodes { "cuGraphNodeGetDependentNodes", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, dependent_nodes: *mut CUgraphNode, num_dependent_nodes: *mut usize);
            call cuGraphNodeGetDependentNodes_v2 { "cuGraphNodeGetDependentNodes", legacy, 12030, 1203 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, dependent_nodes: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData, num_dependent_nodes: *mut usize);
            call cuGraphNodeGetEnabled { "cuGraphNodeGetEnabled", legacy, 11060, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, is_enabled: *mut c_uint);
            call cuGraphNodeGetLocalId { "cuGraphNodeGetLocalId", legacy, 13010, 1301 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_id: *mut c_uint);
            call cuGraphNodeGetParams { "cuGraphNodeGetParams", legacy, 13020, 1302 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *mut CUgraphNodeParams);
            call cuGraphNodeGetToolsId { "cuGraphNodeGetToolsId", legacy, 13010, 1301 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, tools_node_id: *mut c_ulonglong);
            call cuGraphNodeGetType { "cuGraphNodeGetType", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, kind: *mut CUgraphNodeType);
            call cuGraphNodeSetEnabled { "cuGraphNodeSetEnabled", legacy, 11060, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph_exec: CUgraphExec, node: CUgraphNode, is_enabled: c_uint);
            call cuGraphNodeSetParams { "cuGraphNodeSetParams", legacy, 12020, 1202 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *mut CUgraphNodeParams);
            call cuGraphNodeSetParams_v2 { "cuGraphNodeSetParams", legacy, 13040, 1304 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (node: CUgraphNode, node_params: *mut CUgraphNodeParams);
            call cuGraphReleaseUserObject { "cuGraphReleaseUserObject", legacy, 11030, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, object: CUuserObject, count: c_uint);
            call cuGraphRemoveDependencies { "cuGraphRemoveDependencies", legacy, 10000, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize);
            call cuGraphRemoveDependencies_v2 { "cuGraphRemoveDependencies", legacy, 12030, 1203 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData, num_dependencies: usize);
            call cuGraphRetainUserObject { "cuGraphRetainUserObject", legacy, 11030, 1107 } Passes Passed simulated "builds or reads a graph; takes no device memory"
                (graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);
            call cuUserObjectCreate { "cuUserObjectCreate", legacy, 11030, 1107 } Passes Passed simulated "counts the references to a host object"
                (object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initial_refcount: c_uint, flags: c_uint);
            call cuUserObjectRelease { "cuUserObjectRelease", legacy, 11030, 1107 } Passes Passed simulated "counts the references to a host object"
                (object: CUuserObject, count: c_uint);
            call cuUserObjectRetain { "cuUserObjectRetain", legacy, 11030, 1107 } Passes Passed simulated "counts the references to a host object"
                (object: CUuserObject, count: c_uint);

            // Other processes' and other interfaces' memory.
            hook cuIpcGetMemHandle { "cuIpcGetMemHandle", legacy, 4010, 1107 } External Tracked simulated "the exporter is charged, also after it has freed the memory while another process has it open"
                (handle: *mut CUipcMemHandle, dptr: CUdeviceptr);
            hook cuIpcOpenMemHandle { "cuIpcOpenMemHandle", legacy, 4010, 1107 } External Tracked simulated "the exporter is charged, the importer is not; each call is counted"
                (dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
            hook cuIpcOpenMemHandle_v2 { "cuIpcOpenMemHandle", legacy, 11000, 1107 } External Tracked simulated "the exporter is charged, the importer is not; each call is counted"
                (dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
            hook cuIpcCloseMemHandle { "cuIpcCloseMemHandle", legacy, 4010, 1107 } External Tracked simulated "the importer was not charged; the exporter's charge can end"
                (dptr: CUdeviceptr);
            call cuIpcGetEventHandle { "cuIpcGetEventHandle", legacy, 4010, 1107 } External Passed simulated "shares an event between processes"
                (handle: *mut CUipcEventHandle, event: CUevent);
            call cuIpcOpenEventHandle { "cuIpcOpenEventHandle", legacy, 4010, 1107 } External Passed simulated "shares an event between processes"
                (event: *mut CUevent, handle: CUipcEventHandle);
            hook cuImportExternalMemory { "cuImportExternalMemory", legacy, 10000, 1107 } External Counted simulated "imports memory that another interface has allocated, which no limit covers; each call is counted"
                (ext_mem_out: *mut CUexternalMemory, mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
            call cuDestroyExternalMemory { "cuDestroyExternalMemory", legacy, 10000, 1107 } External Passed simulated "memory that another interface has allocated"
                (ext_mem: CUexternalMemory);
            call cuExternalMemoryGetMappedBuffer { "cuExternalMemoryGetMappedBuffer", legacy, 10000, 1107 } External Passed simulated "memory that another interface has allocated"
                (dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory, buffer_desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC);
            call cuExternalMemoryGetMappedMipmappedArray { "cuExternalMemoryGetMappedMipmappedArray", legacy, 10000, 1107 } External Passed simulated "memory that another interface has allocated"
                (mipmap: *mut CUmipmappedArray, ext_mem: CUexternalMemory, mipmap_desc: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC);
            call cuDestroyExternalSemaphore { "cuDestroyExternalSemaphore", legacy, 10000, 1107 } External Passed simulated "orders work with another interface"
                (ext_sem: CUexternalSemaphore);
            call cuImportExternalSemaphore { "cuImportExternalSemaphore", legacy, 10000, 1107 } External Passed simulated "orders work with another interface"
                (ext_sem_out: *mut CUexternalSemaphore, sem_handle_desc: *const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC);
            call cuSignalExternalSemaphoresAsync { "cuSignalExternalSemaphoresAsync", legacy, 10000, 1107 } External Passed simulated "orders work with another interface"
                (ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, num_ext_sems: c_uint, stream: CUstream);
            call cuSignalExternalSemaphoresAsync_ptsz { "cuSignalExternalSemaphoresAsync", ptsz, 10000, 1107 } External Passed simulated "orders work with another interface"
                (ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, num_ext_sems: c_uint, stream: CUstream);
            call cuWaitExternalSemaphoresAsync { "cuWaitExternalSemaphoresAsync", legacy, 10000, 1107 } External Passed simulated "orders work with another interface"
                (ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, num_ext_sems: c_uint, stream: CUstream);
            call cuWaitExternalSemaphoresAsync_ptsz { "cuWaitExternalSemaphoresAsync", ptsz, 10000, 1107 } External Passed simulated "orders work with another interface"
                (ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, num_ext_sems: c_uint, stream: CUstream);
            hook cuMulticastBindAddr { "cuMulticastBindAddr", legacy, 12010, 1201 } External Tracked simulated "bound memory stays charged until it is unbound and released"
                (mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, memptr: CUdeviceptr, size: usize, flags: c_ulonglong);
            hook cuMulticastBindAddr_v2 { "cuMulticastBindAddr", legacy, 13010, 1301 } External Tracked simulated "bound memory stays charged until it is unbound and released"
                (mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, memptr: CUdeviceptr, size: usize, flags: c_ulonglong);
            hook cuMulticastBindMem { "cuMulticastBindMem", legacy, 12010, 1201 } External Tracked simulated "bound memory stays charged until it is unbound and released"
                (mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: c_ulonglong);
            hook cuMulticastBindMem_v2 { "cuMulticastBindMem", legacy, 13010, 1301 } External Tracked simulated "bound memory stays charged until it is unbound and released"
                (mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: c_ulonglong);
            call cuMulticastAddDevice { "cuMulticastAddDevice", legacy, 12010, 1201 } External Passed simulated "a multicast object takes no memory"
                (mc_handle: CUmemGenericAllocationHandle, dev: CUdevice);
            hook cuMulticastCreate { "cuMulticastCreate", legacy, 12010, 1201 } External Tracked simulated "a multicast object takes no memory; the memory bound to it is tracked"
                (mc_handle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp);
            call cuMulticastGetGranularity { "cuMulticastGetGranularity", legacy, 12010, 1201 } External Passed simulated "a multicast object takes no memory"
                (granularity: *mut usize, prop: *const CUmulticastObjectProp, option: CUmulticastGranularity_flags);
            hook cuMulticastUnbind { "cuMulticastUnbind", legacy, 12010, 1201 } External Tracked simulated "bound memory is refunded when nothing else refers to it"
                (mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, size: usize);
            hook cuLogicalEndpointBindAddr { "cuLogicalEndpointBindAddr", legacy, 13030, 1303 } External Tracked simulated "bound memory stays charged until it is unbound and released"
                (le_id: CUlogicalEndpointId, dev: CUdevice, offset: cuuint64_t, ptr: *mut c_void, size: cuuint64_t, flags: c_ulonglong);
            hook cuLogicalEndpointBindMem { "cuLogicalEndpointBindMem", legacy, 13030, 1303 } External Tracked simulated "bound memory stays charged until it is unbound and released"
                (le_id: CUlogicalEndpointId, dev: CUdevice, offset: cuuint64_t, mem_handle: CUmemGenericAllocationHandle, mem_offset: cuuint64_t, size: cuuint64_t, flags: c_ulonglong);
            call cuLogicalEndpointAddDevice { "cuLogicalEndpointAddDevice", legacy, 13030, 1303 } External Passed simulated "a logical endpoint takes no memory"
                (le_id: CUlogicalEndpointId, dev: CUdevice);
            hook cuLogicalEndpointCreate { "cuLogicalEndpointCreate", legacy, 13030, 1303 } External Tracked simulated "a logical endpoint takes no memory; the memory bound to it is tracked"
                (le_id: CUlogicalEndpointId, prop: *const CUlogicalEndpointProp);
            hook cuLogicalEndpointDestroy { "cuLogicalEndpointDestroy", legacy, 13030, 1303 } External Tracked simulated "bound memory is refunded when nothing else refers to it"
                (le_id: CUlogicalEndpointId);
            call cuLogicalEndpointExport { "cuLogicalEndpointExport", legacy, 13030, 1303 } External Passed simulated "a logical endpoint takes no memory"
                (handle: *mut c_void, le_id: CUlogicalEndpointId, handle_type: CUlogicalEndpointIpcHandleType);
            call cuLogicalEndpointGetLimits { "cuLogicalEndpointGetLimits", legacy, 13030, 1303 } External Passed simulated "a logical endpoint takes no memory"
                (bind_alignment: *mut cuuint64_t, max_size: *mut cuuint64_t, prop: *const CUlogicalEndpointProp);
            call cuLogicalEndpointIdRelease { "cuLogicalEndpointIdRelease", legacy, 13030, 1303 } External Passed simulated "a logical endpoint takes no memory"
                (base_le_id: CUlogicalEndpointId, count: cuuint32_t);
            call cuLogicalEndpointIdReserve { "cuLogicalEndpointIdReserve", legacy, 13030, 1303 } External Passed simulated "a logical endpoint takes no memory"
                (base_le_id: *mut CUlogicalEndpointId, count: cuuint32_t);
            hook cuLogicalEndpointImport { "cuLogicalEndpointImport", legacy, 13030, 1303 } External Tracked simulated "a logical endpoint takes no memory; the memory bound to it is tracked"
                (le_id: CUlogicalEndpointId, handle: *const c_void, handle_type: CUlogicalEndpointIpcHandleType);
            call cuLogicalEndpointQuery { "cuLogicalEndpointQuery", legacy, 13030, 1303 } External Passed simulated "a logical endpoint takes no memory"
                (le_id: CUlogicalEndpointId, count: cuuint32_t, query_status: *mut c_int);
            hook cuLogicalEndpointUnbind { "cuLogicalEndpointUnbind", legacy, 13030, 1303 } External Tracked simulated "bound memory is refunded when nothing else refers to it"
                (le_id: CUlogicalEndpointId, dev: CUdevice, offset: cuuint64_t, size: cuuint64_t);
            pass cuFlushGPUDirectRDMAWrites { "cuFlushGPUDirectRDMAWrites", legacy, 11030, 1107 } External Passed stub "orders another device's writes";
            pass cuGraphicsEGLRegisterImage { "cuGraphicsEGLRegisterImage", legacy, 7000, 0 } External Passed stub "registers memory that a graphics interface has allocated";
            pass cuGraphicsGLRegisterBuffer { "cuGraphicsGLRegisterBuffer", legacy, 3000, 0 } External Passed stub "registers memory that a graphics interface has allocated";
            pass cuGraphicsGLRegisterImage { "cuGraphicsGLRegisterImage", legacy, 3000, 0 } External Passed stub "registers memory that a graphics interface has allocated";
            pass cuGraphicsVDPAURegisterOutputSurface { "cuGraphicsVDPAURegisterOutputSurface", legacy, 3010, 0 } External Passed stub "registers memory that a graphics interface has allocated";
            pass cuGraphicsVDPAURegisterVideoSurface { "cuGraphicsVDPAURegisterVideoSurface", legacy, 3010, 0 } External Passed stub "registers memory that a graphics interface has allocated";
            pass cuGraphicsMapResources { "cuGraphicsMapResources", legacy, 3000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsMapResources_ptsz { "cuGraphicsMapResources", ptsz, 7000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsResourceGetMappedEglFrame { "cuGraphicsResourceGetMappedEglFrame", legacy, 7000, 0 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsResourceGetMappedMipmappedArray { "cuGraphicsResourceGetMappedMipmappedArray", legacy, 5000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsResourceGetMappedPointer { "cuGraphicsResourceGetMappedPointer", legacy, 3000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsResourceGetMappedPointer_v2 { "cuGraphicsResourceGetMappedPointer", legacy, 3020, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsResourceSetMapFlags { "cuGraphicsResourceSetMapFlags", legacy, 3000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsResourceSetMapFlags_v2 { "cuGraphicsResourceSetMapFlags", legacy, 6050, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsSubResourceGetMappedArray { "cuGraphicsSubResourceGetMappedArray", legacy, 3000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsUnmapResources { "cuGraphicsUnmapResources", legacy, 3000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsUnmapResources_ptsz { "cuGraphicsUnmapResources", ptsz, 7000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            pass cuGraphicsUnregisterResource { "cuGraphicsUnregisterResource", legacy, 3000, 1107 } External Passed stub "maps memory that a graphics interface has allocated";
            hook cuGLCtxCreate { "cuGLCtxCreate", legacy, 2000, 0 } Context Refused stub "would create a context that is not charged: refused"
                ();
            hook cuGLCtxCreate_v2 { "cuGLCtxCreate", legacy, 3020, 0 } Context Refused stub "would create a context that is not charged: refused"
                ();
            hook cuVDPAUCtxCreate { "cuVDPAUCtxCreate", legacy, 3010, 0 } Context Refused stub "would create a context that is not charged: refused"
                ();
            hook cuVDPAUCtxCreate_v2 { "cuVDPAUCtxCreate", legacy, 3020, 0 } Context Refused stub "would create a context that is not charged: refused"
                ();
            pass cuGLGetDevices { "cuGLGetDevices", legacy, 4010, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLGetDevices_v2 { "cuGLGetDevices", legacy, 6050, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLInit { "cuGLInit", legacy, 2000, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLMapBufferObject { "cuGLMapBufferObject", legacy, 2000, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLMapBufferObject_v2 { "cuGLMapBufferObject", legacy, 3020, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLMapBufferObject_v2_ptds { "cuGLMapBufferObject", ptds, 7000, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLMapBufferObjectAsync { "cuGLMapBufferObjectAsync", legacy, 2030, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLMapBufferObjectAsync_v2 { "cuGLMapBufferObjectAsync", legacy, 3020, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLMapBufferObjectAsync_v2_ptsz { "cuGLMapBufferObjectAsync", ptsz, 7000, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLRegisterBufferObject { "cuGLRegisterBufferObject", legacy, 2000, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLSetBufferObjectMapFlags { "cuGLSetBufferObjectMapFlags", legacy, 2030, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLUnmapBufferObject { "cuGLUnmapBufferObject", legacy, 2000, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLUnmapBufferObjectAsync { "cuGLUnmapBufferObjectAsync", legacy, 2030, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuGLUnregisterBufferObject { "cuGLUnregisterBufferObject", legacy, 2000, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuVDPAUGetDevice { "cuVDPAUGetDevice", legacy, 3010, 0 } External Passed stub "shares memory that a graphics interface has allocated";
            pass cuEGLApiInit { "cuEGLApiInit", none, 0, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamConsumerAcquireFrame { "cuEGLStreamConsumerAcquireFrame", legacy, 7000, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamConsumerConnect { "cuEGLStreamConsumerConnect", legacy, 7000, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamConsumerConnectWithFlags { "cuEGLStreamConsumerConnectWithFlags", legacy, 8000, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamConsumerDisconnect { "cuEGLStreamConsumerDisconnect", legacy, 7000, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamConsumerReleaseFrame { "cuEGLStreamConsumerReleaseFrame", legacy, 7000, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamProducerConnect { "cuEGLStreamProducerConnect", legacy, 7000, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamProducerDisconnect { "cuEGLStreamProducerDisconnect", legacy, 7000, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamProducerPresentFrame { "cuEGLStreamProducerPresentFrame", legacy, 7000, 0 } External Passed stub "shares the frames of an EGL stream";
            pass cuEGLStreamProducerReturnFrame { "cuEGLStreamProducerReturnFrame", legacy, 7000, 0 } External Passed stub "shares the frames of an EGL stream";

            // Checkpoints.
            hook cuCheckpointProcessRestore { "cuCheckpointProcessRestore", legacy, 12080, 1208 } Allocates Charged simulated "the restored memory is charged before the call; refused when it does not fit, or on another GPU than before"
                (pid: c_int, args: *mut CUcheckpointRestoreArgs);
            hook cuCheckpointProcessCheckpoint { "cuCheckpointProcessCheckpoint", legacy, 12080, 1208 } Frees Refunded simulated "memory that moves to the host is no longer charged"
                (pid: c_int, args: *mut CUcheckpointCheckpointArgs);
            call cuCheckpointOperationComplete { "cuCheckpointOperationComplete", legacy, 13040, 1304 } Passes Passed simulated "locks, unlocks or observes a process for a checkpoint"
                (handle: CUcheckpointOperationHandle);
            call cuCheckpointProcessGetRestoreThreadId { "cuCheckpointProcessGetRestoreThreadId", legacy, 12080, 1208 } Passes Passed simulated "locks, unlocks or observes a process for a checkpoint"
                (pid: c_int, tid: *mut c_int);
            call cuCheckpointProcessGetState { "cuCheckpointProcessGetState", legacy, 12080, 1208 } Passes Passed simulated "locks, unlocks or observes a process for a checkpoint"
                (pid: c_int, state: *mut CUprocessState);
            call cuCheckpointProcessLock { "cuCheckpointProcessLock", legacy, 12080, 1208 } Passes Passed simulated "locks, unlocks or observes a process for a checkpoint"
                (pid: c_int, args: *mut CUcheckpointLockArgs);
            call cuCheckpointProcessUnlock { "cuCheckpointProcessUnlock", legacy, 12080, 1208 } Passes Passed simulated "locks, unlocks or observes a process for a checkpoint"
                (pid: c_int, args: *mut CUcheckpointUnlockArgs);

            // Textures, surfaces, tensor maps.
            call cuSurfObjectCreate { "cuSurfObjectCreate", legacy, 5000, 1107 } Passes Passed simulated "describes memory that already exists"
                (surf_object: *mut CUsurfObject, res_desc: *const CUDA_RESOURCE_DESC);
            call cuSurfObjectDestroy { "cuSurfObjectDestroy", legacy, 5000, 1107 } Passes Passed simulated "describes memory that already exists"
                (surf_object: CUsurfObject);
            call cuSurfObjectGetResourceDesc { "cuSurfObjectGetResourceDesc", legacy, 5000, 1107 } Passes Passed simulated "describes memory that already exists"
                (res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject);
            pass cuSurfRefGetArray { "cuSurfRefGetArray", legacy, 3000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuSurfRefSetArray { "cuSurfRefSetArray", legacy, 3000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTensorMapEncodeIm2col { "cuTensorMapEncodeIm2col", legacy, 12000, 1200 } Passes Passed stub "describes memory that already exists";
            pass cuTensorMapEncodeIm2colWide { "cuTensorMapEncodeIm2colWide", legacy, 12080, 1208 } Passes Passed stub "describes memory that already exists";
            pass cuTensorMapEncodeTiled { "cuTensorMapEncodeTiled", legacy, 12000, 1200 } Passes Passed stub "describes memory that already exists";
            pass cuTensorMapReplaceAddress { "cuTensorMapReplaceAddress", legacy, 12000, 1200 } Passes Passed stub "describes memory that already exists";
            pass cuTensorMapSetAllocationClass { "cuTensorMapSetAllocationClass", legacy, 13050, 1305 } Passes Passed stub "describes memory that already exists";
            call cuTexObjectCreate { "cuTexObjectCreate", legacy, 5000, 1107 } Passes Passed simulated "describes memory that already exists"
                (tex_object: *mut CUtexObject, res_desc: *const CUDA_RESOURCE_DESC, tex_desc: *const CUDA_TEXTURE_DESC, res_view_desc: *const CUDA_RESOURCE_VIEW_DESC);
            call cuTexObjectDestroy { "cuTexObjectDestroy", legacy, 5000, 1107 } Passes Passed simulated "describes memory that already exists"
                (tex_object: CUtexObject);
            call cuTexObjectGetResourceDesc { "cuTexObjectGetResourceDesc", legacy, 5000, 1107 } Passes Passed simulated "describes memory that already exists"
                (res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject);
            call cuTexObjectGetResourceViewDesc { "cuTexObjectGetResourceViewDesc", legacy, 5000, 1107 } Passes Passed simulated "describes memory that already exists"
                (res_view_desc: *mut CUDA_RESOURCE_VIEW_DESC, tex_object: CUtexObject);
            call cuTexObjectGetTextureDesc { "cuTexObjectGetTextureDesc", legacy, 5000, 1107 } Passes Passed simulated "describes memory that already exists"
                (tex_desc: *mut CUDA_TEXTURE_DESC, tex_object: CUtexObject);
            pass cuTexRefCreate { "cuTexRefCreate", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefDestroy { "cuTexRefDestroy", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetAddress { "cuTexRefGetAddress", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetAddress_v2 { "cuTexRefGetAddress", legacy, 3020, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetAddressMode { "cuTexRefGetAddressMode", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetArray { "cuTexRefGetArray", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetBorderColor { "cuTexRefGetBorderColor", legacy, 8000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetFilterMode { "cuTexRefGetFilterMode", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetFlags { "cuTexRefGetFlags", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetFormat { "cuTexRefGetFormat", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetMaxAnisotropy { "cuTexRefGetMaxAnisotropy", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetMipmapFilterMode { "cuTexRefGetMipmapFilterMode", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetMipmapLevelBias { "cuTexRefGetMipmapLevelBias", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetMipmapLevelClamp { "cuTexRefGetMipmapLevelClamp", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefGetMipmappedArray { "cuTexRefGetMipmappedArray", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetAddress { "cuTexRefSetAddress", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetAddress_v2 { "cuTexRefSetAddress", legacy, 3020, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetAddress2D { "cuTexRefSetAddress2D", legacy, 2020, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetAddress2D_v2 { "cuTexRefSetAddress2D", legacy, 3020, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetAddress2D_v3 { "cuTexRefSetAddress2D", legacy, 4010, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetAddressMode { "cuTexRefSetAddressMode", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetArray { "cuTexRefSetArray", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetBorderColor { "cuTexRefSetBorderColor", legacy, 8000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetFilterMode { "cuTexRefSetFilterMode", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetFlags { "cuTexRefSetFlags", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetFormat { "cuTexRefSetFormat", legacy, 2000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetMaxAnisotropy { "cuTexRefSetMaxAnisotropy", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetMipmapFilterMode { "cuTexRefSetMipmapFilterMode", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetMipmapLevelBias { "cuTexRefSetMipmapLevelBias", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetMipmapLevelClamp { "cuTexRefSetMipmapLevelClamp", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";
            pass cuTexRefSetMipmappedArray { "cuTexRefSetMipmappedArray", legacy, 5000, 1107 } Passes Passed stub "describes memory that already exists";

            // Profiling, logs, core dumps, the debugger.
            call cuProfilerInitialize { "cuProfilerInitialize", legacy, 4000, 0 } Passes Passed simulated "starts or stops a profiler"
                (config_file: *const c_char, output_file: *const c_char, output_mode: CUoutput_mode);
            call cuProfilerStart { "cuProfilerStart", legacy, 4000, 0 } Passes Passed simulated "starts or stops a profiler"
                ();
            call cuProfilerStop { "cuProfilerStop", legacy, 4000, 0 } Passes Passed simulated "starts or stops a profiler"
                ();
            pass cuLogsCurrent { "cuLogsCurrent", legacy, 12090, 1209 } Passes Passed stub "the driver's own log";
            pass cuLogsDumpToFile { "cuLogsDumpToFile", legacy, 12090, 1209 } Passes Passed stub "the driver's own log";
            pass cuLogsDumpToMemory { "cuLogsDumpToMemory", legacy, 12090, 1209 } Passes Passed stub "the driver's own log";
            pass cuLogsRegisterCallback { "cuLogsRegisterCallback", legacy, 12090, 1209 } Passes Passed stub "the driver's own log";
            pass cuLogsUnregisterCallback { "cuLogsUnregisterCallback", legacy, 12090, 1209 } Passes Passed stub "the driver's own log";
            pass cuCoredumpDeregisterCompleteCallback { "cuCoredumpDeregisterCompleteCallback", legacy, 13020, 1302 } Passes Passed stub "the driver's own core dumps";
            pass cuCoredumpDeregisterStartCallback { "cuCoredumpDeregisterStartCallback", legacy, 13020, 1302 } Passes Passed stub "the driver's own core dumps";
            pass cuCoredumpGetAttribute { "cuCoredumpGetAttribute", legacy, 12010, 1201 } Passes Passed stub "the driver's own core dumps";
            pass cuCoredumpGetAttributeGlobal { "cuCoredumpGetAttributeGlobal", legacy, 12010, 1201 } Passes Passed stub "the driver's own core dumps";
            pass cuCoredumpRegisterCompleteCallback { "cuCoredumpRegisterCompleteCallback", legacy, 13020, 1302 } Passes Passed stub "the driver's own core dumps";
            pass cuCoredumpRegisterStartCallback { "cuCoredumpRegisterStartCallback", legacy, 13020, 1302 } Passes Passed stub "the driver's own core dumps";
            pass cuCoredumpSetAttribute { "cuCoredumpSetAttribute", legacy, 12010, 1201 } Passes Passed stub "the driver's own core dumps";
            pass cuCoredumpSetAttributeGlobal { "cuCoredumpSetAttributeGlobal", legacy, 12010, 1201 } Passes Passed stub "the driver's own core dumps";
            pass cudbgApiAttach { "cudbgApiAttach", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgApiClientPid { "cudbgApiClientPid", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgApiClientRevision { "cudbgApiClientRevision", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgApiDetach { "cudbgApiDetach", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgApiInit { "cudbgApiInit", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgAttachHandlerAvailable { "cudbgAttachHandlerAvailable", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgDebuggerCapabilities { "cudbgDebuggerCapabilities", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgDebuggerInitialized { "cudbgDebuggerInitialized", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgDetachSuspendedDevicesMask { "cudbgDetachSuspendedDevicesMask", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgEnableIntegratedMemcheck { "cudbgEnableIntegratedMemcheck", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgEnableLaunchBlocking { "cudbgEnableLaunchBlocking", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgEnablePreemptionDebugging { "cudbgEnablePreemptionDebugging", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgGetAPI { "cudbgGetAPI", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgGetAPIVersion { "cudbgGetAPIVersion", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgInjectionPath { "cudbgInjectionPath", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgIpcFlag { "cudbgIpcFlag", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgMain { "cudbgMain", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgReportDriverApiError { "cudbgReportDriverApiError", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgReportDriverApiErrorFlags { "cudbgReportDriverApiErrorFlags", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgReportDriverInternalError { "cudbgReportDriverInternalError", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgReportedDriverApiErrorCode { "cudbgReportedDriverApiErrorCode", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgReportedDriverApiErrorFuncNameAddr { "cudbgReportedDriverApiErrorFuncNameAddr", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgReportedDriverApiErrorFuncNameSize { "cudbgReportedDriverApiErrorFuncNameSize", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgReportedDriverInternalErrorCode { "cudbgReportedDriverInternalErrorCode", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgResumeForAttachDetach { "cudbgResumeForAttachDetach", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgRpcEnabled { "cudbgRpcEnabled", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgSessionId { "cudbgSessionId", none, 0, 0 } Passes Passed stub "the debugger's private interface";
            pass cudbgUseExternalDebugger { "cudbgUseExternalDebugger", none, 0, 0 } Passes Passed stub "the debugger's private interface";
        }
    };
}
