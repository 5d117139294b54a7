//! The measured loops: a client of the driver API in its own process, with or without the shim.
//!
//! A probe is named `what[:argument][#calls]`. With `calls` it makes exactly so many calls without
//! timing, for counts of instructions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use libloading::os::unix::{Library, RTLD_NOW, Symbol};
use serde_json::json;

use crate::pair::median;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Free = unsafe extern "C" fn(u64) -> c_int;
type Copy = unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> c_int;
type GetProc =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// A client of the driver, which finds functions by dlsym.
struct Client {
    library: Library,
}

impl Client {
    /// Opens the driver, initialises it and makes the first GPU's primary context current.
    fn start() -> Result<Self> {
        // SAFETY: loading the driver runs its initialisers, as in every client of it. They have no
        // preconditions.
        let library =
            unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) }.context("libcuda.so.1")?;
        let client = Self { library };
        let mut context = std::ptr::null_mut::<c_void>();
        // SAFETY: the type is that of cuInit.
        let init = unsafe { client.symbol::<Init>(c"cuInit") }?;
        // SAFETY: the type is that of cuDevicePrimaryCtxRetain.
        let retain = unsafe { client.symbol::<Retain>(c"cuDevicePrimaryCtxRetain") }?;
        // SAFETY: the type is that of cuCtxSetCurrent.
        let set = unsafe { client.symbol::<SetCurrent>(c"cuCtxSetCurrent") }?;
        // SAFETY: cuInit takes flags, which must be 0.
        check("cuInit", unsafe { init(0) })?;
        // SAFETY: `context` is a valid place for the result.
        check("cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, 0) })?;
        // SAFETY: the driver has just returned `context`.
        check("cuCtxSetCurrent", unsafe { set(context) })?;
        Ok(client)
    }

    /// # Safety
    ///
    /// `T` must be the function type of `name`.
    unsafe fn symbol<T>(&self, name: &CStr) -> Result<Symbol<T>> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.library.get(name.to_bytes_with_nul()) }
            .with_context(|| format!("{} is not in the driver", name.to_string_lossy()))
    }
}

fn check(call: &str, result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { bail!("{call} answered {result}") }
}

/// How often a probe is repeated.
enum Repeat {
    /// Chunks of this many calls; the median of the chunks counts.
    Timed { calls: u64 },
    /// Exactly this many calls, untimed.
    Counted { calls: u64 },
}

impl Repeat {
    /// Runs `call` and returns nanoseconds per call.
    fn run(&self, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
        match *self {
            Self::Counted { calls } => {
                for _ in 0..calls {
                    call()?;
                }
                Ok(0.0)
            }
            Self::Timed { calls } => {
                for _ in 0..calls / 4 {
                    call()?;
                }
                let mut chunks = Vec::new();
                for _ in 0..9 {
                    let start = Instant::now();
                    for _ in 0..calls {
                        call()?;
                    }
                    chunks.push(start.elapsed().as_nanos() as f64 / calls as f64);
                }
                Ok(median(&mut chunks))
            }
        }
    }
}

/// Runs a probe and prints one JSON object.
pub(crate) fn run(name: &str) -> Result<()> {
    let (name, calls) = match name.split_once('#') {
        Some((name, calls)) => (name, Some(calls.parse::<u64>()?)),
        None => (name, None),
    };
    let (what, argument) = name.split_once(':').unwrap_or((name, ""));
    let repeat = |timed: u64| {
        calls.map_or(Repeat::Timed { calls: timed }, |calls| Repeat::Counted { calls })
    };
    let client = Client::start()?;
    let result = match what {
        "launch" => json!({ "ns": launch(&client, &repeat(2_000_000))? }),
        "launch_each" => launch_each(&client)?,
        "launch_threads" => json!({ "scaling": launch_threads(&client)? }),
        "memcpy" => json!({ "ns": memcpy(&client, &repeat(2_000_000))? }),
        "alloc" => alloc(&client, argument.parse()?, 4096, calls)?,
        "alloc_2mib" => alloc(&client, argument.parse()?, 2 << 20, calls)?,
        "alloc_random" => json!({ "ns": alloc_random(&client, argument.parse()?)? }),
        "dlsym" => json!({ "ns": dlsym(&client, argument, &repeat(300_000))? }),
        "getproc" => json!({ "ns": getproc(&client, &repeat(60_000))? }),
        _ => bail!("no probe is called '{what}'"),
    };
    println!("{result}");
    Ok(())
}

/// Launches once. The null driver ignores the arguments.
fn launch_once(launch: &Symbol<Launch>) -> c_int {
    let null = std::ptr::null_mut();
    // SAFETY: the type is that of cuLaunchKernel. The null driver reads none of the arguments, and
    // the shim uses the function handle only as a key.
    unsafe { launch(null, 1, 1, 1, 32, 1, 1, 0, null, null.cast(), null.cast()) }
}

fn launch(client: &Client, repeat: &Repeat) -> Result<f64> {
    // SAFETY: the type is that of cuLaunchKernel.
    let launch = unsafe { client.symbol::<Launch>(c"cuLaunchKernel") }?;
    repeat.run(|| check("cuLaunchKernel", launch_once(&launch)))
}

/// Measures the distribution of single launches. Reading the clock costs the same on both sides, so
/// it does not affect the difference.
fn launch_each(client: &Client) -> Result<serde_json::Value> {
    // SAFETY: the type is that of cuLaunchKernel.
    let launch = unsafe { client.symbol::<Launch>(c"cuLaunchKernel") }?;
    // Blocks of eight launches for the median, because one launch is close to the clock's
    // resolution; single launches for the tail.
    let sample = |launches: u32| -> Result<Vec<f64>> {
        let mut samples = Vec::with_capacity(400_000);
        for round in 0..450_000 {
            let start = Instant::now();
            for _ in 0..launches {
                check("cuLaunchKernel", launch_once(&launch))?;
            }
            let nanoseconds = start.elapsed().as_nanos() as f64;
            if round >= 50_000 {
                samples.push(nanoseconds / f64::from(launches));
            }
        }
        samples.sort_by(f64::total_cmp);
        Ok(samples)
    };
    let blocks = sample(8)?;
    let singles = sample(1)?;
    Ok(json!({ "p50_ns": blocks[blocks.len() / 2], "p99_ns": singles[singles.len() * 99 / 100] }))
}

/// Returns the launch rate of two threads over that of one.
fn launch_threads(client: &Client) -> Result<f64> {
    // SAFETY: the type is that of cuLaunchKernel.
    let launch = unsafe { client.symbol::<Launch>(c"cuLaunchKernel") }?;
    let rate = |threads: u32| -> f64 {
        let calls = 20_000_000_u64;
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..calls {
                        std::hint::black_box(launch_once(&launch));
                    }
                });
            }
        });
        f64::from(threads) * calls as f64 / start.elapsed().as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..3).map(|_| rate(2) / rate(1)).collect();
    Ok(median(&mut ratios))
}

fn memcpy(client: &Client, repeat: &Repeat) -> Result<f64> {
    // SAFETY: the type is that of cuMemcpyHtoDAsync_v2.
    let copy = unsafe { client.symbol::<Copy>(c"cuMemcpyHtoDAsync_v2") }?;
    let source = [0_u8; 64];
    repeat.run(|| {
        // SAFETY: the source is 64 readable bytes; the null driver reads neither side.
        check("cuMemcpyHtoDAsync_v2", unsafe {
            copy(4096, source.as_ptr().cast(), 64, std::ptr::null_mut())
        })
    })
}

/// Allocation functions of a client.
struct Memory {
    alloc: Symbol<Alloc>,
    free: Symbol<Free>,
    /// Size of each allocation. The null driver places them side by side.
    bytes: usize,
}

impl Memory {
    fn of(client: &Client, bytes: usize) -> Result<Self> {
        // SAFETY: the type is that of cuMemAlloc_v2.
        let alloc = unsafe { client.symbol(c"cuMemAlloc_v2") }?;
        // SAFETY: the type is that of cuMemFree_v2.
        let free = unsafe { client.symbol(c"cuMemFree_v2") }?;
        Ok(Self { alloc, free, bytes })
    }

    fn alloc(&self) -> Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a valid place for the result.
        check("cuMemAlloc_v2", unsafe { (self.alloc)(&raw mut address, self.bytes) })?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        // SAFETY: the address came from cuMemAlloc_v2 and the callers free it once.
        check("cuMemFree_v2", unsafe { (self.free)(address) })
    }
}

/// Measures a pair of cuMemAlloc and cuMemFree on top of `live` allocations, last in first out.
fn alloc(
    client: &Client,
    live: usize,
    bytes: usize,
    calls: Option<u64>,
) -> Result<serde_json::Value> {
    let memory = Memory::of(client, bytes)?;
    let held = (1..live).map(|_| memory.alloc()).collect::<Result<Vec<_>>>()?;
    let mut pairs = 0_u64;
    let cpu = cpu_ns();
    let repeat = calls.map_or(Repeat::Timed { calls: 200_000 }, |calls| Repeat::Counted { calls });
    let ns = repeat.run(|| {
        pairs += 1;
        memory.free(memory.alloc()?)
    })?;
    let cpu = (cpu_ns() - cpu) / pairs as f64;
    for address in held.into_iter().rev() {
        memory.free(address)?;
    }
    Ok(json!({ "ns": ns, "cpu_ns": cpu }))
}

/// Measures a pair of cuMemFree of a random live allocation and cuMemAlloc, with `live` of them.
///
/// The next address to free is prefetched. Without the shim the processor loads it out of order;
/// the shim's locked instructions prevent that, and the probe's own list would count as cost of the
/// shim (120 ns of 400).
fn alloc_random(client: &Client, live: usize) -> Result<f64> {
    let memory = Memory::of(client, 4096)?;
    let mut held = (0..live).map(|_| memory.alloc()).collect::<Result<Vec<_>>>()?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = || {
        // xorshift64: unpredictable for the processor, at the same cost on both sides.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % live as u64) as usize
    };
    let mut victim = draw();
    Repeat::Timed { calls: 200_000 }.run(|| {
        let next = draw();
        fetch_ahead(&held[next]);
        memory.free(held[victim])?;
        held[victim] = memory.alloc()?;
        victim = next;
        Ok(())
    })
}

/// Prefetches the cache line of a word.
fn fetch_ahead(word: &u64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch accesses nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

fn dlsym(client: &Client, which: &str, repeat: &Repeat) -> Result<f64> {
    let (library, name) = match which {
        "foreign" => {
            // SAFETY: the C library is loaded already, so no initialisers run.
            (Some(unsafe { Library::open(Some("libc.so.6"), RTLD_NOW) }?), c"qsort")
        }
        "driver" => (None, c"cuArrayGetDescriptor_v2"),
        _ => bail!("dlsym:{which} is no probe"),
    };
    let handle = library.map_or_else(
        || {
            // SAFETY: the driver is loaded already; this adds a reference to it.
            unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) }.map(Library::into_raw)
        },
        |library| Ok(library.into_raw()),
    )?;
    let _ = client;
    repeat.run(|| {
        // SAFETY: the handle is open and never closed, and the name ends in a zero.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if found.is_null() { bail!("{} was not found", name.to_string_lossy()) } else { Ok(()) }
    })
}

fn getproc(client: &Client, repeat: &Repeat) -> Result<f64> {
    // SAFETY: the type is that of cuGetProcAddress_v2.
    let get = unsafe { client.symbol::<GetProc>(c"cuGetProcAddress_v2") }?;
    let mut function = std::ptr::null_mut();
    let mut status = 0;
    repeat.run(|| {
        // SAFETY: the name ends in a zero and both places for results are valid.
        check("cuGetProcAddress_v2", unsafe {
            get(c"cuMemAlloc".as_ptr(), &raw mut function, 12_000, 0, &raw mut status)
        })
    })
}

/// Returns the CPU time of this process in nanoseconds.
fn cpu_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
