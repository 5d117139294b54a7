//! Measures a charge and its refund, alone and beside other processes of the container.
//!
//! `cargo run --release -p cgpu-shm --example pair [processes]`

use std::env;
use std::error::Error;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Instant;

use cgpu_shm::gpus::Gpu;
use cgpu_shm::ledger::Column;
use cgpu_shm::paths::Candidate;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::SlotOwner;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

const PAIRS: u32 = 5_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = env::temp_dir().join(format!("cgpu-pair-{}", std::process::id()));
    if let Some(directory) = env::var_os("CGPU_PAIR_DIRECTORY") {
        return measure(directory.as_ref());
    }
    let processes: usize = env::args().nth(1).map_or(Ok(1), |count| count.parse())?;
    let children: Vec<_> = (0..processes)
        .map(|_| {
            Command::new(env::current_exe()?)
                .env("CGPU_PAIR_DIRECTORY", &directory)
                .stdin(Stdio::null())
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    for mut child in children {
        child.wait()?;
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

/// Measures five rounds in one process and prints the median.
fn measure(directory: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let candidate = Candidate { directory: directory.to_path_buf(), owner: None };
    let region = Region::open_or_make(&[candidate], RegionSpec::default())?;
    let claim = region.claim(SlotOwner::default(), Nanos(1), false)?.ok_or("no slot is free")?;
    let facts = Gpu { uuid: Uuid([1; 16]), total: Bytes::MAX, limit: Bytes::ZERO, ordinal: 0 };
    let gpu = region.register(claim.slot, &facts)?;
    let account = region.account(gpu, claim.owner());
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let (wall, cpu) = (Instant::now(), cpu_ns());
        for _ in 0..PAIRS {
            let bytes = black_box(Bytes(4096));
            account.charge(
                Column::Used,
                bytes,
                || region.grant().limit_word(gpu, Bytes(1 << 40)),
                Nanos::MAX,
                |owner| region.liveness(owner),
            )?;
            black_box(account.own().refund(Column::Used, bytes));
        }
        let per_pair = |ns: f64| ns / f64::from(PAIRS);
        rounds.push((per_pair(wall.elapsed().as_secs_f64() * 1e9), per_pair(cpu_ns() - cpu)));
    }
    rounds.sort_by(|one, other| one.1.total_cmp(&other.1));
    if let Some((wall, cpu)) = rounds.get(rounds.len() / 2) {
        println!("pair: {wall:.1} ns wall, {cpu:.1} ns CPU");
    }
    Ok(())
}

fn cpu_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the one timespec, which outlives it.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    #[allow(clippy::cast_precision_loss)] // a run lasts seconds
    let ns = time.tv_sec as f64 * 1e9 + time.tv_nsec as f64;
    ns
}
