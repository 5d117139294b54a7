//! The table of NVML functions. The crate's documentation explains the rows.

/// Passes all rows to the callback, in one invocation.
#[macro_export]
macro_rules! nvml_table {
    ($($callback:ident)::+ $(, [$($through:tt)*])?) => {
        $($callback)::+! {
            $([$($through)*])?

            // Start and end.
            hook nvmlInit { 1200 } Starts Tracked simulated "counts the uses of NVML in this process"
                ();
            hook nvmlInit_v2 { 1200 } Starts Tracked simulated "counts the uses of NVML in this process"
                ();
            hook nvmlInitWithFlags { 1200 } Starts Tracked simulated "counts the uses of NVML in this process"
                (flags: c_uint);
            hook nvmlShutdown { 1200 } Starts Tracked simulated "counts the uses of NVML in this process"
                ();
            pass nvmlInternalGetExportTable { 0 } Routes Passed stub "hands out the vendor's private tables unchanged";
            call nvmlErrorString { 1200 } Passes Passed simulated "returns the name or text of a result"
                (result: nvmlReturn_t) -> *const c_char;

            // Size and use of memory.
            hook nvmlDeviceGetMemoryInfo { 1200 } Reports Virtualised simulated "total is the limit, and agrees with cuMemGetInfo to the byte"
                (device: nvmlDevice_t, memory: *mut nvmlMemory_t);
            hook nvmlDeviceGetMemoryInfo_v2 { 1200 } Reports Virtualised simulated "total is the limit, and agrees with cuMemGetInfo to the byte"
                (device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t);
            call nvmlDeviceGetBAR1MemoryInfo { 1200 } Reports Passed simulated "the PCIe window for access by the host, not the GPU's memory"
                (device: nvmlDevice_t, bar1_memory: *mut nvmlBAR1Memory_t);
            hook nvmlDeviceGetMemoryLimits_v1 { 1304 } Reports Virtualised simulated "the vendor's limit for a control group: shown as no more than the container's limit"
                (device: nvmlDevice_t, limits: *mut nvmlGetMemoryLimits_v1_t);
            hook nvmlDeviceGetConfComputeMemSizeInfo { 1202 } Reports Virtualised stub "memory under confidential computing: no more than the limit"
                (device: nvmlDevice_t, mem_info: *mut nvmlConfComputeMemSizeInfo_t);
            hook nvmlDeviceGetConfComputeProtectedMemoryUsage { 1202 } Reports Virtualised stub "total is the limit, and agrees with cuMemGetInfo to the byte"
                (device: nvmlDevice_t, memory: *mut nvmlMemory_t);
            hook nvmlDeviceGetAttributes { 1200 } Reports Virtualised simulated "a MIG instance is as large as its limit"
                (device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t);
            hook nvmlDeviceGetAttributes_v2 { 1200 } Reports Virtualised simulated "a MIG instance is as large as its limit"
                (device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t);
            call nvmlDeviceGetFieldValues { 1200 } Reports Passed simulated "no field up to 13.5 has a memory size or names a process"
                (device: nvmlDevice_t, values_count: c_int, values: *mut nvmlFieldValue_t);

            // Processes and utilisation.
            hook nvmlDeviceGetComputeRunningProcesses { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t);
            hook nvmlDeviceGetComputeRunningProcesses_v2 { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t);
            hook nvmlDeviceGetComputeRunningProcesses_v3 { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            hook nvmlDeviceGetGraphicsRunningProcesses { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t);
            hook nvmlDeviceGetGraphicsRunningProcesses_v2 { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t);
            hook nvmlDeviceGetGraphicsRunningProcesses_v3 { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            hook nvmlDeviceGetMPSComputeRunningProcesses { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t);
            hook nvmlDeviceGetMPSComputeRunningProcesses_v2 { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t);
            hook nvmlDeviceGetMPSComputeRunningProcesses_v3 { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            hook nvmlDeviceGetAccountingPids { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container"
                (device: nvmlDevice_t, count: *mut c_uint, pids: *mut c_uint);
            hook nvmlDeviceGetAccountingStats { 1200 } Reports Virtualised simulated "answers only for the container's processes, by their ids in the container"
                (device: nvmlDevice_t, pid: c_uint, stats: *mut nvmlAccountingStats_t);
            hook nvmlDeviceGetAccountingStats_v2 { 1303 } Reports Virtualised simulated "answers only for the container's processes, by their ids in the container"
                (device: nvmlDevice_t, stats: *mut nvmlAccountingStats_v2_t);
            hook nvmlDeviceGetProcessesUtilizationInfo { 1204 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container"
                (device: nvmlDevice_t, proceses_util_info: *mut nvmlProcessesUtilizationInfo_t);
            hook nvmlDeviceGetRunningProcessDetailList { 1202 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container, with their charged memory"
                (device: nvmlDevice_t, plist: *mut nvmlProcessDetailList_t);
            hook nvmlDeviceGetProcessUtilization { 1200 } Reports Virtualised simulated "lists only the container's processes, by their ids in the container"
                (device: nvmlDevice_t, utilization: *mut nvmlProcessUtilizationSample_t, process_samples_count: *mut c_uint, last_seen_time_stamp: c_ulonglong);
            hook nvmlDeviceGetEncoderSessions { 1200 } Reports Virtualised stub "lists only the container's processes, by their ids in the container"
                (device: nvmlDevice_t, session_count: *mut c_uint, session_infos: *mut nvmlEncoderSessionInfo_t);
            hook nvmlDeviceGetFBCSessions { 1200 } Reports Virtualised stub "lists only the container's processes, by their ids in the container"
                (device: nvmlDevice_t, session_count: *mut c_uint, session_info: *mut nvmlFBCSessionInfo_t);
            call nvmlDeviceGetUtilizationRates { 1200 } Reports Passed simulated "utilisation of the whole GPU, which all containers share"
                (device: nvmlDevice_t, utilization: *mut nvmlUtilization_t);
            call nvmlDeviceGetSamples { 1200 } Reports Passed simulated "counters of the whole GPU, which all containers share"
                (device: nvmlDevice_t, kind: nvmlSamplingType_t, last_seen_time_stamp: c_ulonglong, sample_val_type: *mut nvmlValueType_t, sample_count: *mut c_uint, samples: *mut nvmlSample_t);
            pass nvmlDevicePerfMetricsGetSamples_v1 { 1304 } Reports Passed stub "counters of the whole GPU, which all containers share";
            pass nvmlGpmMetricsGet { 1200 } Reports Passed stub "counters of the whole GPU, which all containers share";
            call nvmlSystemGetProcessName { 1200 } Reports Passed simulated "the name of a process whose id the caller already knows"
                (pid: c_uint, name: *mut c_char, length: c_uint);
            call nvmlDeviceClearAccountingPids { 1200 } Passes Passed simulated "reads, switches or clears NVML's accounting; changes need root on the host"
                (device: nvmlDevice_t);
            call nvmlDeviceGetAccountingBufferSize { 1200 } Passes Passed simulated "reads, switches or clears NVML's accounting; changes need root on the host"
                (device: nvmlDevice_t, buffer_size: *mut c_uint);
            call nvmlDeviceGetAccountingMode { 1200 } Passes Passed simulated "reads, switches or clears NVML's accounting; changes need root on the host"
                (device: nvmlDevice_t, mode: *mut nvmlEnableState_t);
            call nvmlDeviceSetAccountingMode { 1200 } Passes Passed simulated "reads, switches or clears NVML's accounting; changes need root on the host"
                (device: nvmlDevice_t, mode: nvmlEnableState_t);

            // Which GPUs there are.
            hook nvmlDeviceGetCount { 1200 } Passes Guarded simulated "the container runtime hides GPUs; cgpu does not"
                (device_count: *mut c_uint);
            hook nvmlDeviceGetCount_v2 { 1200 } Passes Guarded simulated "the container runtime hides GPUs; cgpu does not"
                (device_count: *mut c_uint);
            hook nvmlDeviceGetHandleByIndex { 1200 } Passes Guarded simulated "the container runtime hides GPUs; cgpu does not"
                (index: c_uint, device: *mut nvmlDevice_t);
            hook nvmlDeviceGetHandleByIndex_v2 { 1200 } Passes Guarded simulated "the container runtime hides GPUs; cgpu does not"
                (index: c_uint, device: *mut nvmlDevice_t);
            hook nvmlDeviceGetHandleByPciBusId { 1200 } Passes Guarded simulated "the container runtime hides GPUs; cgpu does not"
                (pci_bus_id: *const c_char, device: *mut nvmlDevice_t);
            hook nvmlDeviceGetHandleByPciBusId_v2 { 1200 } Passes Guarded simulated "the container runtime hides GPUs; cgpu does not"
                (pci_bus_id: *const c_char, device: *mut nvmlDevice_t);
            hook nvmlDeviceGetHandleBySerial { 1200 } Passes Guarded simulated "the container runtime hides GPUs; cgpu does not"
                (serial: *const c_char, device: *mut nvmlDevice_t);
            hook nvmlDeviceGetHandleByUUID { 1200 } Passes Guarded simulated "the container runtime hides GPUs; cgpu does not"
                (uuid: *const c_char, device: *mut nvmlDevice_t);
            call nvmlDeviceGetIndex { 1200 } Passes Passed simulated "the container runtime hides GPUs; cgpu does not"
                (device: nvmlDevice_t, index: *mut c_uint);
            call nvmlDeviceGetMinorNumber { 1200 } Passes Passed simulated "the container runtime hides GPUs; cgpu does not"
                (device: nvmlDevice_t, minor_number: *mut c_uint);
            call nvmlDeviceGetName { 1200 } Passes Passed simulated "the container runtime hides GPUs; cgpu does not"
                (device: nvmlDevice_t, name: *mut c_char, length: c_uint);
            call nvmlDeviceGetUUID { 1200 } Passes Passed simulated "the container runtime hides GPUs; cgpu does not"
                (device: nvmlDevice_t, uuid: *mut c_char, length: c_uint);
            pass nvmlDeviceGetHandleByUUIDV { 1209 } Passes Passed stub "the container runtime hides GPUs; cgpu does not";
            hook nvmlSystemGetCudaDriverVersion { 1200 } Passes Guarded simulated "reads a version"
                (cuda_driver_version: *mut c_int);
            hook nvmlSystemGetCudaDriverVersion_v2 { 1200 } Passes Guarded simulated "reads a version"
                (cuda_driver_version: *mut c_int);
            hook nvmlSystemGetDriverVersion { 1200 } Passes Guarded simulated "reads a version"
                (version: *mut c_char, length: c_uint);
            hook nvmlSystemGetNVMLVersion { 1200 } Passes Guarded simulated "reads a version"
                (version: *mut c_char, length: c_uint);

            // The GPU's properties.
            call nvmlDeviceGetApplicationsClock { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_mhz: *mut c_uint);
            call nvmlDeviceGetArchitecture { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, arch: *mut nvmlDeviceArchitecture_t);
            call nvmlDeviceGetBoardId { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, board_id: *mut c_uint);
            call nvmlDeviceGetBrand { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, kind: *mut nvmlBrandType_t);
            call nvmlDeviceGetClock { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_id: nvmlClockId_t, clock_mhz: *mut c_uint);
            call nvmlDeviceGetClockInfo { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, kind: nvmlClockType_t, clock: *mut c_uint);
            call nvmlDeviceGetComputeInstanceId { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, id: *mut c_uint);
            call nvmlDeviceGetComputeMode { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, mode: *mut nvmlComputeMode_t);
            call nvmlDeviceGetCudaComputeCapability { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int);
            call nvmlDeviceGetCurrPcieLinkGeneration { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, curr_link_gen: *mut c_uint);
            call nvmlDeviceGetCurrPcieLinkWidth { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, curr_link_width: *mut c_uint);
            call nvmlDeviceGetCurrentClocksEventReasons { 1202 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, clocks_event_reasons: *mut c_ulonglong);
            call nvmlDeviceGetCurrentClocksThrottleReasons { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, clocks_throttle_reasons: *mut c_ulonglong);
            call nvmlDeviceGetDecoderUtilization { 1200 } Reports Passed simulated "utilisation of the whole GPU, which all containers share"
                (device: nvmlDevice_t, utilization: *mut c_uint, sampling_period_us: *mut c_uint);
            call nvmlDeviceGetDefaultApplicationsClock { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_mhz: *mut c_uint);
            call nvmlDeviceGetDefaultEccMode { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, default_mode: *mut nvmlEnableState_t);
            call nvmlDeviceGetDeviceHandleFromMigDeviceHandle { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (mig_device: nvmlDevice_t, device: *mut nvmlDevice_t);
            call nvmlDeviceGetDisplayActive { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, is_active: *mut nvmlEnableState_t);
            call nvmlDeviceGetDisplayMode { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, display: *mut nvmlEnableState_t);
            call nvmlDeviceGetEccMode { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, current: *mut nvmlEnableState_t, pending: *mut nvmlEnableState_t);
            call nvmlDeviceGetEncoderUtilization { 1200 } Reports Passed simulated "utilisation of the whole GPU, which all containers share"
                (device: nvmlDevice_t, utilization: *mut c_uint, sampling_period_us: *mut c_uint);
            call nvmlDeviceGetEnforcedPowerLimit { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, limit: *mut c_uint);
            call nvmlDeviceGetFanSpeed { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, speed: *mut c_uint);
            call nvmlDeviceGetFanSpeed_v2 { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, fan: c_uint, speed: *mut c_uint);
            call nvmlDeviceGetGpuInstanceId { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, id: *mut c_uint);
            call nvmlDeviceGetMaxClockInfo { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, kind: nvmlClockType_t, clock: *mut c_uint);
            call nvmlDeviceGetMaxMigDeviceCount { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, count: *mut c_uint);
            call nvmlDeviceGetMaxPcieLinkGeneration { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, max_link_gen: *mut c_uint);
            call nvmlDeviceGetMaxPcieLinkWidth { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, max_link_width: *mut c_uint);
            call nvmlDeviceGetMemoryBusWidth { 1200 } Passes Passed simulated "widths, clocks and errors of the memory chips, not the memory in use"
                (device: nvmlDevice_t, bus_width: *mut c_uint);
            call nvmlDeviceGetMemoryErrorCounter { 1200 } Passes Passed simulated "widths, clocks and errors of the memory chips, not the memory in use"
                (device: nvmlDevice_t, error_type: nvmlMemoryErrorType_t, counter_type: nvmlEccCounterType_t, location_type: nvmlMemoryLocation_t, count: *mut c_ulonglong);
            call nvmlDeviceGetMigDeviceHandleByIndex { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, index: c_uint, mig_device: *mut nvmlDevice_t);
            call nvmlDeviceGetMigMode { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, current_mode: *mut c_uint, pending_mode: *mut c_uint);
            call nvmlDeviceGetMultiGpuBoard { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, multi_gpu_bool: *mut c_uint);
            call nvmlDeviceGetNumFans { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, num_fans: *mut c_uint);
            call nvmlDeviceGetNumGpuCores { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, num_cores: *mut c_uint);
            call nvmlDeviceGetNvLinkState { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, link: c_uint, is_active: *mut nvmlEnableState_t);
            call nvmlDeviceGetPciInfo { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
            call nvmlDeviceGetPciInfo_v2 { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
            call nvmlDeviceGetPciInfo_v3 { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
            call nvmlDeviceGetPcieThroughput { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, counter: nvmlPcieUtilCounter_t, value: *mut c_uint);
            call nvmlDeviceGetPerformanceState { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, state: *mut nvmlPstates_t);
            call nvmlDeviceGetPersistenceMode { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, mode: *mut nvmlEnableState_t);
            call nvmlDeviceGetPowerManagementDefaultLimit { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, default_limit: *mut c_uint);
            call nvmlDeviceGetPowerManagementLimit { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, limit: *mut c_uint);
            call nvmlDeviceGetPowerManagementLimitConstraints { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, min_limit: *mut c_uint, max_limit: *mut c_uint);
            call nvmlDeviceGetPowerManagementMode { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, mode: *mut nvmlEnableState_t);
            call nvmlDeviceGetPowerState { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, state: *mut nvmlPstates_t);
            call nvmlDeviceGetPowerUsage { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, power: *mut c_uint);
            call nvmlDeviceGetSerial { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, serial: *mut c_char, length: c_uint);
            call nvmlDeviceGetSupportedClocksThrottleReasons { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, supported_clocks_throttle_reasons: *mut c_ulonglong);
            call nvmlDeviceGetTemperature { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, sensor_type: nvmlTemperatureSensors_t, temperature: *mut c_uint);
            call nvmlDeviceGetTemperatureThreshold { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, threshold_type: nvmlTemperatureThresholds_t, temperature: *mut c_uint);
            call nvmlDeviceGetTotalEccErrors { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, error_type: nvmlMemoryErrorType_t, counter_type: nvmlEccCounterType_t, ecc_counts: *mut c_ulonglong);
            call nvmlDeviceGetTotalEnergyConsumption { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, energy: *mut c_ulonglong);
            call nvmlDeviceGetVbiosVersion { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, version: *mut c_char, length: c_uint);
            call nvmlDeviceGetVirtualizationMode { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, virtual_mode: *mut nvmlGpuVirtualizationMode_t);
            call nvmlDeviceIsMigDeviceHandle { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, is_mig_device: *mut c_uint);
            pass nvmlDeviceGetNvLinkCapability { 1200 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkErrorCounter { 1200 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkInfo { 1300 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkInfo_v3 { 1305 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkRemoteDeviceType { 1200 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkRemotePciInfo { 1200 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkRemotePciInfo_v2 { 1200 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkTelemetrySamples_v1 { 1304 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkUtilizationControl { 1200 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkUtilizationCounter { 1200 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvLinkVersion { 1200 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvlinkBwMode { 1208 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvlinkNvlePrivateInfo_v1 { 1305 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvlinkRemapTableInfo_v1 { 1305 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetNvlinkSupportedBwModes { 1208 } Passes Passed stub "reads about links between GPUs";
            pass nvmlDeviceGetActiveVgpus { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetCreatableVgpus { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetGridLicensableFeatures { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetGridLicensableFeatures_v2 { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetGridLicensableFeatures_v3 { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetGridLicensableFeatures_v4 { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetHostVgpuMode { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetPgpuMetadataString { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetSupportedVgpus { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuCapabilities { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuHeterogeneousMode { 1204 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuInstancesUtilizationInfo { 1204 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuMetadata { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuProcessUtilization { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuProcessesUtilizationInfo { 1204 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuSchedulerCapabilities { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuSchedulerLog { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuSchedulerLog_v2 { 1302 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuSchedulerState { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuSchedulerState_v2 { 1302 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuTypeCreatablePlacements { 1204 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuTypeSupportedPlacements { 1204 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetVgpuUtilization { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlDeviceGetAPIRestriction { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetAdaptiveClockInfoStatus { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetAdaptiveTgpModeInfo_v1 { 1304 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetAddressingMode { 1300 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetAutoBoostedClocksEnabled { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetBBXTimeData_v1 { 1303 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetBankRemapperStatus_v1 { 1304 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetBoardPartNumber { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetBridgeChipInfo { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetBusType { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetC2cModeInfoV { 1204 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetCapabilities { 1206 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetClkMonStatus { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetClockOffsets { 1206 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetConfComputeGpuAttestationReport { 1202 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetConfComputeGpuCertificate { 1202 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetCoolerInfo { 1208 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetCpuAffinity { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetCpuAffinityWithinScope { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetCurrentClockFreqs { 1208 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetDetailedEccErrors { 1200 } Passes Passed stub "widths, clocks and errors of the memory chips, not the memory in use";
            pass nvmlDeviceGetDramEncryptionMode { 1208 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetDriverModel { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetDriverModel_v2 { 1206 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetDynamicPstatesInfo { 1200 } Reports Passed stub "utilisation of the whole GPU, which all containers share";
            pass nvmlDeviceGetEncoderCapacity { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetEncoderStats { 1200 } Reports Passed stub "counters of the whole GPU, which all containers share";
            pass nvmlDeviceGetFBCStats { 1200 } Reports Passed stub "counters of the whole GPU, which all containers share";
            pass nvmlDeviceGetFanControlPolicy_v2 { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetFanSpeedRPM { 1208 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpcClkMinMaxVfOffset { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpcClkVfOffset { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuFabricInfo { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuFabricInfo_v4 { 1304 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuFabricInfoV { 1204 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuInstanceById { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuInstancePossiblePlacements { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuInstancePossiblePlacements_v2 { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuInstanceProfileInfo { 1200 } Reports Passed stub "the MIG instances that the GPU can have";
            pass nvmlDeviceGetGpuInstanceProfileInfoByIdV { 1300 } Reports Passed stub "the MIG instances that the GPU can have";
            pass nvmlDeviceGetGpuInstanceProfileInfoV { 1200 } Reports Passed stub "the MIG instances that the GPU can have";
            pass nvmlDeviceGetGpuInstanceRemainingCapacity { 1200 } Reports Passed stub "the MIG instances that the GPU can have";
            pass nvmlDeviceGetGpuInstances { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuMaxPcieLinkGeneration { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuOperationMode { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGpuUptime_v1 { 1305 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGspFirmwareMode { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetGspFirmwareVersion { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetHostname_v1 { 1300 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetInforomConfigurationChecksum { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetInforomImageVersion { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetInforomVersion { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetIrqNum { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetJpgUtilization { 1202 } Reports Passed stub "utilisation of the whole GPU, which all containers share";
            pass nvmlDeviceGetLastBBXFlushTime { 1204 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetMarginTemperature { 1208 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetMaxCustomerBoostClock { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetMemClkMinMaxVfOffset { 1200 } Passes Passed stub "widths, clocks and errors of the memory chips, not the memory in use";
            pass nvmlDeviceGetMemClkVfOffset { 1200 } Passes Passed stub "widths, clocks and errors of the memory chips, not the memory in use";
            pass nvmlDeviceGetMemoryAffinity { 1200 } Passes Passed stub "widths, clocks and errors of the memory chips, not the memory in use";
            pass nvmlDeviceGetMinMaxClockOfPState { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetMinMaxFanSpeed { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetModuleId { 1202 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetNumaNodeId { 1204 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetOfaUtilization { 1202 } Reports Passed stub "utilisation of the whole GPU, which all containers share";
            pass nvmlDeviceGetP2PStatus { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPciInfoExt { 1204 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPcieLinkMaxSpeed { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPcieReplayCounter { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPcieSpeed { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPdi { 1300 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPerformanceModes { 1208 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPlatformInfo { 1208 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPowerMizerMode_v1 { 1300 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetPowerSource { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetRemappedRows { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetRemappedRows_v2 { 1302 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetRepairStatus { 1300 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetRetiredPages { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetRetiredPages_v2 { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetRetiredPagesPendingStatus { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetRowRemapperHistogram { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetSramEccErrorStatus { 1204 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts { 1300 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetSupportedClocksEventReasons { 1202 } Passes Passed stub "reads a property that the limit does not change";
            call nvmlDeviceGetSupportedEventTypes { 1200 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, event_types: *mut c_ulonglong);
            pass nvmlDeviceGetSupportedGraphicsClocks { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetSupportedMemoryClocks { 1200 } Passes Passed stub "widths, clocks and errors of the memory chips, not the memory in use";
            pass nvmlDeviceGetSupportedPerformanceStates { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetTargetFanSpeed { 1200 } Passes Passed stub "reads a property that the limit does not change";
            call nvmlDeviceGetTemperatureV { 1208 } Passes Passed simulated "reads a property that the limit does not change"
                (device: nvmlDevice_t, temperature: *mut nvmlTemperature_t);
            pass nvmlDeviceGetThermalSettings { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetTopologyCommonAncestor { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetTopologyNearestGpus { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceGetUnrepairableMemoryFlag_v1 { 1301 } Passes Passed stub "widths, clocks and errors of the memory chips, not the memory in use";
            pass nvmlDeviceGetViolationStatus { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceOnSameBoard { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceQueryDrainState { 1200 } Passes Passed stub "reads a property that the limit does not change";
            pass nvmlDeviceValidateInforom { 1200 } Passes Passed stub "reads a property that the limit does not change";

            // Settings of the GPU.
            pass nvmlDeviceCcuGetStreamState { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceCcuSetStreamState { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceClearCpuAffinity { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceClearEccErrorCounts { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceClearFieldValues { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceCreateGpuInstance { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceCreateGpuInstanceWithPlacement { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceFreezeNvLinkUtilizationCounter { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceLockNvlinkRemapTable_v1 { 1305 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceModifyDrainState { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDevicePowerSmoothingActivatePresetProfile { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDevicePowerSmoothingSetState { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDevicePowerSmoothingUpdatePresetProfileParam { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceReadPRMCounters_v1 { 1301 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceReadWritePRM_v1 { 1300 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceRemoveGpu { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceRemoveGpu_v2 { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceResetApplicationsClocks { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceResetGpuLockedClocks { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceResetMemoryLockedClocks { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceResetNvLinkErrorCounters { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceResetNvLinkUtilizationCounter { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetAPIRestriction { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetAdaptiveTgpMode_v1 { 1304 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetApplicationsClocks { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetAutoBoostedClocksEnabled { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetClockOffsets { 1206 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetComputeMode { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetConfComputeUnprotectedMemSize { 1202 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetCpuAffinity { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetDefaultAutoBoostedClocksEnabled { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetDefaultFanSpeed_v2 { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetDramEncryptionMode { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetDriverModel { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetEccMode { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetFanControlPolicy { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetFanSpeed_v2 { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetGpcClkVfOffset { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetGpuLockedClocks { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetGpuOperationMode { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetHostname_v1 { 1300 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetMemClkVfOffset { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            call nvmlDeviceSetMemoryLimits_v1 { 1304 } Passes Passed simulated "changes or services the GPU, which needs root on the host"
                (device: nvmlDevice_t, limits: *mut nvmlSetMemoryLimits_v1_t);
            pass nvmlDeviceSetMemoryLockedClocks { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetMigMode { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetNvLinkDeviceLowPowerThreshold { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetNvLinkUtilizationControl { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetNvlinkBwMode { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetNvlinkBwModeAsync_v1 { 1304 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetNvlinkNvleReady_v1 { 1305 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetPersistenceMode { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetPowerManagementLimit { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetPowerManagementLimit_v2 { 1202 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetPowerMizerMode_v1 { 1300 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetRusdSettings_v1 { 1301 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetTemperatureThreshold { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetVgpuCapabilities { 1204 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetVgpuHeterogeneousMode { 1204 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetVgpuSchedulerState { 1202 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetVgpuSchedulerState_v2 { 1302 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetVirtualizationMode { 1200 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceSetupNvlinkNvleEncryptionKey_v1 { 1305 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceVgpuForceGspUnload { 1302 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceWorkloadPowerProfileClearRequestedProfiles { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceWorkloadPowerProfileGetCurrentProfiles { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceWorkloadPowerProfileGetProfilesInfo { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceWorkloadPowerProfileSetRequestedProfiles { 1208 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1 { 1301 } Passes Passed stub "changes or services the GPU, which needs root on the host";
            pass nvmlDeviceDiscoverGpus { 1200 } Passes Passed stub "discovers GPUs and registers for their events";
            call nvmlDeviceRegisterEvents { 1200 } Passes Passed simulated "discovers GPUs and registers for their events"
                (device: nvmlDevice_t, event_types: c_ulonglong, set: nvmlEventSet_t);

            // MIG instances.
            pass nvmlComputeInstanceDestroy { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlComputeInstanceGetInfo { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlComputeInstanceGetInfo_v2 { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceCreateComputeInstance { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceCreateComputeInstanceWithPlacement { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceDestroy { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetActiveVgpus { 1209 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetComputeInstanceById { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetComputeInstancePossiblePlacements { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetComputeInstanceProfileInfo { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetComputeInstanceProfileInfoV { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetComputeInstanceRemainingCapacity { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetComputeInstances { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetCreatableVgpus { 1209 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetInfo { 1200 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetVgpuHeterogeneousMode { 1209 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetVgpuSchedulerLog { 1209 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetVgpuSchedulerLog_v2 { 1302 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetVgpuSchedulerState { 1209 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetVgpuSchedulerState_v2 { 1302 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceGetVgpuTypeCreatablePlacements { 1209 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceSetVgpuHeterogeneousMode { 1209 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceSetVgpuSchedulerState { 1209 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";
            pass nvmlGpuInstanceSetVgpuSchedulerState_v2 { 1302 } Passes Passed stub "an instance of a partitioned GPU; the limit applies to it as to a GPU";

            // Virtual GPUs of virtual machines.
            pass nvmlGetVgpuCompatibility { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlGetVgpuDriverCapabilities { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlGetVgpuVersion { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlSetVgpuVersion { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceClearAccountingPids { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetAccountingMode { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetAccountingPids { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetAccountingStats { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetEccMode { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetEncoderCapacity { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetEncoderSessions { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetEncoderStats { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetFBCSessions { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetFBCStats { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetFbUsage { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetFrameRateLimit { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetGpuInstanceId { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetGpuPciId { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetLicenseInfo { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetLicenseInfo_v2 { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetLicenseStatus { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetMdevUUID { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetMetadata { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetPlacementId { 1204 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetRuntimeStateSize { 1208 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetType { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetUUID { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetVmDriverVersion { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceGetVmID { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuInstanceSetEncoderCapacity { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetBAR1Info { 1206 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetCapabilities { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetClass { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetDeviceID { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetFbReservation { 1204 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetFrameRateLimit { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetFramebufferSize { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetGpuInstanceProfileId { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetGspHeapSize { 1204 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetLicense { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetMaxInstances { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetMaxInstancesPerGpuInstance { 1209 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetMaxInstancesPerVm { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetName { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetNumDisplayHeads { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";
            pass nvmlVgpuTypeGetResolution { 1200 } Passes Passed stub "virtual GPUs of virtual machines, which no container has";

            // The system around the GPU.
            pass nvmlGetBlacklistDeviceCount { 0 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlGetBlacklistDeviceInfoByIndex { 0 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlGetExcludedDeviceCount { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlGetExcludedDeviceInfoByIndex { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemEventSetCreate { 1209 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemEventSetFree { 1209 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemEventSetWait { 1209 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetCPER_v1 { 1303 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetConfComputeCapabilities { 1202 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetConfComputeGpusReadyState { 1202 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetConfComputeKeyRotationThresholdInfo { 1204 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetConfComputeSettings { 1204 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetConfComputeSettings_v2 { 1305 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetConfComputeState { 1202 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetDriverBranch { 1206 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetHicVersion { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetNvlinkBwMode { 1202 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemGetTopologyGpuSet { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemRegisterEvents { 1209 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemSetConfComputeGpusReadyState { 1202 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemSetConfComputeKeyRotationThresholdInfo { 1204 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlSystemSetNvlinkBwMode { 1202 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitGetCount { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitGetDevices { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitGetFanSpeedInfo { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitGetHandleByIndex { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitGetLedState { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitGetPsuInfo { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitGetTemperature { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitGetUnitInfo { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            pass nvmlUnitSetLedState { 1200 } Passes Passed stub "reads or configures the system around the GPU";
            call nvmlEventSetCreate { 1200 } Passes Passed simulated "waits for events of the GPU"
                (set: *mut nvmlEventSet_t);
            call nvmlEventSetFree { 1200 } Passes Passed simulated "waits for events of the GPU"
                (set: nvmlEventSet_t);
            pass nvmlEventSetGetContextCount_v1 { 1304 } Passes Passed stub "waits for events of the GPU";
            pass nvmlEventSetGetContextData_v1 { 1304 } Passes Passed stub "waits for events of the GPU";
            pass nvmlEventSetGetContextInfo_v1 { 1304 } Passes Passed stub "waits for events of the GPU";
            pass nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1 { 1304 } Passes Passed stub "waits for events of the GPU";
            pass nvmlEventSetRegisterGpuOperationalEvents_v1 { 1304 } Passes Passed stub "waits for events of the GPU";
            call nvmlEventSetWait { 1200 } Passes Passed simulated "waits for events of the GPU"
                (set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint);
            call nvmlEventSetWait_v2 { 1200 } Passes Passed simulated "waits for events of the GPU"
                (set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint);
            pass nvmlEventSetWait_v3 { 1304 } Passes Passed stub "waits for events of the GPU";
            pass nvmlGpmMigSampleGet { 1200 } Passes Passed stub "samples counters of the whole GPU";
            pass nvmlGpmQueryDeviceSupport { 1200 } Passes Passed stub "samples counters of the whole GPU";
            pass nvmlGpmQueryIfStreamingEnabled { 1202 } Passes Passed stub "samples counters of the whole GPU";
            pass nvmlGpmSampleAlloc { 1200 } Passes Passed stub "samples counters of the whole GPU";
            pass nvmlGpmSampleFree { 1200 } Passes Passed stub "samples counters of the whole GPU";
            pass nvmlGpmSampleGet { 1200 } Passes Passed stub "samples counters of the whole GPU";
            pass nvmlGpmSetStreamingEnabled { 1202 } Passes Passed stub "samples counters of the whole GPU";
        }
    };
}
