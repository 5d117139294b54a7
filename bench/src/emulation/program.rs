//! A program in a script: driver calls behind the gate, and host time.

use std::cell::Cell;

use cgpu_launch::gate::{ContextKey, DriverError, Gate, Kernel, Launch, Stream, Thread};
use cgpu_shm::atomic::Ordering;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_sim::Footprint;

use super::driver::{Device, Driver};
use super::harness::{BEGIN, Role};
use super::{Container, gpu};

/// State that the threads of a program share.
pub(super) struct Process<'a> {
    container: &'a Container,
    gate: Gate<'a>,
    device: &'a Device,
}

impl<'a> Process<'a> {
    pub(super) fn new(container: &'a Container, gate: Gate<'a>, device: &'a Device) -> Self {
        Self { container, gate, device }
    }
}

/// Size of a kernel's grid relative to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    /// Many waves of blocks.
    Full,
    /// A quarter: four such kernels run at the same time.
    Quarter,
}

impl Grid {
    /// Resident blocks of 256 threads on an A10.
    const RESIDENT: u32 = 432;
    /// Maximum number of concurrent kernels.
    const KERNELS: u64 = 128;

    const fn blocks(self) -> u32 {
        match self {
            Self::Full => 10 * Self::RESIDENT,
            Self::Quarter => Self::RESIDENT / 4,
        }
    }

    fn footprint(self) -> Footprint {
        Footprint::of_blocks(self.blocks().into(), Self::RESIDENT.into(), Self::KERNELS)
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) grid: Grid,
    /// GPU time alone.
    pub(crate) length: Nanos,
}

impl Work {
    /// Creates a kernel that fills the GPU.
    pub(crate) const fn full(length: Nanos) -> Self {
        Self { grid: Grid::Full, length }
    }
}

/// A thread of a program, behind the program's gate. The process takes its slot at the first
/// launch; until then the monitor does not know the container.
pub(crate) struct Program<'a> {
    process: &'a Process<'a>,
    /// Thread number, from 0.
    number: u32,
    thread: Thread,
    driver: Driver<'a>,
}

impl<'a> Program<'a> {
    pub(super) fn new(process: &'a Process<'a>, number: u32, role: &'a Role<'a, 'a>) -> Self {
        let driver = Driver { role, device: process.device, current: Cell::new(0) };
        Self { process, number, thread: Thread::default(), driver }
    }

    /// Returns the number of this thread in the program, from 0.
    pub(crate) fn thread(&self) -> u32 {
        self.number
    }

    /// Makes a context of the program the thread's current one.
    #[cfg(test)]
    pub(crate) fn set_context(&self, number: usize) {
        self.driver.current.set(number);
    }

    /// Returns the time since the start of the run.
    pub(crate) fn now(&self) -> Nanos {
        self.driver.role.now() - BEGIN
    }

    /// Returns whether the run continues.
    pub(crate) fn goes_on(&self) -> bool {
        self.driver.role.now() < self.driver.role.end()
    }

    /// Sleeps until a time.
    pub(crate) fn sleep_until(&self, at: Nanos) {
        self.driver.role.sleep_until(BEGIN + at);
    }

    /// Computes on the host.
    pub(crate) fn compute(&self, time: Nanos) {
        self.driver.role.spend(time);
    }

    /// Returns the host time of a launch without the gate.
    pub(crate) fn launch_cost(&self) -> Nanos {
        self.driver.role.figures().launch_cost
    }

    /// Launches a kernel that fills the GPU for `cost`, as the shim does.
    pub(crate) fn launch(
        &self,
        kernel: Kernel,
        stream: u32,
        cost: Nanos,
    ) -> Result<(), DriverError> {
        self.launch_as(kernel, stream, Work::full(cost), false)
    }

    /// Launches a kernel.
    pub(crate) fn submit(&self, work: Work, stream: u32) -> Result<(), DriverError> {
        let kernel = Kernel::new(1, [work.grid.blocks(), 1, 1], [256, 1, 1]);
        self.launch_as(kernel, stream, work, false)
    }

    /// Launches a kernel; `programmatic`: it may begin before its predecessor has ended.
    pub(super) fn launch_as(
        &self,
        kernel: Kernel,
        stream: u32,
        work: Work,
        programmatic: bool,
    ) -> Result<(), DriverError> {
        let Process { container, gate, .. } = self.process;
        if !container.has_started() {
            container.start();
            self.driver.role.wake_monitor();
        }
        let stream = handle(stream);
        let launch = || self.driver.launch(stream, work.grid.footprint(), work.length);
        let word = container.region.grant().gate();
        if word == container.open.load(Ordering::Relaxed) || self.thread.spend(word, kernel, stream)
        {
            return launch();
        }
        let (context, gpu) = (ContextKey(1 + self.driver.current.get()), gpu());
        let launch_request =
            Launch { kernel, stream, context, gpu, programmatic, variable_cost: false };
        let admitted = gate.before_launch(&self.thread, launch_request, &self.driver, &self.driver);
        let answer = launch();
        if let Some(admitted) = admitted {
            gate.after_launch(&self.thread, admitted, answer.is_ok(), &self.driver, &self.driver);
        }
        answer
    }

    /// Copies from the host to the GPU. Copies do not pass the gate.
    pub(crate) fn upload(&self, bytes: Bytes, stream: u32) -> Result<(), DriverError> {
        self.driver.copy(handle(stream), true, bytes)
    }

    /// Copies from the GPU to the host.
    pub(crate) fn download(&self, bytes: Bytes, stream: u32) -> Result<(), DriverError> {
        self.driver.copy(handle(stream), false, bytes)
    }

    /// Makes later launches into `stream` wait for the last launch into `awaited`.
    pub(crate) fn wait_for_stream(&self, stream: u32, awaited: u32) -> Result<(), DriverError> {
        self.driver.join(handle(stream), handle(awaited))
    }

    /// Returns whether the last launch into the stream is over, as an event query does.
    pub(crate) fn is_over(&self, stream: u32) -> Result<bool, DriverError> {
        self.driver.query(handle(stream))
    }

    /// Waits until all launches have run.
    pub(crate) fn synchronize(&self) {
        self.driver.synchronize();
        self.after_synchronize(None);
    }

    fn after_synchronize(&self, stream: Option<Stream>) {
        let gate = &self.process.gate;
        if gate.wants_completion(&self.thread) {
            gate.after_synchronize(
                &self.thread,
                (ContextKey(1 + self.driver.current.get()), stream),
                &self.driver,
                &self.driver,
            );
        }
    }

    /// Waits until all launches into the stream have run.
    pub(crate) fn synchronize_stream(&self, stream: u32) -> Result<(), DriverError> {
        self.driver.synchronize_stream(handle(stream))?;
        self.after_synchronize(Some(handle(stream)));
        Ok(())
    }

    /// Returns the GPU time that its work ran, as the GPU counts it.
    pub(crate) fn ran(&self) -> Nanos {
        self.driver.ran()
    }

    /// Returns the GPU time that its gate reports.
    #[cfg(test)]
    pub(crate) fn reported(&self) -> Nanos {
        Nanos(self.process.container.region.cell(gpu(), super::SLOT).busy.load(Ordering::Relaxed))
    }
}

fn handle(stream: u32) -> Stream {
    Stream { handle: 16 * (1 + stream as usize), per_thread: false }
}
