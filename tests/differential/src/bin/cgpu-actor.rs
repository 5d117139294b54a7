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
}

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
        Ok(Self { driver, nvml, contexts: BTreeMap::new(), allocations: BTreeMap::new() })
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
        Ok(answer)
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
