//! Functions: kernels in a context, their attributes, and their occupancy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;
use cgpu_sim::{GpuSpec, Kernel as Behaviour};

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::{In, Out, Received, values};
use crate::attribute;
use crate::call::Call;
use crate::context::Context;
use crate::driver::{Driver, count, lock};
use crate::image::KernelShape;
use crate::loading;

values!(CUfunction, CUoccupancyB2DSize);

/// A kernel in a context.
#[derive(Debug)]
pub(crate) struct Function {
    /// The name for C callers.
    pub(crate) name: std::ffi::CString,
    pub(crate) behaviour: Behaviour,
    pub(crate) context: Arc<Context>,
    module: CUmodule,
    /// Offset and size of each parameter, if the image declares them in PTX.
    parameters: Option<Vec<(usize, usize)>>,
    attributes: Mutex<HashMap<CUfunction_attribute, c_int>>,
    /// Whether its code is on the GPU.
    loaded: Mutex<bool>,
    /// For launches by the interface before CUDA 4: the block's dimensions and shared memory.
    pub(crate) block: Mutex<([c_uint; 3], c_uint)>,
}

impl Function {
    /// Creates a function of a module. With eager loading, a declared function is on the GPU
    /// already.
    pub(crate) fn new(
        shape: KernelShape,
        declared: bool,
        module: CUmodule,
        context: Arc<Context>,
    ) -> Self {
        Self {
            behaviour: Behaviour::named(&shape.name),
            // A name that came from C contains no NUL.
            name: std::ffi::CString::new(shape.name).unwrap_or_default(),
            context,
            module,
            parameters: declared.then_some(shape.parameters),
            attributes: Mutex::default(),
            loaded: Mutex::new(declared && loading::is_eager()),
            block: Mutex::new(([1; 3], 0)),
        }
    }

    /// Loads its code onto the GPU, unless it is there.
    pub(crate) fn load(&self, driver: &Driver) -> Answer {
        let mut loaded = lock(&self.loaded);
        if !*loaded {
            driver.machine.load_code(self.context.id)?;
            *loaded = true;
        }
        Ok(())
    }

    /// Returns an attribute; `None` if it is unknown.
    fn attribute(&self, attrib: CUfunction_attribute, spec: &GpuSpec) -> Option<c_int> {
        let default = default_attribute(attrib, spec.model.capability)?;
        Some(lock(&self.attributes).get(&attrib).copied().unwrap_or(default))
    }

    pub(crate) fn registers(&self, spec: &GpuSpec) -> Answer<u64> {
        let registers = self.attribute(CU_FUNC_ATTRIBUTE_NUM_REGS, spec).ok_or(INVALID_VALUE)?;
        u64::try_from(registers).map_err(|_| INVALID_VALUE)
    }
}

impl Function {
    /// Returns offset and size of each parameter, if the image declares them.
    pub(crate) fn parameters(&self) -> Option<&[(usize, usize)]> {
        self.parameters.as_deref()
    }
}

/// Returns the function of a handle. A library's kernel stands for its function in the current
/// context.
pub(crate) fn find(driver: &Driver, handle: CUfunction) -> Answer<Arc<Function>> {
    if let Some(function) = driver.functions.get(handle.0) {
        return Ok(function);
    }
    let function = crate::library::function_of(driver, CUkernel(handle.0))?;
    driver.functions.get(function.0).ok_or(INVALID_HANDLE)
}

/// Returns an attribute's default; `None` if it is unknown.
pub(crate) fn default_attribute(
    attrib: CUfunction_attribute,
    capability: (u32, u32),
) -> Option<c_int> {
    let version = (capability.0 * 10 + capability.1).cast_signed();
    Some(match attrib {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
        CU_FUNC_ATTRIBUTE_PTX_VERSION | CU_FUNC_ATTRIBUTE_BINARY_VERSION => version,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => 49_152,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
        attrib if attrib <= CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE => 0,
        _ => return None,
    })
}

pub(crate) fn cuFuncGetAttribute(
    call: &Call,
    pi: Out<c_int>,
    attrib: CUfunction_attribute,
    hfunc: CUfunction,
) -> Answer {
    let driver = call.driver()?;
    let function = find(driver, hfunc)?;
    let spec = &driver.machine.gpus()[function.context.gpu];
    pi.put(function.attribute(attrib, spec).ok_or(INVALID_VALUE)?)?;
    Ok(())
}

pub(crate) fn cuFuncSetAttribute(
    call: &Call,
    hfunc: CUfunction,
    attrib: CUfunction_attribute,
    value: c_int,
) -> Answer {
    let function = find(call.driver()?, hfunc)?;
    if attrib < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        || default_attribute(attrib, (0, 0)).is_none()
    {
        return Err(INVALID_VALUE);
    }
    lock(&function.attributes).insert(attrib, value);
    Ok(())
}

pub(crate) fn cuFuncSetCacheConfig(
    call: &Call,
    hfunc: CUfunction,
    _config: CUfunc_cache,
) -> Answer {
    find(call.driver()?, hfunc)?;
    Ok(())
}

pub(crate) fn cuFuncSetSharedMemConfig(
    call: &Call,
    hfunc: CUfunction,
    _config: CUsharedconfig,
) -> Answer {
    find(call.driver()?, hfunc)?;
    Ok(())
}

pub(crate) fn cuFuncGetModule(call: &Call, hmod: Out<CUmodule>, hfunc: CUfunction) -> Answer {
    hmod.put(find(call.driver()?, hfunc)?.module)?;
    Ok(())
}

/// The text is valid as long as the function.
pub(crate) fn cuFuncGetName(call: &Call, name: Out<*const c_char>, hfunc: CUfunction) -> Answer {
    name.put(find(call.driver()?, hfunc)?.name.as_ptr())?;
    Ok(())
}

pub(crate) fn cuFuncGetParamCount(
    call: &Call,
    function: CUfunction,
    param_count: Out<usize>,
) -> Answer {
    let function = find(call.driver()?, function)?;
    param_count.put(function.parameters.as_ref().ok_or(INVALID_VALUE)?.len())?;
    Ok(())
}

pub(crate) fn cuFuncGetParamInfo(
    call: &Call,
    function: CUfunction,
    param_index: usize,
    param_offset: Out<usize>,
    param_size: Out<usize>,
) -> Answer {
    let function = find(call.driver()?, function)?;
    let (offset, size) =
        *function.parameters.as_ref().and_then(|all| all.get(param_index)).ok_or(INVALID_VALUE)?;
    param_offset.put(offset)?;
    param_size.put_if_not_null(size);
    Ok(())
}

pub(crate) fn cuFuncLoad(call: &Call, function: CUfunction) -> Answer {
    let driver = call.driver()?;
    find(driver, function)?.load(driver)
}

pub(crate) fn cuFuncIsLoaded(
    call: &Call,
    state: Out<CUfunctionLoadingState>,
    function: CUfunction,
) -> Answer {
    let loaded = *lock(&find(call.driver()?, function)?.loaded);
    state.put(if loaded {
        CU_FUNCTION_LOADING_STATE_LOADED
    } else {
        CU_FUNCTION_LOADING_STATE_UNLOADED
    })?;
    Ok(())
}

/// Returns the number of blocks that fit on a multiprocessor.
fn resident_blocks(
    driver: &Driver,
    function: &Function,
    threads: c_int,
    shared: usize,
) -> Answer<c_int> {
    let spec = &driver.machine.gpus()[function.context.gpu];
    let threads =
        u64::try_from(threads).ok().filter(|&threads| threads > 0).ok_or(INVALID_VALUE)?;
    let blocks = spec.model.resident_blocks(threads, shared as u64, function.registers(spec)?);
    c_int::try_from(blocks).map_err(|_| INVALID_VALUE)
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    call: &Call,
    num_blocks: Out<c_int>,
    function: CUfunction,
    block_size: c_int,
    dynamic_s_mem_size: usize,
    _flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let function = find(driver, function)?;
    num_blocks.put(resident_blocks(driver, &function, block_size, dynamic_s_mem_size)?)?;
    Ok(())
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    call: &Call,
    num_blocks: Out<c_int>,
    function: CUfunction,
    block_size: c_int,
    dynamic_s_mem_size: usize,
) -> Answer {
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        call,
        num_blocks,
        function,
        block_size,
        dynamic_s_mem_size,
        0,
    )
}

/// Answers with the largest block: it fills a multiprocessor as well as any other size.
pub(crate) fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    call: &Call,
    min_grid_size: Out<c_int>,
    block_size: Out<c_int>,
    function: CUfunction,
    block_size_to_dynamic_s_mem_size: CUoccupancyB2DSize,
    dynamic_s_mem_size: usize,
    block_size_limit: c_int,
    _flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let function = find(driver, function)?;
    let threads = if block_size_limit <= 0 { 1024 } else { block_size_limit.min(1024) };
    let shared = match block_size_to_dynamic_s_mem_size {
        None => dynamic_s_mem_size,
        // SAFETY: the program passes a function that takes a block size and may be called during
        // this call.
        Some(shared_of) => unsafe { shared_of(threads) },
    };
    let blocks = resident_blocks(driver, &function, threads, shared)?;
    let multiprocessors = driver.machine.gpus()[function.context.gpu].multiprocessors();
    min_grid_size.put(blocks * multiprocessors.cast_signed())?;
    block_size.put(threads)?;
    Ok(())
}

pub(crate) fn cuOccupancyMaxPotentialBlockSize(
    call: &Call,
    min_grid_size: Out<c_int>,
    block_size: Out<c_int>,
    function: CUfunction,
    block_size_to_dynamic_s_mem_size: CUoccupancyB2DSize,
    dynamic_s_mem_size: usize,
    block_size_limit: c_int,
) -> Answer {
    cuOccupancyMaxPotentialBlockSizeWithFlags(
        call,
        min_grid_size,
        block_size,
        function,
        block_size_to_dynamic_s_mem_size,
        dynamic_s_mem_size,
        block_size_limit,
        0,
    )
}

pub(crate) fn cuOccupancyAvailableDynamicSMemPerBlock(
    call: &Call,
    dynamic_smem_size: Out<usize>,
    function: CUfunction,
    num_blocks: c_int,
    _block_size: c_int,
) -> Answer {
    let driver = call.driver()?;
    let gpu = find(driver, function)?.context.gpu;
    let attrib = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
    let shared = attribute::value(attrib, &driver.machine.gpus()[gpu], gpu).unwrap_or(0);
    dynamic_smem_size.put(count(shared)?.checked_div(count(num_blocks)?).ok_or(INVALID_VALUE)?)?;
    Ok(())
}

/// Answers 8, which every GPU with clusters supports.
pub(crate) fn cuOccupancyMaxPotentialClusterSize(
    call: &Call,
    cluster_size: Out<c_int>,
    function: CUfunction,
    _config: In<CUlaunchConfig>,
) -> Answer {
    find(call.driver()?, function)?;
    cluster_size.put(8)?;
    Ok(())
}

pub(crate) fn cuOccupancyMaxActiveClusters(
    call: &Call,
    num_clusters: Out<c_int>,
    function: CUfunction,
    config: In<CUlaunchConfig>,
) -> Answer {
    let driver = call.driver()?;
    let function = find(driver, function)?;
    let config = config.read()?;
    let threads =
        config.block_dim_x.saturating_mul(config.block_dim_y).saturating_mul(config.block_dim_z);
    let threads = c_int::try_from(threads).map_err(|_| INVALID_VALUE)?;
    let blocks = resident_blocks(driver, &function, threads, count(config.shared_mem_bytes)?)?;
    let multiprocessors = driver.machine.gpus()[function.context.gpu].multiprocessors();
    num_clusters.put(blocks * multiprocessors.cast_signed() / 8)?;
    Ok(())
}
