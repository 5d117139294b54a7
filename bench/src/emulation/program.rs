//! A program as a script sees it: the driver's calls, behind the gate, and time on the host.

use cgpu_launch::gate::{ContextKey, DriverError, Gate, Kernel, Launch, Stream, Thread};
use cgpu_shm::atomic::Ordering;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_sim::Footprint;

use super::driver::{Device, Driver};
use super::harness::{BEGIN, Role};
use super::{Container, gpu};

/// What the threads of one program share.
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

/// How much of the GPU a kernel's grid takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    /// Many waves of blocks.
    Full,
    /// A quarter: four such kernels run beside each other.
    Quarter,
}

impl Grid {
    /// Blocks of 256 threads that the GPU holds at once, as an A10 does.
    const RESIDENT: u32 = 432;
    /// Kernels that it runs at once at most.
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

/// A kernel of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) grid: Grid,
    /// GPU time that it takes alone.
    pub(crate) length: Nanos,
}

impl Work {
    /// A kernel that fills the GPU.
    pub(crate) const fn full(length: Nanos) -> Self {
        Self { grid: Grid::Full, length }
    }
}

/// One thread of a program, behind the program's gate. The program's process has its slot, and the
/// monitor knows the container, from the first launch on: until then it has not started.
pub(crate) struct Program<'a> {
    process: &'a Process<'a>,
    /// From 0.
    number: u32,
    thread: Thread,
    driver: Driver<'a>,
}

impl<'a> Program<'a> {
    pub(super) fn new(process: &'a Process<'a>, number: u32, role: &'a Role<'a, 'a>) -> Self {
        let driver = Driver { role, device: process.device };
        Self { process, number, thread: Thread::default(), driver }
    }

    /// The number of this thread in the program, from 0.
    pub(crate) fn thread(&self) -> u32 {
        self.number
    }

    /// Now, from the beginning of the run.
    pub(crate) fn now(&self) -> Nanos {
        self.driver.role.now() - BEGIN
    }

    /// Whether the run goes on.
    pub(crate) fn goes_on(&self) -> bool {
        self.driver.role.now() < self.driver.role.end()
    }

    /// Does nothing until then.
    pub(crate) fn sleep_until(&self, at: Nanos) {
        self.driver.role.sleep_until(BEGIN + at);
    }

    /// Computes on the host.
    pub(crate) fn compute(&self, time: Nanos) {
        self.driver.role.spend(time);
    }

    /// Host time of a launch, without what the gate adds.
    pub(crate) fn launch_cost(&self) -> Nanos {
        self.driver.role.figures().launch_cost
    }

    /// Launches a kernel that fills the GPU for `cost`, as the shim does it.
    pub(crate) fn launch(
        &self,
        kernel: Kernel,
        stream: u32,
        cost: Nanos,
    ) -> Result<(), DriverError> {
        self.launch_as(kernel, stream, Work::full(cost), false)
    }

    /// Launches this kernel.
    pub(crate) fn submit(&self, work: Work, stream: u32) -> Result<(), DriverError> {
        let kernel = Kernel::new(1, [work.grid.blocks(), 1, 1], [256, 1, 1]);
        self.launch_as(kernel, stream, work, false)
    }

    /// The same; `programmatic`: it may begin before its predecessor has ended.
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
        let (context, gpu) = (ContextKey(1), gpu());
        let asked = Launch { kernel, stream, context, gpu, programmatic, variable_cost: false };
        let admitted = gate.before_launch(&self.thread, asked, &self.driver, &self.driver);
        let answer = launch();
        if let Some(admitted) = admitted {
            gate.after_launch(&self.thread, admitted, answer.is_ok(), &self.driver, &self.driver);
        }
        answer
    }

    /// Copies from the host to the GPU, which no gate holds up.
    pub(crate) fn upload(&self, bytes: Bytes, stream: u32) -> Result<(), DriverError> {
        self.driver.copy(handle(stream), true, bytes)
    }

    /// Copies from the GPU to the host.
    pub(crate) fn download(&self, bytes: Bytes, stream: u32) -> Result<(), DriverError> {
        self.driver.copy(handle(stream), false, bytes)
    }

    /// Lets what is launched into `stream` from now on wait for the last launch into `awaited`.
    pub(crate) fn wait_for_stream(&self, stream: u32, awaited: u32) -> Result<(), DriverError> {
        self.driver.join(handle(stream), handle(awaited))
    }

    /// Whether the last launch into the stream is over, as an event behind it tells.
    pub(crate) fn is_over(&self, stream: u32) -> Result<bool, DriverError> {
        self.driver.query(handle(stream))
    }

    /// Waits until all that was launched has run.
    pub(crate) fn synchronize(&self) {
        self.driver.synchronize();
        self.after_synchronize(None);
    }

    fn after_synchronize(&self, stream: Option<Stream>) {
        let gate = &self.process.gate;
        if gate.wants_completion(&self.thread) {
            gate.after_synchronize(
                &self.thread,
                (ContextKey(1), stream),
                &self.driver,
                &self.driver,
            );
        }
    }

    /// Waits until all that was launched into the stream has run.
    pub(crate) fn synchronize_stream(&self, stream: u32) -> Result<(), DriverError> {
        self.driver.synchronize_stream(handle(stream))?;
        self.after_synchronize(Some(handle(stream)));
        Ok(())
    }

    /// GPU time that its work really ran, as the GPU counts it.
    pub(crate) fn ran(&self) -> Nanos {
        self.driver.ran()
    }

    /// GPU time that its gate says that it ran.
    #[cfg(test)]
    pub(crate) fn reported(&self) -> Nanos {
        Nanos(self.process.container.region.cell(gpu(), super::SLOT).busy.load(Ordering::Relaxed))
    }
}

fn handle(stream: u32) -> Stream {
    Stream { handle: 16 * (1 + stream as usize), per_thread: false }
}
