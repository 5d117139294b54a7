//! Cost of the accounting: charge, commit, begin_free and freed, without driver calls.
//!
//! `cargo run --release -p cgpu-memory --example charge_cost` prints nanoseconds for a pair of
//! allocation and free, with 1, 10,000 and 1,000,000 live allocations, in LIFO and in random order,
//! at several distances of addresses; and CPU nanoseconds with eight processes of one container.
// Figures of a report, and the end of a program.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::exit)]

use std::ffi::{CStr, OsString};
use std::process::{Command, exit};
use std::time::Instant;

use cgpu_memory::{
    Address, Bytes, Context, ContextId, DeviceIndex, Environment, GpuInfo, Inventory, Monotonic,
    Start, System, Tenant, Uuid,
};

const GPU: GpuInfo = GpuInfo { uuid: Uuid([7; 16]), total: Bytes(1 << 50), order: 0 };

/// The environment of this process, with two variables replaced.
struct BenchEnvironment(OsString);

impl Environment for BenchEnvironment {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        match name.to_bytes() {
            b"CGPU_DIR" => Some(self.0.clone()),
            b"ALIYUN_COM_GPU_MEM_CONTAINER" => Some("1048576".into()),
            _ => None,
        }
    }
    fn user(&self) -> u32 {
        System.user()
    }
    fn pid_namespace(&self) -> u64 {
        System.pid_namespace()
    }
    fn process_name(&self) -> Vec<u8> {
        System.process_name()
    }
    fn host_name(&self) -> String {
        System.host_name()
    }
}

/// A tenant with one context, and a driver that returns ascending addresses.
struct Bench {
    tenant: Tenant,
    gpu: DeviceIndex,
    context: Context,
    next: u64,
    stride: u64,
}

impl Bench {
    fn new(directory: OsString, stride: u64) -> Self {
        let inventory = Inventory { gpus: &[GPU], partitioned: &[], complete: true };
        let Ok(Start::On(tenant)) =
            Tenant::start(&BenchEnvironment(directory), inventory, &Monotonic)
        else {
            eprintln!("cannot start the tenant");
            exit(1);
        };
        let gpu = tenant.gpu(GPU.uuid).expect("the GPU is sliced");
        let context = tenant.contexts().adopt(ContextId(0x1000), gpu);
        Self { tenant, gpu, context, next: 0x7f00_0000_0000, stride }
    }

    fn allocate(&mut self) -> Address {
        let context = self.tenant.contexts().find(ContextId(0x1000)).unwrap_or(self.context);
        let charge = self.tenant.charge(self.gpu, Bytes(self.stride)).expect("it fits");
        self.next += self.stride;
        let address = Address(self.next);
        charge.commit(address, Some(context));
        address
    }

    fn free(&self, address: Address) {
        self.tenant.allocations().begin_free(address).expect("it is live").freed();
    }
}

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    if let (Some(directory), Some(pairs)) = (arguments.next(), arguments.next()) {
        return peer(directory, pairs.to_string_lossy().parse().expect("a number of pairs"));
    }
    for stride in [512_u64, 4096, 65536, 2 << 20] {
        for live in [1_usize, 10_000, 1_000_000] {
            let (pair, random, unwind) = alone(live, stride);
            println!(
                "{live:>8} live, {stride:>8} apart: pair {pair:>6.1} ns, random {random:>6.1} ns, \
                 fill and unwind {unwind:>6.1} ns"
            );
        }
    }
    let (held, bare) = control(1_000_000);
    println!(
        " 1000000 live: random access to the bench's own list: {held:.1} ns, {bare:.1} ns for one"
    );
    for peers in [1, 2, 8] {
        let directory = directory();
        let children: Vec<_> = (0..peers)
            .map(|_| {
                let program = std::env::current_exe().expect("this program has a path");
                Command::new(program)
                    .arg(directory.path())
                    .arg("2000000")
                    .spawn()
                    .expect("it starts")
            })
            .collect();
        for mut child in children {
            child.wait().expect("it ends");
        }
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a tmpfs")
}

/// Returns nanoseconds for a pair beside `live - 1` others, for a random free and an allocation,
/// and for a pair while filling and unwinding.
fn alone(live: usize, stride: u64) -> (f64, f64, f64) {
    const PAIRS: u32 = 2_000_000;
    let directory = directory();
    let mut bench = Bench::new(directory.path().into(), stride);
    let begun = Instant::now();
    let mut held: Vec<Address> = (1..live).map(|_| bench.allocate()).collect();
    let filled = begun.elapsed();
    let pair = best(|| {
        for _ in 0..PAIRS {
            let address = bench.allocate();
            bench.free(address);
        }
        f64::from(PAIRS)
    });
    let begun = Instant::now();
    for address in held.drain(..).rev() {
        bench.free(address);
    }
    let unwind = (filled + begun.elapsed()).as_secs_f64() * 1e9 / live.max(2) as f64;
    let mut held: Vec<Address> = (0..live).map(|_| bench.allocate()).collect();
    let mut state = 1_u64;
    let random = best(|| {
        for _ in 0..PAIRS {
            let victim = &mut held[draw(&mut state, live)];
            bench.free(*victim);
            *victim = bench.allocate();
        }
        f64::from(PAIRS)
    });
    (pair, random, unwind)
}

/// Returns nanoseconds for a random access to the bench's own list, and for access to one entry.
fn control(live: usize) -> (f64, f64) {
    let mut held: Vec<u64> = (0..live as u64).collect();
    let mut state = 1_u64;
    let mut access = |live: usize| {
        best(|| {
            for _ in 0..2_000_000 {
                let victim = &mut held[draw(&mut state, live)];
                *victim = std::hint::black_box(*victim + 1);
            }
            2e6
        })
    };
    (access(live), access(1))
}

fn draw(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) as usize) % below
}

/// Returns nanoseconds for one, the best of five rounds.
fn best(mut round: impl FnMut() -> f64) -> f64 {
    let mut once = || {
        let begun = Instant::now();
        let count = round();
        begun.elapsed().as_secs_f64() * 1e9 / count
    };
    (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// Runs one of several processes: waits until all have started, and prints its CPU time for a pair.
fn peer(directory: OsString, pairs: u32) {
    let mut bench = Bench::new(directory, 4096);
    let slot = bench.tenant.slot_owner().slot();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let begun = cpu();
    for _ in 0..pairs {
        let address = bench.allocate();
        bench.free(address);
    }
    println!("process in slot {slot}: {:.1} CPU ns for a pair", (cpu() - begun) / f64::from(pairs));
}

/// Returns the CPU time of this process in nanoseconds.
fn cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec that the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
