//! A program of the driver API that does what it is told, a line at a time.
//!
//! It finds the driver as most programs do, by dlopen and dlsym, and knows nothing of cgpu.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command as Program, ExitCode};

use anyhow::{Context, Result, bail};
use cgpu_differential::command::{Answer, Command, PRIMARY, Sight};
use libloading::os::unix::{Library, RTLD_NOW, Symbol};

type Handle = *mut c_void;

/// Out of the driver's range: a context or an allocation that the actor does not have.
const NOT_OURS: i32 = -1;

/// The argument of a program that another one became: it answers for it, when the other one is certainly gone.
const SUCCESSOR: &str = "successor";

fn main() -> ExitCode {
    match act() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("actor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act() -> Result<()> {
    let mut actor = Actor::start()?;
    if std::env::args().nth(1).as_deref() == Some(SUCCESSOR) {
        say(&Answer::default())?;
    }
    let mut line = String::new();
    // Line by line, without reading ahead: whoever we become by `Execute` reads on where we stopped, which a buffer would swallow. The
    // other side waits for each answer, so one line is all there is.
    let mut input = std::io::stdin().lock();
    while input.read_line(&mut line)? > 0 {
        let command: Command = serde_json::from_str(&line)?;
        line.clear();
        if command == Command::Execute {
            return Err(Program::new(std::env::current_exe()?).arg(SUCCESSOR).exec().into());
        }
        say(&actor.perform(&command)?)?;
    }
    Ok(())
}

fn say(answer: &Answer) -> Result<()> {
    let mut output = std::io::stdout().lock();
    serde_json::to_writer(&mut output, answer)?;
    writeln!(output)?;
    Ok(output.flush()?)
}

struct Actor {
    driver: Library,
    nvml: Library,
    contexts: BTreeMap<u32, Handle>,
    /// Their contexts and addresses.
    allocations: BTreeMap<u32, (u32, u64)>,
    /// Handles of physical memory; where it is mapped, and how much; arrays; addresses in pools.
    handles: BTreeMap<u32, u64>,
    maps: BTreeMap<u32, (u64, u64)>,
    arrays: BTreeMap<u32, u64>,
    pooled: BTreeMap<u32, u64>,
    /// Whether it has ever had memory of a pool.
    pooling: bool,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Default)]
struct Property {
    kind: u32,
    handle_types: u32,
    location: u32,
    id: i32,
    metadata: usize,
    flags: u64,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Default)]
struct Descriptor {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Default)]
struct Requirements {
    size: usize,
    alignment: usize,
    reserved: [u32; 4],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_LOCATION_TYPE_HOST`.
const PINNED: u32 = 1;
const DEVICE: u32 = 1;
const HOST: u32 = 2;
/// `CU_AD_FORMAT_FLOAT`, `CUDA_ARRAY3D_DEFERRED_MAPPING`, `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const FLOAT: u32 = 0x20;
const DEFERRED: u32 = 0x80;
const RESERVED: usize = 5;

#[repr(C)]
#[derive(Default)]
struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

impl Actor {
    fn start() -> Result<Self> {
        // SAFETY: loading the driver runs its initialisers; this is what every client of it does.
        let driver = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) }.context("libcuda.so.1")?;
        // SAFETY: as above.
        let nvml =
            unsafe { Library::open(Some("libnvidia-ml.so.1"), RTLD_NOW) }.context("libnvidia-ml.so.1")?;
        Ok(Self {
            driver,
            nvml,
            contexts: BTreeMap::new(),
            allocations: BTreeMap::new(),
            handles: BTreeMap::new(),
            maps: BTreeMap::new(),
            arrays: BTreeMap::new(),
            pooled: BTreeMap::new(),
            pooling: false,
        })
    }

    fn perform(&mut self, command: &Command) -> Result<Answer> {
        let mut answer = Answer::default();
        match *command {
            Command::Init => {
                answer.code = self.call1(c"cuInit", 0)?;
                if answer.code == 0 {
                    let code = call(&self.nvml, c"nvmlInit_v2", [])?;
                    if code != 0 {
                        bail!("nvmlInit_v2 answered {code}");
                    }
                }
            }
            Command::ContextCreate { context } => {
                let mut handle: Handle = std::ptr::null_mut();
                answer.code = self.call3(c"cuCtxCreate_v2", place(&mut handle), 0, 0)?;
                if answer.code == 0 {
                    self.contexts.insert(context, handle);
                }
            }
            Command::ContextDestroy { context } => {
                let Some(handle) = self.contexts.get(&context) else { return Ok(lacking()) };
                answer.code = self.call1(c"cuCtxDestroy_v2", handle.addr())?;
                if answer.code == 0 {
                    self.contexts.remove(&context);
                }
            }
            Command::PrimaryRetain => {
                let mut handle: Handle = std::ptr::null_mut();
                answer.code = self.call3(c"cuDevicePrimaryCtxRetain", place(&mut handle), 0, 0)?;
                if answer.code == 0 {
                    self.contexts.insert(PRIMARY, handle);
                }
                answer.active = self.is_active()?;
            }
            Command::PrimaryRelease => {
                answer.code = self.call1(c"cuDevicePrimaryCtxRelease_v2", 0)?;
                answer.active = self.is_active()?;
            }
            Command::PrimaryReset => {
                answer.code = self.call1(c"cuDevicePrimaryCtxReset_v2", 0)?;
                answer.active = self.is_active()?;
            }
            Command::Allocate { context, key, bytes } => {
                answer.code = self.enter(context)?;
                if answer.code == 0 {
                    let size = usize::try_from(bytes)?;
                    answer.code = self.call3(c"cuMemAlloc_v2", place(&mut answer.address), size, 0)?;
                }
                self.keep(key, context, &answer);
            }
            Command::AllocatePitch { context, key, width, height } => {
                answer.code = self.enter(context)?;
                if answer.code == 0 {
                    let (width, height) = (usize::try_from(width)?, usize::try_from(height)?);
                    let (address, pitch) = (place(&mut answer.address), place(&mut answer.pitch));
                    answer.code =
                        call(&self.driver, c"cuMemAllocPitch_v2", [address, pitch, width, height, 4])?;
                }
                self.keep(key, context, &answer);
            }
            Command::Free { key } => {
                let Some(&(context, address)) = self.allocations.get(&key) else { return Ok(lacking()) };
                answer.code = self.enter(context)?;
                if answer.code == 0 {
                    answer.code = self.call1(c"cuMemFree_v2", usize::try_from(address)?)?;
                }
                if answer.code == 0 {
                    self.allocations.remove(&key);
                }
            }
            Command::PhysicalCreate { context, key, bytes, host } => {
                answer.code = self.enter(context)?;
                let location = if host { HOST } else { DEVICE };
                let mut property = Property { kind: PINNED, location, ..Property::default() };
                let mut handle = 0_u64;
                if answer.code == 0 {
                    let (size, property) = (usize::try_from(bytes)?, place(&mut property));
                    answer.code =
                        call(&self.driver, c"cuMemCreate", [place(&mut handle), size, property, 0])?;
                }
                if answer.code == 0 {
                    self.handles.insert(key, handle);
                }
            }
            Command::PhysicalMap { key, map, bytes } => {
                let Some(&handle) = self.handles.get(&key) else { return Ok(lacking()) };
                let size = usize::try_from(bytes)?;
                let address = place(&mut answer.address);
                answer.code = call(&self.driver, c"cuMemAddressReserve", [address, size, 0, 0, 0])?;
                if answer.code == 0 {
                    let (at, handle) = (usize::try_from(answer.address)?, usize::try_from(handle)?);
                    answer.code = call(&self.driver, c"cuMemMap", [at, size, 0, handle, 0])?;
                }
                if answer.code == 0 {
                    self.maps.insert(map, (answer.address, bytes));
                }
            }
            Command::PhysicalUnmap { map } => {
                let Some(&(address, bytes)) = self.maps.get(&map) else { return Ok(lacking()) };
                let (at, size) = (usize::try_from(address)?, usize::try_from(bytes)?);
                answer.code = call(&self.driver, c"cuMemUnmap", [at, size])?;
                if answer.code == 0 {
                    self.maps.remove(&map);
                    let code = call(&self.driver, c"cuMemAddressFree", [at, size])?;
                    if code != 0 {
                        bail!("cuMemAddressFree answered {code}");
                    }
                }
            }
            Command::PhysicalRelease { key } => {
                let Some(&handle) = self.handles.get(&key) else { return Ok(lacking()) };
                answer.code = self.call1(c"cuMemRelease", usize::try_from(handle)?)?;
                if answer.code == 0 {
                    self.handles.remove(&key);
                }
            }
            Command::PhysicalRetain { map, key } => {
                let Some(&(address, _)) = self.maps.get(&map) else { return Ok(lacking()) };
                let mut handle = 0_u64;
                let at = usize::try_from(address)?;
                answer.code = call(&self.driver, c"cuMemRetainAllocationHandle", [place(&mut handle), at])?;
                if answer.code == 0 {
                    self.handles.insert(key, handle);
                }
            }
            Command::ArrayCreate { context, key, width, height, depth, channels } => {
                answer.code = self.enter(context)?;
                let mut shape = Descriptor {
                    width: usize::try_from(width)?,
                    height: usize::try_from(height)?,
                    depth: usize::try_from(depth)?,
                    format: FLOAT,
                    channels,
                    flags: 0,
                };
                if answer.code == 0 {
                    answer.needed = self.needed(&mut shape)?;
                    let mut array = 0_u64;
                    answer.code =
                        self.call3(c"cuArray3DCreate_v2", place(&mut array), place(&mut shape), 0)?;
                    if answer.code == 0 {
                        self.arrays.insert(key, array);
                    }
                }
            }
            Command::ArrayDestroy { context, key } => {
                let Some(&array) = self.arrays.get(&key) else { return Ok(lacking()) };
                answer.code = self.enter(context)?;
                if answer.code == 0 {
                    answer.code = self.call1(c"cuArrayDestroy", usize::try_from(array)?)?;
                }
                if answer.code == 0 {
                    self.arrays.remove(&key);
                }
            }
            Command::PoolAllocate { context, key, bytes } => {
                answer.code = self.enter(context)?;
                if answer.code == 0 {
                    self.pooling = true;
                    let size = usize::try_from(bytes)?;
                    answer.code = self.call3(c"cuMemAllocAsync", place(&mut answer.address), size, 0)?;
                }
                if answer.code == 0 {
                    self.pooled.insert(key, answer.address);
                }
            }
            Command::PoolFree { context, key } => {
                let Some(&address) = self.pooled.get(&key) else { return Ok(lacking()) };
                answer.code = self.enter(context)?;
                if answer.code == 0 {
                    answer.code = call(&self.driver, c"cuMemFreeAsync", [usize::try_from(address)?, 0])?;
                }
                if answer.code == 0 {
                    self.pooled.remove(&key);
                }
            }
            Command::Synchronise { context } => {
                answer.code = self.enter(context)?;
                if answer.code == 0 {
                    answer.code = self.call1(c"cuStreamSynchronize", 0)?;
                }
            }
            Command::FreeUnknown => answer.code = self.call1(c"cuMemFree_v2", 0x1000)?,
            Command::Look { context } => {
                answer.code = self.enter(context)?;
                if answer.code == 0 {
                    answer.sight = self.look()?;
                }
            }
            Command::Fork => answer.code = self.fork()?,
            Command::Execute => {}
        }
        if self.pooling {
            answer.pooled = self.holds()?;
        }
        Ok(answer)
    }

    /// What the default pool of the first card holds.
    fn holds(&self) -> Result<u64> {
        let (mut pool, mut reserved) = (0_usize, 0_u64);
        let codes = [
            self.call3(c"cuDeviceGetDefaultMemPool", place(&mut pool), 0, 0)?,
            self.call3(c"cuMemPoolGetAttribute", pool, RESERVED, place(&mut reserved))?,
        ];
        if codes == [0; 2] { Ok(reserved) } else { bail!("the pool's getters answered {codes:?}") }
    }

    /// What the driver needs for an array, which it tells of one that is mapped later; 0 if it refuses the shape.
    fn needed(&self, shape: &mut Descriptor) -> Result<u64> {
        let (mut array, mut needed) = (0_usize, Requirements::default());
        shape.flags = DEFERRED;
        let code = self.call3(c"cuArray3DCreate_v2", place(&mut array), place(shape), 0)?;
        shape.flags = 0;
        if code != 0 {
            return Ok(0);
        }
        let codes = [
            self.call3(c"cuArrayGetMemoryRequirements", place(&mut needed), array, 0)?,
            self.call1(c"cuArrayDestroy", array)?,
        ];
        if codes == [0; 2] { Ok(needed.size as u64) } else { bail!("the array's getters answered {codes:?}") }
    }

    fn keep(&mut self, key: u32, context: u32, answer: &Answer) {
        if answer.code == 0 {
            self.allocations.insert(key, (context, answer.address));
        }
    }

    /// Makes a context current.
    fn enter(&self, context: u32) -> Result<i32> {
        match self.contexts.get(&context) {
            Some(handle) => self.call1(c"cuCtxSetCurrent", handle.addr()),
            None => Ok(NOT_OURS),
        }
    }

    fn is_active(&self) -> Result<bool> {
        let (mut flags, mut active) = (0_u32, 0_i32);
        let code = self.call3(c"cuDevicePrimaryCtxGetState", 0, place(&mut flags), place(&mut active))?;
        if code == 0 { Ok(active != 0) } else { bail!("cuDevicePrimaryCtxGetState answered {code}") }
    }

    fn look(&self) -> Result<Sight> {
        let (mut free, mut total, mut device_total) = (0_usize, 0_usize, 0_usize);
        let mut device: Handle = std::ptr::null_mut();
        let mut memory = NvmlMemory::default();
        let codes = [
            self.call3(c"cuMemGetInfo_v2", place(&mut free), place(&mut total), 0)?,
            self.call3(c"cuDeviceTotalMem_v2", place(&mut device_total), 0, 0)?,
            call(&self.nvml, c"nvmlDeviceGetHandleByIndex_v2", [0, place(&mut device)])?,
            call(&self.nvml, c"nvmlDeviceGetMemoryInfo", [device.addr(), place(&mut memory)])?,
        ];
        if codes != [0; 4] {
            bail!("the getters answered {codes:?}");
        }
        Ok(Sight {
            free: free as u64,
            total: total as u64,
            device_total: device_total as u64,
            nvml_total: memory.total,
            nvml_used: memory.used,
            nvml_free: memory.free,
        })
    }

    /// A child has no part in its parent's driver. It tries, and ends with 0 if it was told so.
    fn fork(&self) -> Result<i32> {
        // SAFETY: this process has one thread of ours; those of the driver are not needed by the child, which only calls what must
        // answer without them, and ends by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut address = 0_u64;
            let tried = self.call3(c"cuMemAlloc_v2", place(&mut address), 4096, 0);
            let refused = tried.is_ok_and(|code| code != 0);
            // SAFETY: ends the child without its parent's exit handlers.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: the child is ours; the call fills the one status, which outlives it.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if child < 0 || waited != child {
            bail!("fork: {}", std::io::Error::last_os_error());
        }
        Ok(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) })
    }

    fn call1(&self, name: &CStr, one: usize) -> Result<i32> {
        call(&self.driver, name, [one])
    }

    fn call3(&self, name: &CStr, one: usize, two: usize, three: usize) -> Result<i32> {
        call(&self.driver, name, [one, two, three])
    }
}

/// Calls a function whose parameters are all integers or pointers.
fn call<const N: usize>(library: &Library, name: &CStr, arguments: [usize; N]) -> Result<i32> {
    type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> i32;
    // SAFETY: the callers name functions with at most five parameters, each an integer or a pointer: on the machines that we run on each
    // goes into a register of its own, and the callee does not look at more than it has.
    let function: Symbol<Any> = unsafe { library.get(name.to_bytes_with_nul()) }
        .with_context(|| format!("{} is not in the driver", name.to_string_lossy()))?;
    let mut padded = [0; 5];
    for (place, argument) in padded.iter_mut().zip(arguments) {
        *place = argument;
    }
    let [one, two, three, four, five] = padded;
    // SAFETY: pointers among the arguments are to places of the caller that live on, of the type that the function writes.
    Ok(unsafe { function(one, two, three, four, five) })
}

/// Where an answer goes.
fn place<T>(place: &mut T) -> usize {
    std::ptr::from_mut(place).expose_provenance()
}

fn lacking() -> Answer {
    Answer { code: NOT_OURS, ..Answer::default() }
}
