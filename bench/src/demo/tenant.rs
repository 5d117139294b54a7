//! A tenant: a container of two workers that are controlled over standard input and output.

use anyhow::{Context, Result};
use cgpu_fixture::fixture::Fixture;
use cgpu_fixture::worker::Worker;
use serde_json::Value;
use std::time::Duration;

/// Microseconds of one kernel.
const KERNEL_US: &str = "60";

/// `ALIYUN_COM_GPU_MEM_DEV`: the parts into which the GPU's memory is divided.
const MEM_DEV: u64 = 22;

/// Limit and weight of a tenant.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    /// Parts of [`MEM_DEV`].
    mem_container: u64,
    pub(crate) weight: u32,
}

impl Plan {
    /// Returns the limit in MiB by the documented formula.
    pub(crate) fn limit_mib(&self, total_mib: u64) -> u64 {
        total_mib * self.mem_container / MEM_DEV
    }
}

/// The two tenants.
pub(crate) const PLANS: [Plan; 2] = [
    Plan { name: "a", mem_container: 8, weight: 1 },
    Plan { name: "b", mem_container: 12, weight: 2 },
];

/// What a tenant's processes saw and got of memory.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Bytes that both got before the driver refused.
    pub(crate) granted: u64,
    /// Whether both were refused with out of memory.
    pub(crate) refused_as_usual: bool,
    /// The GPU's size by every getter in every process.
    pub(crate) shown: Vec<u64>,
    /// Whether managed memory was refused in both.
    pub(crate) managed_refused: bool,
}

/// A running tenant.
pub(crate) struct Tenant {
    pub(crate) plan: &'static Plan,
    workers: Vec<Worker>,
    iterations: u64,
}

impl Tenant {
    /// Starts both workers. `iterations` is the length of a kernel as calibrated by another
    /// tenant's worker.
    pub(crate) fn start(
        fixture: &Fixture,
        plan: &'static Plan,
        iterations: Option<u64>,
    ) -> Result<Self> {
        let mut first = worker(fixture, plan, iterations)?;
        let iterations = first.request("info")?["iterations"]
            .as_u64()
            .context("a worker that does not calibrate")?;
        let second = worker(fixture, plan, Some(iterations))?;
        Ok(Self { plan, workers: vec![first, second], iterations })
    }

    /// Returns the length of a kernel as calibrated by the first worker.
    pub(crate) fn iterations(&self) -> u64 {
        self.iterations
    }

    /// Lets the first worker alone launch for `time`. Returns its completed kernels per second.
    pub(crate) fn run_one_process(&mut self, time: Duration) -> Result<f64> {
        let answer = self.workers[0].request(&format!("run {}", time.as_secs_f64()))?;
        let number = |field: &str| answer[field].as_f64().context("a worker that does not count");
        // Counted up to the last completion, since a whole number of batches seldom fits into
        // `time`.
        Ok(number("launches")? / number("counted_seconds")?)
    }

    /// Starts launching in both workers.
    pub(crate) fn start_running(&mut self, time: Duration) -> Result<()> {
        self.send(&format!("run {}", time.as_secs_f64()))
    }

    /// Waits for [`Tenant::start_running`] to end and returns the completed kernels.
    pub(crate) fn ran(&mut self) -> Result<u64> {
        let answers = self.receive()?;
        answers
            .iter()
            .map(|answer| answer["launches"].as_u64().context("a worker that does not count"))
            .sum()
    }

    /// Starts allocating in both workers.
    pub(crate) fn start_filling(&mut self) -> Result<()> {
        self.send("fill")
    }

    /// Waits for [`Tenant::start_filling`] to end and reads the GPU's size in the workers.
    pub(crate) fn filled(&mut self) -> Result<Memory> {
        let fills = self.receive()?;
        self.send("info")?;
        let views = self.receive()?;
        let number = |value: &Value, field: &str| value[field].as_u64().unwrap_or(0);
        Ok(Memory {
            granted: fills.iter().map(|fill| number(fill, "granted")).sum(),
            refused_as_usual: fills.iter().all(|fill| fill["result"] == 2),
            shown: views
                .iter()
                .flat_map(|view| [number(view, "device_total"), number(view, "total")])
                .collect(),
            managed_refused: views.iter().all(|view| view["managed"] == 801),
        })
    }

    /// Frees the memory of both workers.
    pub(crate) fn give_back(&mut self) -> Result<()> {
        self.send("free")?;
        self.receive().map(drop)
    }

    fn send(&mut self, command: &str) -> Result<()> {
        self.workers.iter_mut().try_for_each(|worker| worker.send(command))
    }

    fn receive(&mut self) -> Result<Vec<Value>> {
        self.workers.iter_mut().map(Worker::receive).collect()
    }
}

fn worker(fixture: &Fixture, plan: &Plan, iterations: Option<u64>) -> Result<Worker> {
    let mut command = fixture.run(plan.name);
    command.args(["--weight", &plan.weight.to_string(), "--"]);
    command
        .arg(fixture.program("worker")?)
        .arg(KERNEL_US)
        .arg(iterations.unwrap_or(0).to_string())
        .env("ALIYUN_COM_GPU_MEM_CONTAINER", plan.mem_container.to_string())
        .env("ALIYUN_COM_GPU_MEM_DEV", MEM_DEV.to_string());
    Ok(Worker::start(command, plan.name)?.0)
}
